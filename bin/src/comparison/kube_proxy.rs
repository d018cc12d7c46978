//! The tables of genuine kube-proxy in nftables mode, which have the names of ours: the differences
//! that `docs/semantics.md` lists, by name.

use std::collections::BTreeSet;

use switchyard_core::{model::LbAlgorithm, state::Pool};
use switchyard_kernel::nftables::bytecode::{Choice, End, Fate, PacketField, Program};

use super::{
    asked::{Asked, Class},
    objects::Objects,
};

const HAIRPIN: &str = "kube-proxy masquerades endpoints only whose slice names the node";
const ALGORITHM: &str = "kube-proxy draws at random, whatever the algorithm";
const WEIGHTS: &str = "kube-proxy knows no weights";
const LOCALHOST: &str = "kube-proxy serves node ports at loopback addresses from release 1.37 on";

/// Whether the table is kube-proxy's: it has the map of node ports in which kube-proxy alone looks
/// chains up, and not the one in which this program looks endpoints up.
pub fn owns(program: &Program) -> bool {
    program.has_set("service-nodeports") && !program.has_set("tcp-endpoints")
}

/// Returns the reason why kube-proxy means to do this otherwise, where clients are remembered as
/// asked for or not; `None` if there is none.
pub fn reason(
    class: &Class<'_>,
    objects: &Objects<'_>,
    fate: &Fate,
    are_remembered: bool,
) -> Option<&'static str> {
    let is_untouched = || fate.ends.keys().eq([&End::Passed { to: None, masqueraded: false }]);
    if class.port.is_some() && objects.is_loopback(&class.packets) && is_untouched() {
        return Some(LOCALHOST);
    }
    let id = &class.port?.id;
    let drained = fate.ends.keys().filter(|end| objects.is_drained(id, end)).count();
    let Asked::Pool { pool, algorithm, ends, .. } = &class.asked else {
        // All endpoints have weight 0, and no class of nothing remembers clients.
        let is_remembered = class.port.is_some_and(|port| port.affinity.is_some());
        let is_meant = drained == fate.ends.len() && (is_remembered || are_remembered);
        return is_meant.then_some(WEIGHTS);
    };
    if fate.ends.len() != ends.len() + drained || !are_remembered {
        return None;
    }
    let client = class.packets.get(PacketField::Source).single();
    let mut is_hairpin = false;
    for (endpoint, asked) in pool.iter().zip(ends) {
        if fate.ends.contains_key(asked) {
            continue;
        }
        let End::Passed { to: Some(to), masqueraded: true } = asked else { return None };
        let kept = End::Passed { to: Some(*to), masqueraded: false };
        if !fate.ends.contains_key(&kept) || client != Some(to.0) || endpoint.is_local {
            return None;
        }
        is_hairpin = true;
    }
    let all = fate.ends.len();
    let is_even = fate
        .ends
        .values()
        .all(|(part, whole)| u128::from(*part) * all as u128 == u128::from(*whole));
    let is_random = all == 1 || fate.choices == BTreeSet::from([Choice::Random]);
    match is_even && is_random {
        true if is_weighted(pool) || drained > 0 => Some(WEIGHTS),
        true if !matches!(algorithm, LbAlgorithm::Random) && all > 1 => Some(ALGORITHM),
        true => is_hairpin.then_some(HAIRPIN),
        false => None,
    }
}

fn is_weighted(pool: &Pool) -> bool {
    pool.windows(2).any(|pair| pair[0].weight != pair[1].weight)
}
