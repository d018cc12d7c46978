//! The checks of each sync as it ends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use switchyard_core::{
    model::{IpFamily, ServicePortId},
    runner::{EngineEvent, Observer},
    state::{ResolvedServicePort, State},
    testing::packets_to,
};
use switchyard_kernel::nftables::{
    Family, Table,
    testing::{Commit, Fate, Packet, Ruleset},
};

use super::{
    super::judge,
    world::{World, lock},
};
use crate::layout::names::KUBE_PROXY;

/// The reports of an engine on its syncs.
#[derive(Default)]
pub(super) struct Reports {
    /// The states that were synced, the last one last.
    pub(super) synced: Vec<State>,
    pub(super) started: usize,
    pub(super) problems: Vec<String>,
    /// Whether the last sync programmed both families.
    is_whole: bool,
    /// Whether the last sync failed: the kernel may hold what no later state asks for.
    has_failed: bool,
}

/// Checks each sync as it ends.
pub(super) struct Judge(
    pub(super) Arc<Mutex<World>>,
    pub(super) Arc<Mutex<Reports>>,
    pub(super) BTreeSet<IpAddr>,
);

impl Observer for Judge {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let mut world = lock(&self.0);
        let mut reports = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            EngineEvent::SyncStarted(_) => {
                reports.started += 1;
                world.commits = 0;
            }
            EngineEvent::SyncFailed { error, .. } => {
                reports.has_failed = true;
                world.kernel.take_history();
                world.seen.insert("a sync failed");
                if !world.has_crashed && !world.has_met_faults && !world.is_damaged {
                    reports.problems.push(format!("a sync fails without a cause: {error:?}"));
                }
            }
            EngineEvent::LeftOut(_) => {
                world.seen.insert("a refusal left a Service port out");
            }
            EngineEvent::Synced(outcome) => {
                let after = outcome.change.after();
                reports.problems.extend(world.note_synced(after, outcome.is_part));
                if outcome.is_part {
                    world.seen.insert("a sync came before the end of a list");
                }
                let drift = &outcome.report.drift;
                if !drift.is_none() {
                    match world.is_damaged {
                        true => {
                            _ = world.seen.insert("another program's damage was reported as drift")
                        }
                        false => reports.problems.push(format!("drift without damage: {drift:?}")),
                    }
                }
                let history = world.kernel.take_history();
                let before = reports.synced.last().cloned();
                let has_failed = std::mem::take(&mut reports.has_failed);
                let before = before.as_ref().filter(|_| !has_failed);
                // A family may be left out for a while.
                let mut families = IpFamily::ALL.iter();
                let is_whole = families.all(|family| outcome.change.programs(*family));
                let was_whole = std::mem::replace(&mut reports.is_whole, is_whole);
                if !world.is_damaged && is_whole && (was_whole || before.is_none()) {
                    let wrong = self.follow_packets(&history, before, after);
                    reports.problems.extend(wrong);
                    let wrong = before.and_then(|before| bystander(&history, before, after));
                    reports.problems.extend(wrong);
                }
                if outcome.change.is_resync() && !world.is_unreported {
                    world.is_damaged = false;
                }
                reports.synced.push(after.clone());
            }
            _ => {}
        }
    }
}

impl Judge {
    /// Follows packets to some of the frontends of two states, through the commits that lead from
    /// one to the other; returns what is wrong.
    pub(super) fn follow_packets(
        &self,
        history: &[Ruleset],
        before: Option<&State>,
        after: &State,
    ) -> Option<String> {
        let (first, last) = (history.first()?, history.last()?);
        let ports = before.into_iter().chain([after]).flat_map(|state| &state.service_ports);
        let mut packets: Vec<Packet> = ports.flat_map(|(_, port)| packets_to(port)).collect();
        packets.sort_by_key(|packet| (packet.destination, packet.protocol));
        packets.dedup();
        // Different ones each time.
        let step = packets.len() / 12 + 1;
        for packet in packets.iter().skip(history.len() % step).step_by(step) {
            let of = |state| Commit::new(state, state, &self.2).fates(packet);
            let (was, is) = (of(first), of(last));
            let asked = judge::fates(after, packet, &self.2, None);
            if !is.is_subset(&asked) {
                return Some(format!("{packet:?} has {is:?}, and {asked:?} is asked for"));
            }
            let both_serve = was.iter().chain(&is).all(|fate| fate.endpoint().is_some());
            for pair in history.windows(2) {
                let (known_before, known_after) = (of(&pair[0]), of(&pair[1]));
                let known = [&was, &is, &known_before, &known_after];
                let endpoints: BTreeSet<SocketAddr> =
                    known.into_iter().flatten().filter_map(Fate::endpoint).collect();
                for fate in Commit::new(&pair[0], &pair[1], &self.2).fates(packet) {
                    let is_known = match fate.endpoint() {
                        Some(endpoint) => {
                            endpoints.contains(&endpoint) || serves(before, after, endpoint)
                        }
                        None => !both_serve,
                    };
                    if !is_known {
                        return Some(format!(
                            "{packet:?} has {fate:?}, before {was:?}, after {is:?}"
                        ));
                    }
                }
            }
        }
        None
    }
}

/// Whether an endpoint belongs to a Service port of one of the states: another policy may lead
/// clients to it by rules of before.
fn serves(before: Option<&State>, after: &State, endpoint: SocketAddr) -> bool {
    let states = before.into_iter().chain([after]);
    states
        .flat_map(|state| state.service_ports.values())
        .any(|port| port.reachable().any(|known| known.address == endpoint))
}

/// A Service port that is the same in both states, and whose elements differ.
fn bystander(history: &[Ruleset], before: &State, after: &State) -> Option<String> {
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
    Some(format!("{name} did not change, but {:?} became {:?}", first.get(name), last.get(name)))
}
