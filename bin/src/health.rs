//! Whether this proxy keeps up, as load balancers and the kubelet ask.
//!
//! A family is healthy unless a sync that was asked for has not succeeded for too long, or somebody
//! else has changed what was programmed and it could not be repaired. The node as a whole may be
//! ineligible for traffic, though the proxy works, because it is going away.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use proxy_core::model::IpFamily;

/// What is known about the health of this proxy. Shared between the engine, which tells it, and
/// the HTTP servers, which ask.
#[derive(Debug)]
pub struct ProxyHealth {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    timeout: Duration,
    families: BTreeMap<IpFamily, Family>,
    node_eligible: bool,
    /// Somebody else may have changed what was programmed, since the last sync.
    disturbed: bool,
    /// Why the last sync failed, if it did.
    failure: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Family {
    last_updated: Timestamp,
    oldest_pending: Option<Instant>,
}

/// The health of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// Each family that has started.
    pub families: BTreeMap<IpFamily, FamilyReport>,
    /// Whether the node may have traffic at all.
    pub node_eligible: bool,
    /// What is wrong, whether it makes a family unhealthy yet or not.
    pub problems: Vec<String>,
}

/// The health of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyReport {
    /// When it was synced last, or else when it started.
    pub last_updated: Timestamp,
    /// Whether it keeps up.
    pub healthy: bool,
}

impl HealthReport {
    /// Whether all families keep up.
    pub fn healthy(&self) -> bool {
        self.families.values().all(|family| family.healthy)
    }

    /// When the family that was synced last was.
    pub fn newest_update(&self) -> Option<Timestamp> {
        self.families.values().map(|family| family.last_updated).max()
    }
}

impl ProxyHealth {
    /// Nothing has started yet. A family will be unhealthy when a request has waited for `timeout`.
    pub fn new(timeout: Duration) -> Self {
        Self { inner: Mutex::new(Inner { timeout, ..Inner::default() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is a single assignment, so a panic elsewhere left nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, a family is unhealthy when a request has waited for so long.
    pub fn set_timeout(&self, timeout: Duration) {
        self.lock().timeout = timeout;
    }

    /// The engine has started to serve these families.
    pub fn started(&self, families: &[IpFamily], now: Timestamp) {
        let mut inner = self.lock();
        for family in families {
            let started = Family { last_updated: now, oldest_pending: None };
            inner.families.entry(*family).or_insert(started);
        }
    }

    /// A sync was asked for.
    pub fn sync_requested(&self, now: Instant) {
        for family in self.lock().families.values_mut() {
            family.oldest_pending.get_or_insert(now);
        }
    }

    /// Somebody else may have changed what was programmed.
    pub fn disturbed(&self) {
        self.lock().disturbed = true;
    }

    /// A sync succeeded.
    pub fn synced(&self, now: Timestamp) {
        let mut inner = self.lock();
        for family in inner.families.values_mut() {
            *family = Family { last_updated: now, oldest_pending: None };
        }
        inner.disturbed = false;
        inner.failure = None;
    }

    /// A sync failed.
    pub fn sync_failed(&self, why: String) {
        self.lock().failure = Some(why);
    }

    /// Whether the node may have traffic: its Node is known, and is there to stay.
    pub fn set_node_eligible(&self, eligible: bool) {
        self.lock().node_eligible = eligible;
    }

    /// The health at `now`.
    pub fn report(&self, now: Instant) -> HealthReport {
        let inner = self.lock();
        // A repair takes milliseconds; only one that fails leaves the kernel wrong for longer.
        let is_wrong = inner.disturbed && inner.failure.is_some();
        let waiting =
            |state: &Family| state.oldest_pending.map(|since| now.saturating_duration_since(since));
        let families = inner.families.iter().map(|(family, state)| {
            let is_late = waiting(state).is_some_and(|waiting| waiting >= inner.timeout);
            let healthy = !is_late && !is_wrong;
            (*family, FamilyReport { last_updated: state.last_updated, healthy })
        });
        let families = families.collect();
        let longest = inner.families.values().filter_map(waiting).max();
        let late = longest.filter(|waiting| *waiting >= inner.timeout);
        let problems = [
            inner.failure.as_ref().map(|why| format!("the last sync failed: {why}")),
            is_wrong.then(|| "the kernel does not hold what was programmed".to_owned()),
            late.map(|late| format!("changes have waited for {} s", late.as_secs())),
        ];
        HealthReport {
            families,
            node_eligible: inner.node_eligible,
            problems: problems.into_iter().flatten().collect(),
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
        health.synced(now);
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
        health.sync_failed("it is asleep".into());
        let report = health.report(now);
        assert!(report.healthy(), "the kernel holds what it held");
        assert_eq!(report.problems, ["the last sync failed: it is asleep"]);
        health.synced(Timestamp::UNIX_EPOCH);
        assert_eq!(health.report(now).problems, [""; 0]);

        health.disturbed();
        assert!(health.report(now).healthy(), "a repair is under way");
        health.sync_failed("it is asleep".into());
        let report = health.report(now);
        assert!(!report.healthy());
        assert_eq!(
            report.problems,
            ["the last sync failed: it is asleep", "the kernel does not hold what was programmed"]
        );
        health.synced(Timestamp::UNIX_EPOCH);
        assert!(health.report(now).healthy());
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

    #[test]
    fn a_node_is_not_eligible_until_it_is_known() {
        let health = ProxyHealth::new(TIMEOUT);
        let eligible = || health.report(Instant::now()).node_eligible;
        assert!(!eligible());
        health.set_node_eligible(true);
        assert!(eligible());
        health.set_node_eligible(false);
        assert!(!eligible());
    }
}
