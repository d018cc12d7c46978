//! Clients that are remembered (ClientIP affinity): whether a connection is remembered as its
//! Service asks for, and whether the next one of the client goes back to the same endpoint.
//!
//! Nothing is known of the layout: a memory is whatever a connection leaves in a set that packets
//! change, and is tried with all packets that look for their clients in that set.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
    rc::Rc,
};

use switchyard_core::{model::ServicePortId, state::PoolKind};
use switchyard_kernel::nftables::bytecode::{Budget, Domain, End, Fate, Memory, Packets, Program};

use super::asked::{Asked, Class};

/// An endpoint's address, as a number, and port.
type Address = (u128, u16);

type PoolId<'a> = (&'a ServicePortId, PoolKind);

/// The most packets of remembered clients that are tried for a Service port, unless it has more
/// classes than a quarter of this: of each class, some are.
const MOST: usize = 4_096;
const MOST_LEAST: usize = 4;

/// The fates of clients that are remembered.
pub struct Tried<'t> {
    pub packets: &'t Packets,
    pub fate: &'t Fate,
    /// The endpoint at which they are remembered; `None` in a set of which nothing is known.
    pub endpoint: Option<Address>,
    /// Whether they go back, and stay remembered.
    pub is_right: bool,
    /// Whether they stay remembered as the objects ask for, wherever they go.
    pub is_remembered: bool,
}

/// The report of clients.
type See<'s> = dyn FnMut(&Class<'_>, Tried<'_>) + 's;

/// A memory, with its endpoint, and whether it is one of the class's own Service port.
type Known = (Memory, Address, bool);

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
            return fate.remembered.is_empty() && fate.asked.is_empty();
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
        // What looks clients up that are not to be remembered is wrong already.
        if !fate.asked.is_empty() && class.affinity().is_some() {
            self.seen.push(Seen { class: class.clone(), packets, sets: fate.asked });
        }
    }

    /// Compares the fates of clients that are remembered. Returns how many packets were left out.
    pub fn compare(
        &self,
        program: &Program,
        local: &Domain,
        budget: &Budget,
        see: &mut See<'_>,
    ) -> usize {
        let mut classes: HashMap<_, usize> = HashMap::new();
        for class in self.seen.iter().filter_map(|seen| seen.class.affinity()) {
            *classes.entry(class.0.0).or_default() += 1;
        }
        let mut left = 0;
        for (number, seen) in self.seen.iter().enumerate() {
            let Some(((port, _), _)) = seen.class.affinity() else { continue };
            let of_port = classes.get(port).copied().unwrap_or(1);
            let most = (MOST / of_port.max(1)).max(MOST_LEAST);
            left += self.compare_class(seen, (most, number), (program, local, budget), see);
        }
        left
    }

    /// Compares one class, of whose memories as many are tried, from this one on.
    fn compare_class(
        &self,
        Seen { class, packets, sets }: &Seen<'a>,
        (most, from): (usize, usize),
        (program, local, budget): (&Program, &Domain, &Budget),
        see: &mut See<'_>,
    ) -> usize {
        let mut try_all = |known: &[&Known]| {
            let memories: Vec<&Memory> = known.iter().map(|(memory, ..)| memory).collect();
            for (packets, fate) in program.fates_of(packets, local, &memories, budget) {
                let is_right = |known: &&Known| self.is_right(class, &fate, known.1, known.2);
                let is_own = |known: &&Known| known.2;
                see(
                    class,
                    Tried {
                        packets: &packets,
                        fate: &fate,
                        endpoint: known.first().map(|(_, address, _)| *address),
                        is_right: known.iter().any(is_right),
                        is_remembered: known.iter().all(is_own) && self.stay(class, &fate),
                    },
                );
            }
        };
        let mut all: Vec<Known> = Vec::new();
        let mut pairs: Vec<[Known; 2]> = Vec::new();
        let mut left = 0;
        for set in sets.iter().cycle().skip(from % sets.len().max(1)).take(sets.len()) {
            let (count, memories) = self.memories(program, class, set);
            if count == 0 {
                // It is unknown whose elements these are.
                try_all(&[]);
            }
            let before = all.len();
            if before >= most {
                left += count;
                continue;
            }
            let each = (most / sets.len()).max(1);
            let step = count.div_ceil(each).max(1);
            all.extend(memories.skip(from % step).step_by(step));
            left += count - (all.len() - before);
            // The client may be in two sets, with different endpoints.
            if let (Some([.., one]), Some([other, ..])) = (all.get(..before), all.get(before..)) {
                pairs.push([one.clone(), other.clone()]);
            }
        }
        all.iter().for_each(|known| try_all(&[known]));
        pairs.iter().for_each(|[first, last]| try_all(&[first, last]));
        left
    }

    /// The memories that a set may have, and their number.
    fn memories<'s>(
        &'s self,
        program: &Program,
        class: &'s Class<'a>,
        set: &'s str,
    ) -> (usize, Box<dyn Iterator<Item = Known> + 's>) {
        if let Some(written) = self.written.get(set) {
            let is_own = |id: &ServicePortId| class.port.is_some_and(|port| port.id == *id);
            let known =
                written.iter().map(move |(memory, at, id)| (memory.clone(), *at, is_own(id)));
            return (written.len(), Box::new(known));
        }
        // As before the timeout was changed: nothing is written any more.
        let of_pool = class.affinity().and_then(|(id, _)| self.of_pools.get(&id));
        match of_pool.filter(|_| program.has_endpoints(set)) {
            Some(known) => {
                let earlier = known.keys().map(move |address| {
                    let memory = Memory {
                        set: set.into(),
                        endpoint: Some(*address),
                        milliseconds: 0,
                        renews: true,
                    };
                    (memory, *address, true)
                });
                (known.len(), Box::new(earlier))
            }
            None => (0, Box::new(iter::empty())),
        }
    }

    /// Whether clients that are remembered go back, and stay remembered. Clients of other Services
    /// must be led as if they were not remembered.
    fn is_right(&self, class: &Class<'a>, fate: &Fate, address: Address, is_own: bool) -> bool {
        let Asked::Pool { ends, .. } = &class.asked else { return class.asked.is(fate) };
        match ends.iter().find(|end| to(end) == Some(address)) {
            Some(end) if is_own => {
                fate.ends.len() == 1 && fate.ends.contains_key(end) && self.stay(class, fate)
            }
            _ => class.asked.is(fate),
        }
    }

    /// Whether clients with this fate are remembered as those whose connection was the first.
    fn stay(&self, class: &Class<'a>, fate: &Fate) -> bool {
        let known = class.affinity().and_then(|(id, _)| self.of_pools.get(&id));
        known.is_some_and(|known| {
            fate.ends.keys().all(|end| {
                let of_endpoint = to(end).and_then(|address| known.get(&address));
                of_endpoint.is_some_and(|of| fate.remembered.get(end) == Some(of))
            })
        })
    }
}

/// The endpoint of an end.
fn to(end: &End) -> Option<Address> {
    match end {
        End::Passed { to, .. } => *to,
        _ => None,
    }
}
