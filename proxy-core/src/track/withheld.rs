//! What the kernel refuses: Service ports, or all of a family, that are left out of what is programmed
//! until they are tried again. So everything else is programmed meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Problem, Tracker, known_problems::KnownProblems, service_key};
use crate::{
    model::{IpFamily, PerFamily, ServiceName, ServicePortId},
    objects::{Kind, ObjectKey},
    parsed::problem::Problems,
    proxier::{ProxierError, Skipped},
    state::ResolvedServicePort,
};

/// The delay before the first further attempt; each delay is twice the one before.
const FIRST: Duration = Duration::from_millis(200);
/// The longest delay between two attempts.
const LONGEST: Duration = Duration::from_secs(60);
/// The most Service ports that are tried again in one sync: each may take another attempt of the sync.
const MOST_TRIED: usize = 8;

/// The refused parts of the state.
#[derive(Debug, Default)]
pub(super) struct Withheld {
    ports: BTreeMap<ServicePortId, Refused>,
    families: PerFamily<Option<Refused>>,
    problems: KnownProblems,
    /// Whether the last sync failed. Nothing is tried before one succeeds, so that each attempt has fewer
    /// parts.
    has_failed: bool,
}

#[derive(Debug)]
struct Refused {
    reason: String,
    failures: u32,
    /// When the part is tried again; `None` while it is tried.
    due: Option<Instant>,
    /// The Service port as it should be; `None` for a family, and while the Service port is tried.
    value: Option<Arc<ResolvedServicePort>>,
}

impl Refused {
    fn again(known: Option<Self>, reason: &str, now: Instant) -> Self {
        let failures = known.as_ref().map_or(0, |known| known.failures.saturating_add(1));
        let delay = FIRST.saturating_mul(2u32.saturating_pow(failures)).min(LONGEST);
        // Numbers of lines and handles differ at each attempt, and would make it another problem.
        let reason = match known {
            Some(known) if words(&known.reason).eq(words(reason)) => known.reason,
            _ => reason.to_owned(),
        };
        Self { reason, failures, due: Some(now + delay), value: None }
    }
}

/// The characters of a text that are no digits.
fn words(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().filter(|c| !c.is_ascii_digit())
}

impl Withheld {
    /// Returns the place of a Service port that is left out.
    pub(super) fn value_mut(
        &mut self,
        id: &ServicePortId,
    ) -> Option<&mut Option<Arc<ResolvedServicePort>>> {
        self.ports.get_mut(id).map(|refused| &mut refused.value).filter(|value| value.is_some())
    }

    /// Whether a port of a Service is left out in a family.
    pub(super) fn has(&self, service: &ServiceName, family: IpFamily) -> bool {
        let is_of = |id: &ServicePortId| id.name.service == *service && id.family == family;
        self.ports.iter().any(|(id, refused)| is_of(id) && refused.value.is_some())
    }

    /// Forgets a Service port that is gone, or is programmed.
    pub(super) fn forget(&mut self, id: &ServicePortId) {
        let is_of_service = |other: &ServicePortId| other.name.service == id.name.service;
        if self.ports.remove(id).is_some() && !self.ports.keys().any(is_of_service) {
            self.problems.replace(&service_key(&id.name.service), Vec::new());
        }
    }

    /// Notes that a sync has failed.
    #[cfg(feature = "runner")]
    pub(super) fn sync_failed(&mut self) {
        self.has_failed = true;
    }

    /// Whether a part is tried in the next sync.
    #[cfg(feature = "runner")]
    pub(super) fn is_trying(&self) -> bool {
        let families = self.families.v4.iter().chain(&self.families.v6);
        self.ports.values().chain(families).any(|refused| refused.due.is_none())
    }

    /// How many more Service ports may be tried in the next sync.
    fn room(&self) -> usize {
        if self.has_failed {
            return 0;
        }
        let tried = self.ports.values().filter(|refused| refused.due.is_none()).count();
        MOST_TRIED.saturating_sub(tried)
    }

    /// How many Service ports are left out in each family.
    pub(super) fn counts(&self) -> PerFamily<usize> {
        let mut counts = PerFamily::default();
        self.skipped().for_each(|skipped| *counts.get_mut(skipped.port.family) += 1);
        counts
    }

    /// The Service ports that are left out, in order of their ids.
    pub(super) fn skipped(&self) -> impl Iterator<Item = Skipped> + '_ {
        self.ports
            .iter()
            .filter(|(_, refused)| refused.value.is_some())
            .map(|(id, refused)| Skipped { port: id.clone(), reason: refused.reason.clone() })
    }

    /// When the next part is due to be tried again.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        if self.has_failed {
            return None;
        }
        let families = self.families.v4.iter().chain(&self.families.v6);
        let ports = self.ports.values().filter(|_| self.room() > 0);
        ports.chain(families).filter_map(|refused| refused.due).min()
    }
}

impl Tracker {
    /// Leaves out of the state what a backend names as refused, until the part is tried again: after
    /// 0.2 s, and with growing delays of at most a minute ([`Tracker::advance`]). Returns new problems;
    /// `None` if the error names nothing that can be left out, so that the sync has failed.
    pub fn withhold(&mut self, error: &ProxierError, now: Instant) -> Option<Vec<Problem>> {
        let parts = error.refused_parts()?;
        let mut is_less = false;
        let mut problems = Vec::new();
        let mut found: BTreeMap<&ServiceName, Problems> = BTreeMap::new();
        for Skipped { port: id, reason } in &parts.ports {
            let Some(value) = self.state.service_ports.remove(id) else { continue };
            is_less = true;
            self.unsynced.note_port(id.clone(), Some(value.clone()));
            let known = self.withheld.ports.remove(id);
            let refused = Refused { value: Some(value), ..Refused::again(known, reason, now) };
            self.withheld.ports.insert(id.clone(), refused);
            let service = &id.name.service;
            found.entry(service).or_insert_with(|| Problems::new_refused(service_key(service)));
        }
        for (of_service, refused) in &self.withheld.ports {
            if let Some(found) = found.get_mut(&of_service.name.service) {
                found.add(
                    "spec.ports",
                    format_args!(
                        "the node refuses the {} port {}: {}; the port is left out and tried again",
                        of_service.family, of_service.name, refused.reason
                    ),
                );
            }
        }
        for (service, found) in found {
            self.update_health_check(service);
            let new = self.withheld.problems.replace(&service_key(service), found.into_vec());
            problems.extend(new);
        }
        for family in IpFamily::ALL {
            let Some(reason) = parts.families.get(family) else { continue };
            if !self.unsynced.set_programmed(family, false) {
                continue;
            }
            is_less = true;
            let known = self.withheld.families.get_mut(family);
            *known = Some(Refused::again(known.take(), reason, now));
            let key = self.node_key();
            let mut found = Problems::new_refused(key.clone());
            found.add("", format_args!("the node refuses all of {family}: {reason}; {family} is left as it is and tried again"));
            problems.extend(self.withheld.problems.replace(&key, found.into_vec()));
        }
        is_less.then_some(problems)
    }

    /// Has families that are left out tried again now: another program has changed their rules, and its change
    /// may have been the reason.
    #[cfg(feature = "runner")]
    pub(crate) fn hasten_families(&mut self, now: Instant) {
        for refused in [&mut self.withheld.families.v4, &mut self.withheld.families.v6] {
            if let Some(due) = refused.as_mut().and_then(|refused| refused.due.as_mut()) {
                *due = now.min(*due);
            }
        }
    }

    /// Puts back what is due to be tried again.
    pub(crate) fn try_withheld(&mut self, now: Instant) {
        if self.withheld.has_failed {
            return;
        }
        let is_due = |refused: &Refused| refused.due.is_some_and(|due| due <= now);
        let room = self.withheld.room();
        let ports = self.withheld.ports.iter_mut().filter(|(_, refused)| is_due(refused));
        let mut tried = BTreeSet::new();
        for (id, refused) in ports.take(room) {
            refused.due = None;
            let Some(value) = refused.value.take() else { continue };
            let before = self.state.service_ports.insert(id.clone(), value);
            self.unsynced.note_port(id.clone(), before);
            tried.insert(id.name.service.clone());
        }
        for service in &tried {
            self.update_health_check(service);
        }
        for family in IpFamily::ALL {
            let refused = self.withheld.families.get_mut(family);
            if let Some(refused) = refused.as_mut().filter(|refused| is_due(refused)) {
                refused.due = None;
                self.unsynced.set_programmed(family, true);
            }
        }
    }

    /// Notes that what was tried is programmed.
    pub(super) fn forget_tried(&mut self) {
        self.withheld.has_failed = false;
        let is_tried = |refused: &Refused| refused.due.is_none();
        let tried: Vec<ServicePortId> = self
            .withheld
            .ports
            .iter()
            .filter(|(id, refused)| is_tried(refused) && self.unsynced.is_programmed(id.family))
            .map(|(id, _)| id.clone())
            .collect();
        for id in tried {
            tracing::info!(service_port = %id, "The node takes a Service port that it had refused");
            self.withheld.forget(&id);
        }
        for family in IpFamily::ALL {
            if self.withheld.families.get_mut(family).take_if(|refused| is_tried(refused)).is_some()
            {
                tracing::info!(%family, "The node takes the rules of a family that it had refused");
                let key = self.node_key();
                self.withheld.problems.replace(&key, Vec::new());
            }
        }
    }

    fn node_key(&self) -> ObjectKey {
        ObjectKey {
            kind: Kind::Node,
            namespace: String::new(),
            name: self.config.node_name.clone(),
        }
    }
}
