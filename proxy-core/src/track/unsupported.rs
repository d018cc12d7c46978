//! Service ports that are served otherwise than they ask, because the backend cannot program it.

use std::collections::hash_map::Entry;

use super::{known_problems::KnownProblems, service_key};
use crate::{
    model::{HashMap, PerFamily, ServiceName, ServicePortId},
    parsed::problem::{Problem, Problems, Reason},
    proxier::{DegradedPort, Mode},
    resolve::lb_algorithm::{UnsupportedFeatures, UnsupportedReason},
    transition::Transition,
};

/// The Service ports that are served otherwise than they ask, by Service.
#[derive(Debug, Default)]
pub(super) struct Unsupported {
    ports: HashMap<ServiceName, Box<[DegradedPort]>>,
    counts: PerFamily<usize>,
    problems: KnownProblems,
}

impl Unsupported {
    /// The number of Service ports that there are in each family.
    pub(super) fn counts(&self) -> PerFamily<usize> {
        self.counts
    }

    /// The problems that were reported.
    pub(super) fn problems(&self) -> &KnownProblems {
        &self.problems
    }

    /// Replaces the ports of a Service, which is resolved for a backend of this mode. Returns the
    /// problems that are new.
    pub(super) fn replace(
        &mut self,
        service: &ServiceName,
        ports: &[(ServicePortId, UnsupportedFeatures)],
        mode: Option<Mode>,
    ) -> Vec<Problem> {
        // Hardly any Service asks for what cannot be done.
        if ports.is_empty() && self.ports.is_empty() {
            return Vec::new();
        }
        let mut degraded: Box<[DegradedPort]> = ports
            .iter()
            .map(|(id, unsupported)| {
                let reasons: Vec<String> =
                    unsupported.reasons(mode).map(|reason| reason.to_string()).collect();
                DegradedPort { port: id.clone(), reason: reasons.join("; ") }
            })
            .collect();
        degraded.sort_unstable_by(|a, b| a.port.cmp(&b.port));
        let count = |ports: &[DegradedPort]| {
            PerFamily::from_fn(|family| ports.iter().filter(|s| s.port.family == family).count())
        };
        let now = count(&degraded);
        let before = match self.ports.entry(service.clone()) {
            Entry::Occupied(known) if degraded.is_empty() => Some(known.remove()),
            Entry::Occupied(mut known) => Some(known.insert(degraded)),
            Entry::Vacant(_) if degraded.is_empty() => None,
            Entry::Vacant(vacant) => {
                vacant.insert(degraded);
                None
            }
        };
        let before = before.map(|ports| count(&ports)).unwrap_or_default();
        self.counts = PerFamily::from_fn(|family| {
            self.counts.get(family) + now.get(family) - before.get(family)
        });
        let key = service_key(service);
        let mut problems = Problems::with(key.clone(), Reason::Unsupported);
        // The ports of a Service ask for the same.
        let mut reasons: Vec<UnsupportedReason> = Vec::new();
        for reason in ports.iter().flat_map(|(_, unsupported)| unsupported.reasons(mode)) {
            if !reasons.contains(&reason) {
                let field = match reason.field {
                    "" | "spec.sessionAffinity" => reason.field.to_owned(),
                    annotation => format!("metadata.annotations[{annotation}]"),
                };
                problems.add(field, reason);
                reasons.push(reason);
            }
        }
        self.problems.replace(&key, problems.into_vec())
    }

    /// The Service ports that a sync of this transition covers, in order of their ids.
    pub(super) fn covered_by(&self, transition: &Transition<'_>) -> Vec<DegradedPort> {
        if self.ports.is_empty() {
            return Vec::new();
        }
        if transition.is_resync() {
            let mut all: Vec<DegradedPort> = self.ports.values().flatten().cloned().collect();
            all.sort_unstable_by(|a, b| a.port.cmp(&b.port));
            return all;
        }
        let find = |id: &ServicePortId| {
            let ports = self.ports.get(&id.name.service)?;
            ports.binary_search_by(|degraded| degraded.port.cmp(id)).ok().map(|place| &ports[place])
        };
        transition.ports().filter_map(|change| find(change.id)).cloned().collect()
    }
}
