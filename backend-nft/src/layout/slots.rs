//! The slots of a pool: how many there are, how a rule selects one, and which endpoint is in each.
//!
//! When endpoints are added and removed, the others keep their slots where possible, so that a
//! commit holds the changed endpoints and not all that come after them. A restart takes the slots
//! over as the kernel has them. The slots of a hash follow from the pool alone ([`maglev::table`]),
//! so that all nodes agree.

use std::{cmp::Ordering, net::SocketAddr, sync::Arc};

use switchyard_core::{
    maglev,
    model::LbAlgorithm,
    state::{Pool, PoolKind, ResolvedServicePort},
};
use switchyard_kernel::nftables::{Selector, SlotChoice};

/// The seed of hashes. Without one, the kernel would choose one at random, and nodes would
/// disagree.
const SEED: u32 = 0x5357_5944;

/// The sizes of tables, which are prime numbers, each with the largest number of endpoints. In
/// these, an endpoint that leaves moves less than 2 % of the slots of others. A table takes as many
/// elements for each frontend; most clients move when a pool gets a table of another size.
const TABLES: [(usize, u32); 3] = [(6, 1_021), (20, 4_093), (MOST_HASHED, 16_381)];

/// The most endpoints that connections are spread over by a hash: each has ten slots at least.
pub(crate) const MOST_HASHED: usize = 1_638;

/// Weights are exact up to this sum, or up to [`SLOTS_EACH`] for each endpoint, if that is more.
const MOST_SLOTS: u64 = 1_024;

/// The number of slots for each endpoint up to which weights are exact.
const SLOTS_EACH: u64 = 10;

/// A way to select a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Method {
    /// At random.
    Random,
    /// One slot after the other. The counter belongs to a rule, so that the rule must be a Service
    /// port's own.
    InTurn,
    /// By a hash of the client's address.
    SourceHash,
    /// By a hash of the client's address and port.
    Maglev,
}

impl Method {
    /// The method of an algorithm. Others than these four are not among the backend's capabilities.
    pub(crate) fn of(lb_algorithm: LbAlgorithm) -> Self {
        match lb_algorithm {
            LbAlgorithm::RoundRobin => Self::InTurn,
            LbAlgorithm::SourceHash => Self::SourceHash,
            LbAlgorithm::Maglev => Self::Maglev,
            _ => Self::Random,
        }
    }

    /// Whether slots are selected by a hash.
    pub(crate) fn is_hash(self) -> bool {
        matches!(self, Self::SourceHash | Self::Maglev)
    }

    /// The part of chains' names that is different for each method.
    pub(crate) fn stem(self) -> &'static str {
        match self {
            Self::Random => "lb",
            Self::InTurn => "rr",
            Self::SourceHash => "sh",
            Self::Maglev => "mg",
        }
    }

    /// The way that a rule selects the slot.
    pub(crate) fn slot_choice(self) -> SlotChoice {
        match self {
            Self::Random => SlotChoice::Random,
            Self::InTurn => SlotChoice::InTurn,
            Self::SourceHash => SlotChoice::Hash { of: vec![Selector::SourceAddress], seed: SEED },
            Self::Maglev => SlotChoice::Hash {
                of: vec![Selector::SourceAddress, Selector::SourcePort],
                seed: SEED,
            },
        }
    }
}

/// The selection of a slot of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Selection {
    pub(crate) method: Method,
    /// The number of slots, at least 1.
    pub(crate) slots: u32,
}

impl Selection {
    /// The selection of a pool that is not empty.
    pub(crate) fn of(lb_algorithm: LbAlgorithm, pool: &Pool) -> Self {
        let method = Method::of(lb_algorithm);
        let slots = if method.is_hash() {
            table_size(pool.len())
        } else {
            shares(pool).map_or(pool.len() as u32, |shares| shares.iter().sum())
        };
        Self { method, slots }
    }
}

/// Returns the number of slots of a table for so many endpoints.
pub(crate) fn table_size(endpoints: usize) -> u32 {
    let fits = TABLES.iter().find(|(most, _)| endpoints <= *most);
    fits.or(TABLES.last()).map_or(0, |(_, slots)| *slots)
}

/// Returns the number of slots of each endpoint, without a hash; `None` if that is one for each.
pub(crate) fn shares(pool: &Pool) -> Option<Vec<u32>> {
    if pool.iter().all(|endpoint| endpoint.weight == 1) {
        return None;
    }
    let sum: u64 = pool.iter().map(|endpoint| u64::from(endpoint.weight)).sum();
    let most = MOST_SLOTS.max(SLOTS_EACH * pool.len() as u64);
    if sum <= most {
        return Some(pool.iter().map(|endpoint| endpoint.weight).collect());
    }
    let share = |weight: u32| (u64::from(weight) * most).saturating_add(sum / 2) / sum;
    Some(pool.iter().map(|endpoint| share(endpoint.weight).max(1) as u32).collect())
}

/// The endpoint in each slot of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Allocation {
    pool: Pool,
    /// The endpoints as indexes into the pool; `None` if each has one slot, in the order of the
    /// pool.
    order: Option<Arc<[u32]>>,
    /// Whether the order depends on earlier pools. If not, it follows from the pool and its
    /// algorithm.
    is_historic: bool,
    /// The number of slots before, if rules of before may select one of them for any frontend.
    earlier: usize,
}

impl Allocation {
    /// The slots of a pool without a past.
    pub(crate) fn natural(pool: &Pool, lb_algorithm: LbAlgorithm) -> Self {
        let order = if pool.is_empty() {
            None
        } else if Method::of(lb_algorithm).is_hash() {
            Some(maglev::table(pool, table_size(pool.len()) as usize).into())
        } else {
            shares(pool).map(|shares| interleaved(&shares).into())
        };
        Self { pool: pool.clone(), order, is_historic: false, earlier: 0 }
    }

    /// Puts the endpoints of `pool` into slots. `before` is the previous order: an endpoint that is
    /// in it keeps its slots where possible. Not so where weights are turns and their number
    /// changes: the rule that counts them is replaced and begins anew, again and again while an
    /// endpoint starts slowly, whose slots would be the last ones.
    pub(crate) fn follow(
        before: impl IntoIterator<Item = SocketAddr, IntoIter: ExactSizeIterator>,
        pool: &Pool,
        lb_algorithm: LbAlgorithm,
    ) -> Self {
        const HOLE: u32 = u32::MAX;
        let natural = Self::natural(pool, lb_algorithm);
        let method = Method::of(lb_algorithm);
        if method.is_hash() {
            return natural;
        }
        let before = before.into_iter();
        let is_other_number = before.len() > 0 && before.len() != natural.len();
        if method == Method::InTurn
            && is_other_number
            && natural.len() as u64 <= MOST_SLOTS
            && let Some(order) = &natural.order
        {
            let order = turned(order);
            return Self { order: Some(order), is_historic: true, ..natural };
        }
        // How many slots each endpoint still has to get.
        let mut left = vec![0u32; pool.len()];
        natural.indexes().for_each(|index| left[index as usize] += 1);
        let mut order = vec![HOLE; natural.len()];
        for (slot, address) in order.iter_mut().zip(before) {
            if let Ok(index) = pool.binary_search_by_key(&address, |endpoint| endpoint.address)
                && left[index] > 0
            {
                left[index] -= 1;
                *slot = index as u32;
            }
        }
        let mut unplaced = natural.indexes().filter(|&index| {
            let is_unplaced = left[index as usize] > 0;
            left[index as usize] -= u32::from(is_unplaced);
            is_unplaced
        });
        for slot in order.iter_mut().filter(|slot| **slot == HOLE) {
            // There are as many holes as unplaced slots.
            let Some(index) = unplaced.next() else { break };
            *slot = index;
        }
        drop(unplaced);
        if natural.indexes().eq(order.iter().copied()) {
            return natural;
        }
        Self { order: Some(order.into()), is_historic: true, ..natural }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.as_ref().map_or(self.pool.len(), |order| order.len())
    }

    /// The address in a slot; `None` behind the last slot.
    pub(crate) fn address(&self, slot: usize) -> Option<SocketAddr> {
        let index = match &self.order {
            Some(order) => *order.get(slot)? as usize,
            None => slot,
        };
        self.pool.get(index).map(|endpoint| endpoint.address)
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> + Clone + '_ {
        (0..self.len()).filter_map(|slot| self.address(slot))
    }

    /// The slots behind the last one that rules of before may select, with endpoints that are left.
    pub(crate) fn passing(&self) -> impl Iterator<Item = (usize, SocketAddr)> + '_ {
        (self.len()..self.earlier).zip(self.addresses().cycle())
    }

    fn indexes(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.len()).map(|slot| self.order.as_ref().map_or(slot as u32, |order| order[slot]))
    }
}

/// The allocations of both pools of a Service port.
#[derive(Clone, Debug)]
pub(crate) struct Allocations {
    cluster: Allocation,
    local: Allocation,
}

impl Allocations {
    /// The slots of a Service port without a past.
    pub(crate) fn natural(port: &ResolvedServicePort) -> Self {
        let natural = |kind| Allocation::natural(port.pool(kind), port.lb_algorithm);
        Self { cluster: natural(PoolKind::Cluster), local: natural(PoolKind::Local) }
    }

    /// Puts the endpoints of `port`, which may have chains of its own, into slots: each endpoint
    /// into its slot of `before` if possible.
    pub(crate) fn follow(
        port: &ResolvedServicePort,
        has_chains: bool,
        mut before: impl FnMut(PoolKind) -> Vec<SocketAddr>,
    ) -> Self {
        let mut follow = |kind| {
            let before = before(kind);
            let earlier = if has_chains { before.len() } else { 0 };
            Allocation { earlier, ..Allocation::follow(before, port.pool(kind), port.lb_algorithm) }
        };
        Self { cluster: follow(PoolKind::Cluster), local: follow(PoolKind::Local) }
    }

    pub(crate) fn get(&self, kind: PoolKind) -> &Allocation {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }

    /// Whether one of them depends on earlier pools.
    pub(crate) fn is_historic(&self) -> bool {
        self.cluster.is_historic || self.local.is_historic
    }
}

/// Returns an order in which the slots of each endpoint are as far apart as they can be: endpoints
/// that take turns should not take several at a time.
fn interleaved(shares: &[u32]) -> Box<[u32]> {
    // The slot k of n is at (2k + 1) / 2n of the way.
    let places = shares.iter().enumerate().flat_map(|(index, &share)| {
        (0..share).map(move |k| (2 * u64::from(k) + 1, u64::from(share), index as u32))
    });
    let mut places: Vec<(u64, u64, u32)> = places.collect();
    places.sort_unstable_by(|(a, of_a, i), (b, of_b, j)| match (a * of_b).cmp(&(b * of_a)) {
        Ordering::Equal => i.cmp(j),
        unequal => unequal,
    });
    places.into_iter().map(|(_, _, index)| index).collect()
}

/// Returns an order that begins elsewhere, by the golden ratio: for numbers of slots that follow
/// each other, the beginnings are far apart.
fn turned(order: &[u32]) -> Arc<[u32]> {
    let slots = order.len() as u64;
    let part = (slots * 0x9e37_79b9) & u64::from(u32::MAX);
    let (end, begin) = order.split_at(((part * slots) >> 32) as usize);
    [begin, end].concat().into()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use switchyard_core::state::Endpoint;

    use super::*;

    /// A pool of ports with weights.
    fn pool(ports: impl IntoIterator<Item = (u16, u32)>) -> Pool {
        let sorted: BTreeMap<u16, u32> = ports.into_iter().collect();
        sorted
            .into_iter()
            .map(|(port, weight)| Endpoint {
                address: ([10, 0, 0, 1], port).into(),
                is_local: false,
                may_be_local: false,
                weight,
            })
            .collect()
    }

    fn ports(slots: &Allocation) -> Vec<u16> {
        slots.addresses().map(|address| address.port()).collect()
    }

    fn follow(before: &[u16], wanted: &[(u16, u32)]) -> Vec<u16> {
        let before = before.iter().map(|&port| ([10, 0, 0, 1], port).into());
        let pool = pool(wanted.iter().copied());
        ports(&Allocation::follow(before, &pool, LbAlgorithm::Random))
    }

    #[test]
    fn endpoints_that_stay_keep_their_slots() {
        let follow = |before: &[u16], wanted: &[u16]| {
            let wanted: Vec<(u16, u32)> = wanted.iter().map(|&port| (port, 1)).collect();
            follow(before, &wanted)
        };
        assert_eq!(follow(&[], &[3, 1, 2]), [1, 2, 3]);
        assert_eq!(follow(&[1, 2, 3], &[0, 1, 2, 3]), [1, 2, 3, 0]);
        assert_eq!(follow(&[1, 2, 3], &[2, 3]), [3, 2]);
        assert_eq!(follow(&[1, 2, 3], &[1, 9, 3]), [1, 9, 3]);
        assert_eq!(follow(&[1, 1, 1], &[1, 2]), [1, 2]);
        assert!(follow(&[1, 2], &[]).is_empty());
    }

    #[test]
    fn weights_are_numbers_of_slots() {
        assert_eq!(follow(&[], &[(1, 3), (2, 1)]), [1, 1, 2, 1]);
        // One more slot for one endpoint is one more slot.
        assert_eq!(follow(&[1, 1, 2, 1], &[(1, 3), (2, 2)]), [1, 1, 2, 1, 2]);
        assert_eq!(follow(&[1, 1, 2, 1], &[(1, 1), (2, 1)]), [1, 2]);
        assert_eq!(follow(&[1, 2], &[(1, 3), (2, 1)]), [1, 2, 1, 1]);
    }

    #[test]
    fn hashed_slots_have_no_past() {
        let pool = pool([(1, 1), (2, 1)]);
        let before = [2, 1, 1].map(|port| ([10, 0, 0, 1], port).into());
        for lb_algorithm in [LbAlgorithm::SourceHash, LbAlgorithm::Maglev] {
            let slots = Allocation::follow(before, &pool, lb_algorithm);
            assert_eq!(ports(&slots), ports(&Allocation::natural(&pool, lb_algorithm)));
            assert_eq!(slots.len(), 1021);
            assert!(!slots.is_historic);
        }
    }

    #[test]
    fn slots_are_among_the_capabilities() {
        let slots = |lb_algorithm, weights: &[u32]| {
            crate::PROFILE.capabilities.slots(lb_algorithm, &weighted(weights))
        };
        assert_eq!(slots(LbAlgorithm::Random, &[3, 1]), 4);
        assert_eq!(slots(LbAlgorithm::Maglev, &[1; 7]), 4_093);
        let capabilities = crate::PROFILE.capabilities;
        assert!(
            capabilities.has_endpoints_at_each_address(),
            "as the keys of maps have the address"
        );
    }

    /// Each step of a slow start replaces the rule, whose counter begins anew.
    #[test]
    fn an_endpoint_that_starts_slowly_gets_its_turns() {
        let mut slots = Allocation::natural(&weighted(&[1; 3]), LbAlgorithm::RoundRobin);
        let mut turns = [0; 4];
        for weight in 1..10 {
            let before: Vec<_> = slots.addresses().collect();
            let pool = weighted(&[10, 10, 10, weight]);
            slots = Allocation::follow(before, &pool, LbAlgorithm::RoundRobin);
            ports(&slots)[..8].iter().for_each(|port| turns[usize::from(*port) - 1] += 1);
            // A resync, or a restart, leaves the slots as they are.
            let known: Vec<_> = slots.addresses().collect();
            let again = Allocation::follow(known.clone(), &pool, LbAlgorithm::RoundRobin);
            assert_eq!(again.addresses().collect::<Vec<_>>(), known);
        }
        assert!((9..=11).contains(&turns[3]), "{turns:?}");
        assert!(turns[..3].iter().all(|turns| (18..=23).contains(turns)), "{turns:?}");
    }

    #[test]
    fn turns_are_far_apart() {
        assert_eq!(*interleaved(&[5, 1]), [0, 0, 0, 1, 0, 0]);
        assert_eq!(*interleaved(&[2, 2]), [0, 1, 0, 1]);
    }

    proptest! {
        #![proptest_config(switchyard_core::testing::proptest_config(256))]

        #[test]
        fn every_endpoint_has_its_slots_and_few_move(
            before in proptest::collection::vec(0u16..40, 0..60),
            wanted in proptest::collection::btree_map(0u16..40, 1u32..5, 0..40),
        ) {
            let wanted: Vec<(u16, u32)> = wanted.into_iter().collect();
            let after = follow(&before, &wanted);
            let shares: BTreeMap<u16, usize> =
                wanted.iter().map(|&(port, weight)| (port, weight as usize)).collect();
            let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
            after.iter().for_each(|port| *counts.entry(*port).or_default() += 1);
            prop_assert_eq!(&counts, &shares);
            // An endpoint that was the first in a slot that still exists is still in it.
            let mut seen = BTreeSet::new();
            for (slot, port) in before.iter().enumerate().take(after.len()) {
                if seen.insert(port) && shares.contains_key(port) {
                    prop_assert_eq!(after[slot], *port);
                }
            }
        }
    }

    fn weighted(weights: &[u32]) -> Pool {
        pool((1..).zip(weights.iter().copied()))
    }

    #[test]
    fn weights_are_shares() {
        assert_eq!(shares(&weighted(&[1, 1, 1])), None);
        assert_eq!(shares(&weighted(&[7, 3])), Some(vec![7, 3]));
        assert_eq!(shares(&weighted(&[1023, 1])), Some(vec![1023, 1]));
        assert_eq!(Selection::of(LbAlgorithm::RoundRobin, &weighted(&[7, 3])).slots, 10);
        assert_eq!(Selection::of(LbAlgorithm::Random, &weighted(&[1, 1, 1])).slots, 3);
    }

    #[test]
    fn large_weights_are_rounded_and_none_is_lost() {
        assert_eq!(shares(&weighted(&[40_000, 20_000, 1])), Some(vec![683, 341, 1]));
        let largest = shares(&weighted(&[u32::MAX, 1])).unwrap();
        assert_eq!(largest, [1024, 1]);
        // Ten for each endpoint, as endpoints that start slowly need.
        let mut weights = vec![10; 500];
        weights[0] = 1;
        assert_eq!(shares(&weighted(&weights)), Some(weights));
    }

    #[test]
    fn tables_are_sized_by_pool() {
        let sizes = [1, 6, 7, 20, 21, 1_638, 5_000].map(table_size);
        assert_eq!(sizes, [1_021, 1_021, 4_093, 4_093, 16_381, 16_381, 16_381]);
        assert_eq!(Selection::of(LbAlgorithm::Maglev, &weighted(&[9, 1])).slots, 1_021);
    }
}
