//! The parts that the kernel refuses: Service ports, or all of a family, that are left out of what
//! is programmed until they are tried again. So everything else is programmed in the meantime.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Problem, Tracker, known_problems::KnownProblems, service_key};
use crate::{
    model::{
        Backoff, HashSet, IpFamily, PerFamily, Protocol, ServiceName, ServicePortId,
        ServicePortName,
    },
    objects::{Kind, ObjectKey},
    parsed::problem::{Problems, Reason},
    proxier::{DegradedPort, ProxierError},
    state::ResolvedServicePort,
};

/// The delay before the first further attempt; each delay is twice the one before.
const FIRST: Duration = Duration::from_millis(200);
/// The longest delay between two attempts, unless so many Service ports are left out that each
/// would be tried again before all others were.
const LONGEST: Duration = Duration::from_secs(60);
/// The most Service ports that are tried again in one sync: each may take another attempt of the
/// sync. The number doubles with each sync that programs all of them.
const MOST_TRIED: usize = 8;
/// The pause after a sync that was refused Service ports, before others are tried again, for each
/// Service port that is left out.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest pause, unless syncs take long.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The pause is at least so many times as long as a sync that tried Service ports or a family in
/// vain: where syncs take seconds, everything else would wait for them all the time.
#[cfg(feature = "runner")]
const PAUSE_SHARE: u32 = 9;
/// The longest pause of a family because attempts take long.
#[cfg(feature = "runner")]
const LONGEST_FAMILY_PAUSE: Duration = Duration::from_secs(300);

/// The refused parts of the state.
#[derive(Debug)]
pub(super) struct Withheld {
    ports: BTreeMap<ServicePortId, RefusedPort>,
    /// The Service ports that are left out, by the time at which they are due.
    waiting: PerFamily<BTreeSet<(Instant, ServicePortId)>>,
    /// The Service ports that are tried, none of a family that is left out.
    tried: BTreeSet<ServicePortId>,
    /// The number of Service ports that may be tried at once.
    most_tried: usize,
    /// No Service port is tried before this.
    not_before: Option<Instant>,
    /// The time when the Service ports were tried.
    tried_at: Option<Instant>,
    /// Whether the kernel has refused a Service port since the last sync that succeeded.
    is_refused: bool,
    families: PerFamily<Option<RefusedFamily>>,
    problems: KnownProblems,
    /// Whether the last sync failed. No Service port is tried before one succeeds. Families are:
    /// one that is left out may be well again, and the failure be the other's.
    has_failed: bool,
}

#[derive(Debug)]
struct RefusedPort {
    reason: String,
    /// The reason as it was reported.
    reported: String,
    failures: u32,
    /// The time at which the Service port is tried again, and the Service port as it should be;
    /// `None` while it is tried.
    waits: Option<(Instant, Arc<ResolvedServicePort>)>,
}

#[derive(Debug)]
struct RefusedFamily {
    /// The reason as it was reported.
    reported: String,
    /// The Services that had endpoints on this node when the family was programmed last.
    served: HashSet<ServiceName>,
    failures: u32,
    /// The time of the last refusal.
    #[cfg_attr(not(feature = "runner"), expect(dead_code, reason = "the runner knows how long"))]
    refused_at: Instant,
    /// The time at which the family is tried again; `None` while it is tried.
    due: Option<Instant>,
    /// The time at which the family is tried again unless that is hastened.
    unhastened: Instant,
    /// The time from which the next attempt may be hastened: once in a delay, so that a program
    /// that changes the tables all the time does not keep up a fast pace.
    hastened_from: Instant,
}

impl RefusedFamily {
    fn again(
        known: Option<Self>,
        reason: &str,
        served: impl FnOnce() -> HashSet<ServiceName>,
        now: Instant,
    ) -> Self {
        let failures = known.as_ref().map_or(0, |known| known.failures.saturating_add(1));
        let unhastened = now + Backoff { first: FIRST, longest: LONGEST }.delay(failures);
        let hastened_from = known.as_ref().map_or(now, |known| known.unhastened);
        let (known, served) = match known {
            Some(known) => (Some(known.reported), known.served),
            None => (None, served()),
        };
        let reported = reported(known, reason);
        let (refused_at, due) = (now, Some(unhastened));
        Self { reported, served, failures, refused_at, due, unhastened, hastened_from }
    }
}

/// The text to report a reason with: the known one, if the two differ in numbers alone. Numbers of
/// lines and handles differ at each attempt, and would make it another problem.
fn reported(known: Option<String>, reason: &str) -> String {
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    known.filter(|known| words(known) == words(reason)).unwrap_or_else(|| reason.to_owned())
}

impl Default for Withheld {
    fn default() -> Self {
        Self {
            ports: BTreeMap::new(),
            waiting: PerFamily::default(),
            tried: BTreeSet::new(),
            most_tried: MOST_TRIED,
            not_before: None,
            tried_at: None,
            is_refused: false,
            families: PerFamily::default(),
            problems: KnownProblems::default(),
            has_failed: false,
        }
    }
}

impl Withheld {
    /// The refusals that were reported.
    pub(super) fn problems(&self) -> &KnownProblems {
        &self.problems
    }

    /// Returns the place of a Service port that is left out.
    pub(super) fn value_mut(
        &mut self,
        id: &ServicePortId,
    ) -> Option<&mut Arc<ResolvedServicePort>> {
        self.ports.get_mut(id)?.waits.as_mut().map(|(_, value)| value)
    }

    /// A Service port that is left out.
    pub(super) fn value(&self, id: &ServicePortId) -> Option<&Arc<ResolvedServicePort>> {
        self.ports.get(id)?.waits.as_ref().map(|(_, value)| value)
    }

    /// Why a Service port is left out.
    pub(super) fn reason(&self, id: &ServicePortId) -> Option<&str> {
        self.ports.get(id).filter(|port| port.waits.is_some()).map(|port| &*port.reason)
    }

    /// The Service ports that are left out, with the reasons.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&ServicePortId, &str)> {
        let waiting = self.ports.iter().filter(|(_, port)| port.waits.is_some());
        waiting.map(|(id, port)| (id, &*port.reason))
    }

    /// Why a family is left out.
    pub(super) fn family_reason(&self, family: IpFamily) -> Option<&str> {
        let refused = self.families.get(family).as_ref();
        refused.filter(|refused| refused.due.is_some()).map(|refused| &*refused.reported)
    }

    /// Whether the endpoints of a Service on this node may lack rules in a family: a port of the
    /// Service is left out, or the family, and had none when it was programmed last.
    pub(super) fn may_lack_rules(&self, service: &ServiceName, family: IpFamily) -> bool {
        let left_out = self.families.get(family).as_ref().filter(|refused| refused.due.is_some());
        left_out.is_some_and(|refused| !refused.served.contains(service))
            || self
                .of_service(service)
                .any(|(id, port)| id.family == family && port.waits.is_some())
    }

    /// The refused ports of a Service.
    fn of_service<'a>(
        &'a self,
        service: &'a ServiceName,
    ) -> impl Iterator<Item = (&'a ServicePortId, &'a RefusedPort)> {
        let name = ServicePortName {
            service: service.clone(),
            port: Arc::default(),
            protocol: Protocol::Tcp,
        };
        let first = ServicePortId { name, family: IpFamily::V4 };
        self.ports.range(first..).take_while(|(id, _)| id.name.service == *service)
    }

    /// Forgets a Service port that is gone, or is programmed.
    pub(super) fn forget(&mut self, id: &ServicePortId) {
        if self.take(id).is_some() && self.of_service(&id.name.service).next().is_none() {
            self.problems.replace(&service_key(&id.name.service), Vec::new());
        }
    }

    fn take(&mut self, id: &ServicePortId) -> Option<RefusedPort> {
        let port = self.ports.remove(id)?;
        match port.waits {
            Some((due, _)) => self.waiting.get_mut(id.family).remove(&(due, id.clone())),
            None => self.tried.remove(id),
        };
        Some(port)
    }

    /// Has few Service ports tried at once, and none for a while, as one was refused.
    fn pause(&mut self, now: Instant) {
        self.most_tried = MOST_TRIED;
        // A pause under way is not prolonged: Service ports that are new and refused, one after the
        // other, would hold up all others.
        if self.not_before.is_none_or(|at| at <= now) {
            self.not_before = Some(now + (PAUSE * self.count()).min(LONGEST_PAUSE));
        }
    }

    /// Has more Service ports tried at once, since all were taken that were tried: what the kernel
    /// refused them for may be over.
    fn hasten_ports(&mut self) {
        self.most_tried = self.most_tried.saturating_mul(2);
        self.not_before = None;
        let Some(now) = self.tried_at else { return };
        for family in IpFamily::ALL {
            let waiting = self.waiting.get_mut(family);
            let next: Vec<_> = waiting.iter().take(self.most_tried).cloned().collect();
            for (due, id) in next {
                waiting.remove(&(due, id.clone()));
                let due = due.min(now);
                if let Some((at, _)) = self.ports.get_mut(&id).and_then(|port| port.waits.as_mut())
                {
                    *at = due;
                }
                waiting.insert((due, id));
            }
        }
    }

    /// The number of Service ports that are left out in each family.
    pub(super) fn counts(&self) -> PerFamily<usize> {
        PerFamily { v4: self.waiting.v4.len(), v6: self.waiting.v6.len() }
    }

    /// The number of Service ports that are left out.
    fn count(&self) -> u32 {
        let PerFamily { v4, v6 } = self.counts();
        u32::try_from(v4 + v6).unwrap_or(u32::MAX)
    }

    /// The Service ports that are left out, in order of their ids.
    pub(super) fn degraded(&self) -> impl Iterator<Item = DegradedPort> + '_ {
        self.ports
            .iter()
            .filter(|(_, refused)| refused.waits.is_some())
            .map(|(id, refused)| DegradedPort { port: id.clone(), reason: refused.reason.clone() })
    }

    /// Returns the family of the Service port that is tried next, and when; `None` if none may be
    /// tried.
    fn next_port(&self) -> Option<(Instant, IpFamily)> {
        if self.has_failed || self.tried.len() >= self.most_tried {
            return None;
        }
        // Of a family that is left out, nothing is programmed.
        let families = IpFamily::ALL.into_iter().filter(|family| {
            self.families.get(*family).as_ref().is_none_or(|family| family.due.is_none())
        });
        let first = |family| Some((self.waiting.get(family).first()?.0, family));
        let (due, family) = families.filter_map(first).min()?;
        Some((self.not_before.map_or(due, |not_before| due.max(not_before)), family))
    }

    /// The time at which the next part is due to be tried again.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        let families = self.families.v4.iter().chain(&self.families.v6);
        let ports = self.next_port().map(|(due, _)| due);
        ports.into_iter().chain(families.filter_map(|refused| refused.due)).min()
    }
}

impl Tracker {
    /// Leaves out of the state what a backend names as refused, until the part is tried again:
    /// after 0.2 s, and with growing delays of at most a minute, or more if hundreds of Service
    /// ports are refused ([`Tracker::advance`]). Returns new problems; `None` if the error names
    /// nothing that can be left out, so that the sync has failed.
    pub fn withhold(&mut self, error: &ProxierError, now: Instant) -> Option<Vec<Problem>> {
        let parts = error.refused_parts()?;
        let mut is_less = false;
        let mut services = BTreeSet::new();
        for DegradedPort { port: id, reason } in &parts.ports {
            if self.leave_out(id, Some(reason), now) {
                services.insert(&id.name.service);
            }
        }
        if !services.is_empty() {
            is_less = true;
            self.withheld.is_refused = true;
            self.withheld.pause(now);
        }
        let mut problems = Vec::new();
        for service in services {
            self.update_health_check(service);
            let mut found = Problems::with(service_key(service), Reason::Refused);
            for (id, refused) in self.withheld.of_service(service) {
                found.add(
                    "spec.ports",
                    format_args!(
                        "the node refuses the {} port {}: {}; the port is left out and tried again",
                        id.family, id.name, refused.reported
                    ),
                );
            }
            let new = self.withheld.problems.replace(&service_key(service), found.into_vec());
            problems.extend(new);
        }
        for family in IpFamily::ALL {
            if let Some(reason) = parts.families.get(family) {
                is_less |= self.leave_out_family(family, reason, now);
            }
        }
        problems.extend(self.update_family_problems());
        is_less.then_some(problems)
    }

    /// Has the Node's problems be the refusals of families, with those that are tried. Returns the
    /// new ones.
    fn update_family_problems(&mut self) -> Vec<Problem> {
        let key = ObjectKey::of_cluster(Kind::Node, &self.config.node_name);
        let mut found = Problems::with(key.clone(), Reason::Refused);
        for family in IpFamily::ALL {
            if let Some(RefusedFamily { reported, .. }) = self.withheld.families.get(family) {
                found.add(
                    "",
                    format_args!(
                        "the node refuses all of {family}: {reported}; {family} is left as it is \
                         and tried again"
                    ),
                );
            }
        }
        self.withheld.problems.replace(&key, found.into_vec())
    }

    /// Leaves a Service port out of the state. Returns false if the state does not have the port.
    /// Without a reason, the port that is tried is no more refused than before.
    fn leave_out(&mut self, id: &ServicePortId, reason: Option<&str>, now: Instant) -> bool {
        let Some(value) = self.state.service_ports.remove(id) else { return false };
        self.unsynced.note_port(id.clone(), Some(value.clone()));
        let known = self.withheld.take(id);
        // The last of so many is not reached before this, and new ones come before.
        let longest = LONGEST.max(LONGEST_PAUSE * self.withheld.count() / MOST_TRIED as u32);
        let (port, due) = match (known, reason) {
            (Some(known), None) => (known, now),
            (known, reason) => {
                let reason = reason.unwrap_or_default();
                let failures = known.as_ref().map_or(0, |known| known.failures.saturating_add(1));
                let reported = reported(known.map(|known| known.reported), reason);
                let reason = reason.to_owned();
                let port = RefusedPort { reason, reported, failures, waits: None };
                (port, now + Backoff { first: FIRST, longest }.delay(failures))
            }
        };
        self.withheld.waiting.get_mut(id.family).insert((due, id.clone()));
        let port = RefusedPort { waits: Some((due, value)), ..port };
        self.withheld.ports.insert(id.clone(), port);
        true
    }

    /// Leaves a family out; returns false if it is left out already.
    fn leave_out_family(&mut self, family: IpFamily, reason: &str, now: Instant) -> bool {
        if !self.unsynced.set_programmed(family, false) {
            return false;
        }
        // Neither programmed nor refused: they are tried after the family.
        self.put_off_tried(family, now);
        let refused = self.withheld.families.get_mut(family).take();
        let served = || {
            let before = self.transition().before();
            let checks = before.into_iter().flat_map(|before| before.health_checks());
            let served = checks.filter(|(_, check)| *check.local_endpoints.get(family) > Some(0));
            served.map(|(service, _)| service.clone()).collect()
        };
        let again = RefusedFamily::again(refused, reason, served, now);
        *self.withheld.families.get_mut(family) = Some(again);
        self.update_health_checks();
        true
    }

    fn update_health_checks(&mut self) {
        let services: Vec<_> = self.state.health_checks.keys().cloned().collect();
        services.iter().for_each(|service| self.update_health_check(service));
    }

    /// Counts the endpoints of the Services of these ports, once for each Service.
    fn update_health_checks_of(&mut self, ports: &[ServicePortId]) {
        let services: BTreeSet<_> = ports.iter().map(|id| &id.name.service).collect();
        services.into_iter().for_each(|service| self.update_health_check(service));
    }

    /// Leaves out what is tried of a family, as due as before.
    pub(crate) fn put_off_tried(&mut self, family: IpFamily, now: Instant) {
        let tried = self.withheld.tried.iter().filter(|id| id.family == family);
        let tried: Vec<_> = tried.cloned().collect();
        tried.iter().for_each(|id| _ = self.leave_out(id, None, now));
        self.update_health_checks_of(&tried);
    }

    /// Has families that are left out tried again now, if that was not hastened just before: the
    /// reason may be gone, as when another program has changed their rules.
    pub fn hasten_families(&mut self, now: Instant) {
        for refused in [&mut self.withheld.families.v4, &mut self.withheld.families.v6] {
            if let Some(refused) = refused
                && let Some(due) = &mut refused.due
            {
                *due = (*due).min(now.max(refused.hastened_from));
            }
        }
    }

    /// Whether the state has Service ports that were refused before.
    #[cfg(feature = "runner")]
    pub(crate) fn tries_refused(&self) -> bool {
        !self.withheld.tried.is_empty()
    }

    /// Notes when a sync began and ended in which something was refused, and whether it tried
    /// Service ports that were refused before.
    #[cfg(feature = "runner")]
    pub(crate) fn tried_for(&mut self, begun: Instant, ended: Instant, has_ports: bool) {
        let pause = (ended - begun).saturating_mul(PAUSE_SHARE);
        if has_ports {
            self.withheld.not_before = self.withheld.not_before.max(Some(ended + pause));
        }
        let until = ended + pause.min(LONGEST_FAMILY_PAUSE);
        for refused in [&mut self.withheld.families.v4, &mut self.withheld.families.v6] {
            if let Some(refused) = refused.as_mut().filter(|refused| refused.failures > 0)
                && let Some(due) = refused.due.as_mut().filter(|_| refused.refused_at >= begun)
            {
                *due = (*due).max(until);
                refused.unhastened = *due;
            }
        }
    }

    /// Puts back what is due to be tried again.
    pub(crate) fn try_withheld(&mut self, now: Instant) {
        for family in IpFamily::ALL {
            let refused = self.withheld.families.get_mut(family);
            if let Some(refused) = refused
                && refused.due.is_some_and(|due| due <= now)
            {
                refused.due = None;
                self.unsynced.set_programmed(family, true);
                self.update_health_checks();
            }
        }
        let mut tried = Vec::new();
        while let Some((due, family)) = self.withheld.next_port()
            && due <= now
            && let Some((_, id)) = self.withheld.waiting.get_mut(family).pop_first()
        {
            let waits = self.withheld.ports.get_mut(&id).and_then(|refused| refused.waits.take());
            let Some((_, value)) = waits else { continue };
            let before = self.state.service_ports.insert(id.clone(), value);
            self.unsynced.note_port(id.clone(), before);
            tried.push(id.clone());
            self.withheld.tried.insert(id);
            self.withheld.tried_at = Some(now);
        }
        self.update_health_checks_of(&tried);
    }

    /// Notes that a sync has failed, for a reason that names no part. What was tried may be the
    /// reason, and is left out again.
    #[cfg(feature = "runner")]
    pub(super) fn fail_tried(&mut self, now: Instant) {
        self.withheld.has_failed = true;
        for family in IpFamily::ALL {
            let refused = self.withheld.families.get(family).as_ref();
            if let Some(refused) = refused.filter(|refused| refused.due.is_none()) {
                let reason = refused.reported.clone();
                self.leave_out_family(family, &reason, now);
            }
        }
        let tried: Vec<_> = self.withheld.tried.iter().cloned().collect();
        for id in &tried {
            let reason = self.withheld.ports.get(id).map(|refused| refused.reason.clone());
            self.leave_out(id, reason.as_deref(), now);
        }
        self.update_health_checks_of(&tried);
        self.withheld.pause(now);
    }

    /// Notes that what was tried is programmed.
    pub(super) fn forget_tried(&mut self) {
        self.withheld.has_failed = false;
        let tried = mem::take(&mut self.withheld.tried);
        for id in &tried {
            tracing::info!(service_port = %id, "Service port no longer refused by the node");
            self.withheld.forget(id);
        }
        if !mem::take(&mut self.withheld.is_refused) && !tried.is_empty() {
            self.withheld.hasten_ports();
        }
        for family in IpFamily::ALL {
            let is_tried = |refused: &mut RefusedFamily| refused.due.is_none();
            if self.withheld.families.get_mut(family).take_if(is_tried).is_some() {
                tracing::info!(%family, "IP family no longer refused by the node");
            }
        }
        self.update_family_problems();
    }
}
