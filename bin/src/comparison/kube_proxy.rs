//! The tables of genuine kube-proxy in nftables mode, which have the names of ours: the differences
//! that `docs/semantics.md` lists, by name.

use std::collections::BTreeSet;

use switchyard_core::{model::LbAlgorithm, state::Pool};
use switchyard_nft_ruleset::bytecode::{Choice, End, Fate, PacketField, Program};

use super::objects::{Asked, Class, Objects};

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
    let Asked::Pool { pool, algorithm, ends, .. } = &class.asked else { return None };
    if fate.ends.len() != ends.len() || !are_remembered {
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
    let is_even = fate.ends.values().all(|(part, whole)| part * ends.len() as u64 == *whole);
    let is_random = ends.len() == 1 || fate.choices == BTreeSet::from([Choice::Random]);
    match is_even && is_random {
        true if is_weighted(pool) => Some(WEIGHTS),
        true if !matches!(algorithm, LbAlgorithm::Random) && ends.len() > 1 => Some(ALGORITHM),
        true => is_hairpin.then_some(HAIRPIN),
        false => None,
    }
}

fn is_weighted(pool: &Pool) -> bool {
    pool.iter().any(|endpoint| endpoint.weight != pool[0].weight)
}
