//! The view of the judge on the tables, and the check of these in the end.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
};

use switchyard_core::{
    model::{
        IpFamily, PerFamily,
        testing::{Fate, Packet},
    },
    state::State,
    testing::simulation::{self, Happenings},
};
use switchyard_kernel::xtables::{
    Dump, Table,
    testing::{Tables, fates},
};

use super::world::{Fault, World};
use crate::{
    IptablesConfig,
    layout::{Context, SharedChain, names::KUBE_PROXY},
    proxier::{Snapshot, full, settings},
};

impl simulation::World for World {
    type Fault = Fault;
    type Tables = PerFamily<Tables>;
    const HAS_OTHER_WAYS: bool = false;
    const FAULTS_LEAVE_DRIFT: bool = true;

    fn happenings(&mut self) -> &mut Happenings<Fault> {
        &mut self.happened
    }

    fn take_history(&mut self) -> Vec<PerFamily<Tables>> {
        let present = vec![self.tables.clone()];
        std::mem::replace(&mut self.history, present)
    }

    fn fates(
        states: &[PerFamily<Tables>],
        packet: &Packet,
        local: &BTreeSet<IpAddr>,
    ) -> BTreeSet<Fate> {
        let family = IpFamily::of(&packet.destination.ip());
        let states: Vec<&Tables> = states.iter().map(|tables| tables.get(family)).collect();
        fates(&states, packet, local)
    }

    fn elsewhere(_: &State, packet: &Packet, _: &BTreeSet<IpAddr>) -> Fate {
        Fate::Passed { to: packet.destination, translated: false, masqueraded: false }
    }

    /// The rules of another program, if a sync has changed these.
    fn bystander(history: &[PerFamily<Tables>], _: Option<(&State, &State)>) -> Option<String> {
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
