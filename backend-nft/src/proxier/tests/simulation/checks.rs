//! The view of the judge on the tables.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use switchyard_core::{
    model::ServicePortId,
    state::{ResolvedServicePort, State},
    testing::simulation::{self, Happenings},
};
use switchyard_kernel::nftables::{
    Family, Table,
    testing::{Commit, Fate, Packet, Ruleset},
};

use super::{
    super::judge::elsewhere,
    world::{Fault, World},
};
use crate::layout::names::KUBE_PROXY;

impl simulation::World for World {
    type Fault = Fault;
    type Tables = Ruleset;
    const HAS_OTHER_WAYS: bool = true;
    const FAULTS_LEAVE_DRIFT: bool = false;

    fn happenings(&mut self) -> &mut Happenings<Fault> {
        &mut self.happened
    }

    fn take_history(&mut self) -> Vec<Ruleset> {
        self.kernel.take_history()
    }

    fn fates(states: &[Ruleset], packet: &Packet, local: &BTreeSet<IpAddr>) -> BTreeSet<Fate> {
        let next = states.iter().skip(1).chain(states.last());
        let commits =
            states.iter().zip(next).map(|(before, after)| Commit::new(before, after, local));
        commits.flat_map(|commit| commit.fates(packet)).collect()
    }

    fn elsewhere(state: &State, packet: &Packet, local: &BTreeSet<IpAddr>) -> Fate {
        elsewhere(state, packet, local)
    }

    /// A Service port that is the same in both states, and whose elements differ.
    fn bystander(history: &[Ruleset], states: Option<(&State, &State)>) -> Option<String> {
        let (before, after) = states?;
        if before.node != after.node {
            return None;
        }
        let names = |state: &State| {
            let mut ports: HashMap<String, Vec<(ServicePortId, Arc<ResolvedServicePort>)>> =
                HashMap::new();
            for (id, port) in &state.service_ports {
                ports.entry(id.name.to_string()).or_default().push((id.clone(), port.clone()));
            }
            ports.values_mut().for_each(|ports| ports.sort_by_key(|(id, _)| id.family));
            ports
        };
        let (before, after) = (names(before), names(after));
        let own = |state: &Ruleset| {
            let mut elements: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for table in Family::ALL.map(|family| Table::new(family, KUBE_PROXY)) {
                for set in state.sets(&table) {
                    for dump in state.elements(&table, set).into_iter().flatten() {
                        if let Some(comment) = &dump.element.comment {
                            let known = elements.entry(comment.to_string()).or_default();
                            known.push(format!("{table} {set} {:?}", dump.element));
                        }
                    }
                }
            }
            elements
        };
        let (first, last) = (own(history.first()?), own(history.last()?));
        let mut same = before.iter().filter(|(name, ports)| after.get(*name) == Some(*ports));
        let (name, _) = same.find(|(name, _)| first.get(*name) != last.get(*name))?;
        Some(format!(
            "{name} did not change, but {:?} became {:?}",
            first.get(name),
            last.get(name)
        ))
    }

    fn note_started(&mut self) {
        self.commits = 0;
    }

    fn note_synced(&mut self, state: &State, is_part: bool) -> Option<String> {
        if is_part {
            self.happened.seen.insert("a sync came before the end of a list");
        }
        self.is_in_list = is_part;
        self.served = state.service_ports.keys().map(|id| id.name.service.clone()).collect();
        let served = &self.served;
        let gone = self.removals.extract_if(|service, _| !served.contains(service));
        let gone: Vec<_> = gone.collect();
        // The sync that goes on, the longest pause, and the next sync.
        let limit = 3 * self.sync_takes + Duration::from_secs(1);
        let mut late = None;
        for (service, (since, was_in_list)) in gone {
            if was_in_list && is_part {
                self.happened.seen.insert("a removal came before the end of a list");
            }
            let took = since.elapsed();
            if took > limit && !self.happened.has_met_faults && !self.happened.is_damaged {
                late = Some(format!("{service} is served for {took:?} after its removal"));
            }
        }
        late
    }
}
