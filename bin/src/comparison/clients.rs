//! Clients that are remembered (ClientIP affinity): whether a connection is remembered as its
//! Service asks for, and whether the next one of the client goes back to the same endpoint.
//!
//! Nothing is known of the layout: a memory is whatever a connection leaves in a set that packets
//! change, and is tried with all packets that look for their clients in that set.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    rc::Rc,
};

use switchyard_core::{model::ServicePortId, state::PoolKind};
use switchyard_nft_ruleset::bytecode::{Domain, End, Fate, Memory, Packets, Program};

use super::objects::{Asked, Class};

/// An endpoint's address, as a number, and port.
type Address = (u128, u16);

/// The pool of a Service port.
type PoolId<'a> = (&'a ServicePortId, PoolKind);

/// The report of clients that are remembered at an endpoint, with their fate if that is not what is
/// asked for.
type See<'s> = dyn FnMut(&Class<'_>, &Packets, Option<&Fate>, Address) + 's;

/// Packets whose clients are looked up in some sets.
struct Seen<'a> {
    class: Rc<Class<'a>>,
    packets: Packets,
    sets: BTreeSet<Box<str>>,
}

/// The clients of all classes of packets.
#[derive(Default)]
pub struct Clients<'a> {
    seen: Vec<Seen<'a>>,
    /// The memories by their sets, with the endpoint and whose connections leave them.
    written: HashMap<Box<str>, BTreeSet<(Memory, Address, &'a ServicePortId)>>,
    /// The memories that connections to each endpoint of a pool are to leave, at every frontend.
    of_pools: HashMap<PoolId<'a>, BTreeMap<Address, BTreeSet<Memory>>>,
}

impl<'a> Clients<'a> {
    /// Whether first connections with a fate are remembered as the class asks for.
    pub fn are_remembered(&mut self, class: &Class<'a>, fate: &Fate) -> bool {
        let Some((id, affinity)) = class.affinity() else {
            return fate.remembered.is_empty();
        };
        let known = self.of_pools.entry(id).or_default();
        fate.ends.keys().all(|end| {
            let (Some(address), Some(memories)) = (to(end), fate.remembered.get(end)) else {
                return false;
            };
            let is_right = |memory: &Memory| {
                memory.endpoint.is_none_or(|endpoint| endpoint == address)
                    && u128::from(memory.milliseconds) == affinity.as_millis()
                    && memory.renews
            };
            memories.iter().all(is_right)
                && memories.iter().any(|memory| fate.asked.contains(&memory.set))
                && known.entry(address).or_insert_with(|| memories.clone()) == memories
        })
    }

    /// Takes note of the fate of first connections.
    pub fn see(&mut self, class: &Rc<Class<'a>>, packets: Packets, fate: Fate) {
        if let Some(port) = class.port {
            for (end, memories) in &fate.remembered {
                let Some(address) = to(end) else { continue };
                for memory in memories {
                    let of_set = self.written.entry(memory.set.clone()).or_default();
                    of_set.insert((memory.clone(), address, &port.id));
                }
            }
        }
        if !fate.asked.is_empty() {
            self.seen.push(Seen { class: class.clone(), packets, sets: fate.asked });
        }
    }

    /// Compares the fates of clients that are remembered.
    pub fn compare(&self, program: &Program, local: &Domain, see: &mut See<'_>) {
        for Seen { class, packets, sets } in &self.seen {
            for set in sets {
                for (memory, address, is_own) in self.memories(program, class, set) {
                    for (packets, fate) in program.fates_of(packets, local, &memory) {
                        let is_right = self.is_right(class, &fate, address, is_own);
                        see(class, &packets, (!is_right).then_some(&fate), address);
                    }
                }
            }
        }
    }

    /// The memories that a set may have, with their endpoints, and whether these are of the class's
    /// own Service port.
    fn memories(
        &self,
        program: &Program,
        class: &Class<'a>,
        set: &str,
    ) -> BTreeSet<(Memory, Address, bool)> {
        let written = self.written.get(set).into_iter().flatten();
        let is_own = |id: &ServicePortId| class.port.is_some_and(|port| port.id == *id);
        let mut memories: BTreeSet<_> =
            written.map(|(memory, at, id)| (memory.clone(), *at, is_own(id))).collect();
        // As before the timeout was changed: nothing is written any more.
        if memories.is_empty()
            && program.has_endpoints(set)
            && let Some((id, _)) = class.affinity()
            && let Some(known) = self.of_pools.get(&id)
        {
            let earlier = known.keys().map(|address| {
                let memory = Memory {
                    set: set.into(),
                    endpoint: Some(*address),
                    milliseconds: 0,
                    renews: true,
                };
                (memory, *address, true)
            });
            memories.extend(earlier);
        }
        memories
    }

    /// Whether clients that are remembered go back, and stay remembered. Clients of other Services
    /// must be led as if they were not remembered.
    fn is_right(&self, class: &Class<'a>, fate: &Fate, address: Address, is_own: bool) -> bool {
        let Asked::Pool { ends, .. } = &class.asked else { return class.asked.is(fate) };
        let end = ends.iter().find(|end| to(end) == Some(address));
        let (Some(end), Some((id, _)), true) = (end, class.affinity(), is_own) else {
            return class.asked.is(fate);
        };
        let known = self.of_pools.get(&id).and_then(|known| known.get(&address));
        fate.ends.len() == 1
            && fate.ends.contains_key(end)
            && known.is_some_and(|known| fate.remembered.get(end) == Some(known))
    }
}

/// The endpoint of an end.
fn to(end: &End) -> Option<Address> {
    match end {
        End::Passed { to, .. } => *to,
        _ => None,
    }
}
