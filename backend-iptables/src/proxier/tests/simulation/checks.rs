//! The checks of each sync as it ends, and of the tables in the end.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    sync::PoisonError,
};

use switchyard_core::{
    model::{
        IpFamily, PerFamily,
        testing::{Fate, Packet},
    },
    runner::{EngineEvent, Observer},
    state::State,
    testing::{packets_to, service_fates},
};
use switchyard_kernel::xtables::{
    Dump, Table,
    testing::{Tables, fates},
};

use super::{
    Shared,
    world::{World, lock},
};
use crate::{
    IptablesConfig,
    layout::{Context, SharedChain, names::KUBE_PROXY},
    proxier::{Snapshot, full, settings},
};

/// The reports of an engine on its syncs.
#[derive(Default)]
pub(super) struct Reports {
    /// The state that was synced last.
    pub(super) synced: Option<State>,
    problems: Vec<String>,
    /// Whether the last sync programmed both families.
    is_whole: bool,
    /// Whether the last sync failed: the tables may hold what no later state asks for.
    has_failed: bool,
}

impl Reports {
    pub(super) fn assert_right(&self) {
        assert!(self.problems.is_empty(), "{}", self.problems.join("\n"));
    }
}

/// Checks each sync as it ends.
pub(super) struct Judge(
    pub(super) Shared<World>,
    pub(super) Shared<Reports>,
    pub(super) BTreeSet<IpAddr>,
);

impl Observer for Judge {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let mut world = lock(&self.0);
        let mut reports = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            EngineEvent::SyncFailed { error, .. } => {
                reports.has_failed = true;
                world.take_history();
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
                let drift = &outcome.report.drift;
                if !drift.is_none() && world.is_damaged {
                    world.seen.insert("another program's damage was reported as drift");
                } else if !drift.is_none() && !world.has_met_faults {
                    reports.problems.push(format!("drift without damage: {drift:?}"));
                }
                let history = world.take_history();
                let has_failed = std::mem::take(&mut reports.has_failed);
                let before = reports.synced.take();
                // A family may be left out for a while.
                let is_whole = IpFamily::ALL.iter().all(|family| outcome.change.programs(*family));
                let was_whole = std::mem::replace(&mut reports.is_whole, is_whole);
                if !world.is_damaged && is_whole && (was_whole || before.is_none()) {
                    let before = before.as_ref().filter(|_| !has_failed);
                    let wrong = self.follow_packets(&history, before, after, &mut world.seen);
                    reports.problems.extend(wrong);
                }
                reports.problems.extend(bystander(&history));
                if outcome.change.is_resync() && !world.is_unreported {
                    world.is_damaged = false;
                }
                reports.synced = Some(after.clone());
            }
            _ => {}
        }
    }
}

impl Judge {
    /// Follows packets to some of the frontends of two states, through the commits that lead from
    /// one to the other; returns what is wrong.
    fn follow_packets(
        &self,
        history: &[PerFamily<Tables>],
        before: Option<&State>,
        after: &State,
        seen: &mut BTreeSet<&'static str>,
    ) -> Option<String> {
        let ports = before.into_iter().chain([after]).flat_map(|state| &state.service_ports);
        let mut packets: Vec<Packet> = ports.flat_map(|(_, port)| packets_to(port)).collect();
        packets.sort_by_key(|packet| (packet.destination, packet.protocol));
        packets.dedup();
        // Different ones each time.
        let step = packets.len() / 12 + 1;
        for packet in packets.iter().skip(history.len() % step).step_by(step) {
            let family = IpFamily::of(&packet.destination.ip());
            let states: Vec<&Tables> = history.iter().map(|tables| tables.get(family)).collect();
            let of = |tables| fates(&[tables], packet, &self.2);
            let (was, is) = (of(states[0]), of(states[states.len() - 1]));
            let (to, translated, masqueraded) = (packet.destination, false, false);
            let asked = service_fates(after, packet, &self.2, None)
                .unwrap_or_else(|| [Fate::Passed { to, translated, masqueraded }].into());
            if is != asked {
                return Some(format!("{packet:?} has {is:?}, and {asked:?} is asked for"));
            }
            let known = || was.iter().chain(&is);
            let both_serve = known().all(|fate| fate.endpoint().is_some());
            if both_serve && was != is {
                seen.insert("packets of a change went to endpoints all the while");
            }
            let endpoints: BTreeSet<SocketAddr> = known().filter_map(Fate::endpoint).collect();
            for fate in fates(&states, packet, &self.2) {
                let is_known = match fate.endpoint() {
                    Some(endpoint) => endpoints.contains(&endpoint),
                    None => !both_serve,
                };
                if !is_known {
                    return Some(format!("{packet:?} has {fate:?}, before {was:?}, after {is:?}"));
                }
            }
        }
        None
    }
}

/// The rules of another program, if a sync has changed these.
fn bystander(history: &[PerFamily<Tables>]) -> Option<String> {
    let theirs = |tables: &PerFamily<Tables>| -> Vec<String> {
        let of_family = |family| {
            let text = tables.get(family).save();
            let is_theirs = |line: &&str| !line.contains("KUBE-");
            text.lines().filter(is_theirs).map(str::to_owned).collect::<Vec<_>>()
        };
        IpFamily::ALL.into_iter().flat_map(of_family).collect()
    };
    let (first, last) = (theirs(history.first()?), theirs(history.last()?));
    (first != last).then(|| format!("{first:?} of others became {last:?}"))
}

/// Asserts that the tables hold what a sync from nothing puts into empty tables, in each chain that
/// is the backend's, and that the jumps are there.
pub(super) fn assert_as_afresh(tables: &PerFamily<Tables>, state: &State) {
    let settings = settings(&IptablesConfig::default());
    for family in IpFamily::ALL {
        let context = Context { family, settings: &settings, node: &state.node };
        let changes = full::plan(state, &context, &Dump::default(), Snapshot::Everything);
        let mut afresh = Tables::default();
        afresh.restore(&changes.to_text(), |_| {}).expect("a sync from nothing");
        let shared: HashSet<_> = SharedChain::all(&settings)
            .map(|which| (which.table(), which.name(&KUBE_PROXY)))
            .collect();
        let ours = |tables: &Tables| {
            let mut all = Vec::new();
            for table in Table::ALL {
                for (name, rules) in tables.chains(table) {
                    let is_ours = name.starts_with("KUBE-");
                    let mut rules = rules.to_vec();
                    if !is_ours {
                        rules.retain(|rule| rule.contains("KUBE-"));
                    }
                    // The rules of Service ports come in any order.
                    if !is_ours || shared.contains(&(table, name)) {
                        rules.sort_unstable();
                    }
                    if !is_ours || name != crate::layout::names::FIREWALL {
                        all.push((table, name.to_owned(), rules));
                    }
                }
            }
            all
        };
        let (have, want) = (ours(tables.get(family)), ours(&afresh));
        let extra: Vec<_> =
            have.iter().filter(|chain| !want.contains(chain) && chain.1 != "THEIRS").collect();
        let lacking: Vec<_> = want.iter().filter(|chain| !have.contains(chain)).collect();
        assert!(extra.is_empty() && lacking.is_empty(), "{family}: {extra:#?} {lacking:#?}");
    }
}
