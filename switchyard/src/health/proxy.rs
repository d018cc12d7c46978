//! The health of this proxy, which load balancers and the kubelet check.
//!
//! A family is healthy unless a requested sync has been outstanding for too long, another program
//! changed the rules in the kernel and the repair failed, the configuration does not fit the node,
//! or the engine has ended, or is about to. A sync that leaves a family out is outstanding for that
//! family. Though the proxy works, the node as a whole may be ineligible for traffic because the
//! node is about to be removed.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use switchyard_core::{
    model::IpFamily,
    runner::{EngineEvent, Observer},
};

/// The health of this proxy, shared between the engine, which reports, and the HTTP servers, which
/// read.
#[derive(Debug)]
pub struct ProxyHealth {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    timeout: Duration,
    families: BTreeMap<IpFamily, Family>,
    node_eligible: bool,
    has_failed: bool,
    /// Whether the check of the node has refused it, so that nothing is programmed any more.
    is_refused: bool,
    /// Whether the proxy is about to end, and still follows changes.
    is_ending: bool,
    /// Whether the engine has ended, so that nothing is programmed any more.
    has_ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct Family {
    last_updated: Timestamp,
    oldest_pending: Option<Instant>,
    /// Whether any sync has programmed the family.
    has_synced: bool,
    /// Whether the last sync that succeeded left the family out.
    is_left_out: bool,
    /// Whether another program has changed the rules in the kernel since the family was programmed.
    is_disturbed: bool,
}

impl Family {
    /// A family that no sync has programmed.
    fn started(last_updated: Timestamp) -> Self {
        Self {
            last_updated,
            oldest_pending: None,
            has_synced: false,
            is_left_out: false,
            is_disturbed: false,
        }
    }
}

/// The health at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// The health of each family that has started.
    pub families: BTreeMap<IpFamily, FamilyReport>,
    /// Whether the node may receive traffic from load balancers.
    pub node_eligible: bool,
    /// Whether this proxy has programmed each family, once at least.
    pub has_synced: bool,
    /// The problems in words, including problems that do not make a family unhealthy yet. Without
    /// details, since everybody can read them.
    pub problems: Vec<String>,
}

/// The health of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyReport {
    /// The time of the last sync, or of the start if there was no sync.
    pub last_updated: Timestamp,
    /// Whether the family is healthy.
    pub healthy: bool,
    /// Whether the last sync that succeeded left the family out, since the node refuses its rules.
    pub left_out: bool,
}

impl HealthReport {
    /// Whether all families are healthy.
    pub fn healthy(&self) -> bool {
        self.families.values().all(|family| family.healthy)
    }

    /// Whether the proxy works, so that a restart would not help: each family that the node accepts
    /// is healthy, and there is one. A family that the node refuses would be refused again, and the
    /// other would not be served meanwhile.
    pub fn works(&self) -> bool {
        let mut accepted = self.families.values().filter(|family| !family.left_out).peekable();
        self.healthy() || accepted.peek().is_some() && accepted.all(|family| family.healthy)
    }

    /// The time of the latest sync of any family.
    pub fn newest_update(&self) -> Option<Timestamp> {
        self.families.values().map(|family| family.last_updated).max()
    }
}

impl ProxyHealth {
    /// Returns the health of a proxy that has not started. A family is unhealthy when a requested
    /// sync has been outstanding for `timeout`.
    pub fn new(timeout: Duration) -> Self {
        Self { inner: Mutex::new(Inner { timeout, ..Inner::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is a single assignment, so a panic elsewhere left nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the time after which an outstanding sync makes a family unhealthy.
    pub fn set_timeout(&self, timeout: Duration) {
        self.lock().timeout = timeout;
    }

    /// Records that the engine has started to serve these families.
    pub fn started(&self, families: &[IpFamily], now: Timestamp) {
        let mut inner = self.lock();
        for family in families {
            inner.families.entry(*family).or_insert(Family::started(now));
        }
    }

    /// Records that a sync was requested.
    pub fn sync_requested(&self, now: Instant) {
        for family in self.lock().families.values_mut() {
            family.oldest_pending.get_or_insert(now);
        }
    }

    /// Records that another program has changed the rules in the kernel. Those of a family that is
    /// left out are not what was programmed anyway, and the family is unhealthy when that lasts for
    /// too long.
    pub fn externally_changed(&self) {
        for family in self.lock().families.values_mut().filter(|family| !family.is_left_out) {
            family.is_disturbed = true;
        }
    }

    /// Records that a sync succeeded at `now`, for the families that the sync programmed. The
    /// others are left out because the kernel refuses them; each becomes unhealthy if that lasts
    /// for too long.
    pub fn synced(&self, now: Timestamp, at: Instant, is_programmed: impl Fn(IpFamily) -> bool) {
        let mut inner = self.lock();
        for (family, state) in &mut inner.families {
            if is_programmed(*family) {
                *state = Family { has_synced: true, ..Family::started(now) };
            } else {
                state.is_left_out = true;
                state.oldest_pending.get_or_insert(at);
            }
        }
        inner.has_failed = false;
    }

    /// Records that a sync failed. Why it failed belongs in the log: everybody can read the report.
    pub fn sync_failed(&self) {
        self.lock().has_failed = true;
    }

    /// Records that the configuration does not fit the node.
    pub fn node_refused(&self) {
        self.lock().is_refused = true;
    }

    /// Records that the proxy is about to end, and no more traffic should come.
    pub fn ending(&self) {
        self.lock().is_ending = true;
    }

    /// Records that the engine has ended.
    pub fn ended(&self) {
        self.lock().has_ended = true;
    }

    /// Sets whether the node may receive traffic: the Node object is known, and is not about to be
    /// removed.
    pub fn set_node_eligible(&self, eligible: bool) {
        self.lock().node_eligible = eligible;
    }

    /// Returns the health at `now`.
    pub fn report(&self, now: Instant) -> HealthReport {
        let inner = self.lock();
        let waiting =
            |state: &Family| state.oldest_pending.map(|since| now.saturating_duration_since(since));
        // A repair takes milliseconds, so the rules are wrong for longer only if a sync fails.
        let is_wrong =
            |state: &Family| state.is_disturbed && (inner.has_failed || state.is_left_out);
        let families = inner.families.iter().map(|(family, state)| {
            let is_late = waiting(state).is_some_and(|waiting| waiting >= inner.timeout);
            let is_out = inner.is_ending || inner.has_ended || inner.is_refused;
            let healthy = !is_late && !is_wrong(state) && !is_out;
            let Family { last_updated, is_left_out: left_out, .. } = *state;
            (*family, FamilyReport { last_updated, healthy, left_out })
        });
        let families: BTreeMap<_, _> = families.collect();
        let longest = inner.families.values().filter_map(waiting).max();
        let late = longest.filter(|waiting| *waiting >= inner.timeout);
        let left_out = inner.families.iter().filter(|(_, state)| state.is_left_out);
        let mut problems: Vec<String> = left_out
            .map(|(family, _)| format!("{family} is left out, since the node refuses its rules"))
            .collect();
        if inner.has_ended {
            problems.push("the engine has ended".to_owned());
        } else if inner.is_ending {
            problems.push("the proxy is about to end".to_owned());
        }
        if inner.is_refused {
            problems.push("the configuration does not fit the node".to_owned());
        }
        if inner.has_failed {
            problems.push("the last sync failed".to_owned());
        }
        if inner.families.values().any(is_wrong) {
            problems.push("the kernel does not hold what was programmed".to_owned());
        }
        problems.extend(late.map(|late| format!("changes have waited for {} s", late.as_secs())));
        HealthReport {
            families,
            node_eligible: inner.node_eligible,
            has_synced: !inner.families.is_empty()
                && inner.families.values().all(|family| family.has_synced),
            problems,
        }
    }
}

impl Observer for ProxyHealth {
    fn on_event(&self, event: &EngineEvent<'_>) {
        // Of tokio, as tests simulate time.
        let now = tokio::time::Instant::now().into_std();
        match event {
            EngineEvent::SyncRequested => self.sync_requested(now),
            EngineEvent::ResyncRequested => self.externally_changed(),
            EngineEvent::Synced(outcome) => {
                let is_programmed = |family| outcome.change.programs(family);
                self.synced(Timestamp::now(), now, is_programmed);
            }
            EngineEvent::SyncFailed { .. } => self.sync_failed(),
            EngineEvent::NodeRefused(_) => self.node_refused(),
            EngineEvent::NodeEligible(is_eligible) => self.set_node_eligible(*is_eligible),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn a_family_is_unhealthy_when_a_request_waits_too_long() {
        let health = ProxyHealth::new(TIMEOUT);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        health.sync_requested(at(0));
        assert!(health.report(at(600)).healthy(), "nothing has started");
        assert_eq!(health.report(at(600)).newest_update(), None);

        health.started(&IpFamily::ALL, Timestamp::UNIX_EPOCH);
        assert!(health.report(at(600)).healthy(), "nothing was asked for");
        health.sync_requested(at(600));
        health.sync_requested(at(650));
        assert!(health.report(at(659)).healthy());
        assert!(!health.report(at(660)).healthy(), "the oldest request counts");
        assert_eq!(health.report(at(660)).newest_update(), Some(Timestamp::UNIX_EPOCH));
        assert_eq!(health.report(at(661)).problems, ["changes have waited for 61 s"]);

        health.set_timeout(2 * TIMEOUT);
        assert!(health.report(at(660)).healthy(), "it may wait longer now");

        let now = Timestamp::from_second(1_700_000_000).unwrap();
        health.synced(now, at(9000), |_| true);
        let report = health.report(at(9999));
        assert!(report.healthy());
        assert_eq!(report.newest_update(), Some(now));
        assert_eq!(report.families.len(), 2);
    }

    #[test]
    fn what_cannot_be_repaired_is_unhealthy_at_once() {
        let health = ProxyHealth::new(TIMEOUT);
        health.started(&IpFamily::ALL, Timestamp::UNIX_EPOCH);
        let now = Instant::now();
        health.sync_failed();
        let report = health.report(now);
        assert!(report.healthy(), "the kernel holds what it held");
        assert_eq!(report.problems, ["the last sync failed"]);
        health.synced(Timestamp::UNIX_EPOCH, now, |_| true);
        assert_eq!(health.report(now).problems, [""; 0]);

        health.on_event(&EngineEvent::ResyncRequested);
        assert!(health.report(now).healthy(), "a repair is under way");
        health.sync_failed();
        let report = health.report(now);
        assert!(!report.healthy());
        assert_eq!(
            report.problems,
            ["the last sync failed", "the kernel does not hold what was programmed"]
        );
        health.synced(Timestamp::UNIX_EPOCH, now, |_| true);
        assert!(health.report(now).healthy());

        health.ending();
        assert!(!health.report(now).healthy());
        assert_eq!(health.report(now).problems, ["the proxy is about to end"]);
        health.ended();
        assert!(!health.report(now).healthy());
        assert_eq!(health.report(now).problems, ["the engine has ended"]);

        let health = ProxyHealth::new(TIMEOUT);
        health.started(&IpFamily::ALL, Timestamp::UNIX_EPOCH);
        health.on_event(&EngineEvent::SyncRequested);
        let later = now + 2 * TIMEOUT;
        assert!(health.report(now).healthy() && !health.report(later).healthy());
        health.on_event(&EngineEvent::NodeRefused(None));
        assert!(!health.report(now).healthy());
        assert_eq!(health.report(now).problems, ["the configuration does not fit the node"]);
    }

    #[test]
    fn a_family_that_is_left_out_is_late_by_itself() {
        let health = ProxyHealth::new(TIMEOUT);
        health.started(&IpFamily::ALL, Timestamp::UNIX_EPOCH);
        let start = Instant::now();
        let v4_alone = |at| {
            let now = Timestamp::from_second(1_700_000_000).unwrap();
            health.synced(now, at, |family| family == IpFamily::V4);
        };
        v4_alone(start);
        let report = health.report(start);
        assert!(report.healthy() && !report.has_synced, "{report:?}");
        assert_eq!(report.problems, ["IPv6 is left out, since the node refuses its rules"]);
        assert_eq!(report.families[&IpFamily::V6].last_updated, Timestamp::UNIX_EPOCH);

        health.externally_changed();
        v4_alone(start + TIMEOUT / 2);
        let is_healthy = |at| {
            let report = health.report(at);
            [IpFamily::V4, IpFamily::V6].map(|family| report.families[&family].healthy)
        };
        assert_eq!(is_healthy(start), [true, true], "what was programmed was repaired");
        health.synced(Timestamp::UNIX_EPOCH, start, |_| true);
        health.externally_changed();
        v4_alone(start);
        assert_eq!(is_healthy(start), [true, false], "the other was repaired");

        health.synced(Timestamp::UNIX_EPOCH, start, |_| true);
        let report = health.report(start + TIMEOUT);
        assert!(report.healthy() && report.has_synced && report.problems.is_empty(), "{report:?}");
        v4_alone(start);
        health.sync_requested(start + TIMEOUT / 2);
        v4_alone(start + TIMEOUT / 2);
        assert_eq!(is_healthy(start + TIMEOUT), [true, false]);
        let report = health.report(start + TIMEOUT);
        assert!(report.has_synced && report.works(), "what was programmed stays");
        health.sync_requested(start);
        assert!(!health.report(start + TIMEOUT).works(), "changes of the other wait");
        health.synced(Timestamp::UNIX_EPOCH, start, |_| false);
        assert!(!health.report(start + TIMEOUT).works(), "nothing is programmed");
        v4_alone(start);
        assert!(health.report(start + TIMEOUT).works());
        health.ending();
        assert!(!health.report(start).works());
    }

    #[test]
    fn starting_again_keeps_what_is_known() {
        let health = ProxyHealth::new(TIMEOUT);
        let start = Instant::now();
        health.started(&[IpFamily::V4], Timestamp::UNIX_EPOCH);
        health.sync_requested(start);
        health.started(&[IpFamily::V4], Timestamp::now());
        assert!(!health.report(start + TIMEOUT).healthy());
    }
}
