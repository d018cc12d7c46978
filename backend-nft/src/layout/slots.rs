//! The slots of endpoints within a pool.
//!
//! A pool of N endpoints fills the slots 0 to N-1; with weights, an endpoint has several slots. When
//! endpoints are added and removed, the others keep their slots where possible, so that a commit holds the
//! changed endpoints and not all that come after them. A restart takes the slots over as the kernel has
//! them. Only slots that are drawn by a hash follow from the pool alone, so that all nodes agree.

use std::{borrow::Cow, cmp::Ordering, net::SocketAddr};

use switchyard_core::{maglev, model::LbAlgorithm, state::Pool};

use super::drawing::{Method, shares, table_size};

/// The endpoint in each slot, as an index into the pool.
#[derive(Clone, Debug)]
pub(crate) enum Slots<'a> {
    /// One slot for each endpoint, in the order of the pool.
    PoolOrder,
    /// Another order that follows from the pool and its algorithm.
    Natural(Box<[u32]>),
    /// An order that depends on earlier pools.
    Historic(Cow<'a, [u32]>),
}

/// What has to be remembered of [`Slots`]: the order, unless it follows from the pool and its algorithm.
pub(crate) type RememberedSlots = Option<Box<[u32]>>;

impl<'a> Slots<'a> {
    /// The slots of `pool` that were remembered.
    pub(crate) fn recall(
        remembered: &'a RememberedSlots,
        pool: &Pool,
        lb_algorithm: LbAlgorithm,
    ) -> Self {
        match remembered {
            Some(order) => Self::Historic(Cow::Borrowed(order)),
            None => Self::natural(pool, lb_algorithm),
        }
    }

    /// Returns what has to be remembered.
    pub(crate) fn into_remembered(self) -> RememberedSlots {
        match self {
            Self::PoolOrder | Self::Natural(_) => None,
            Self::Historic(order) => Some(order.into_owned().into()),
        }
    }

    /// The slots of a pool without a past.
    pub(crate) fn natural(pool: &Pool, lb_algorithm: LbAlgorithm) -> Self {
        if pool.is_empty() {
            Self::PoolOrder
        } else if Method::of(lb_algorithm).is_hash() {
            Self::Natural(maglev::table(pool, table_size(pool.len()) as usize))
        } else {
            shares(pool).map_or(Self::PoolOrder, |shares| Self::Natural(interleaved(&shares)))
        }
    }

    /// Puts the endpoints of `pool` into slots. `before` is the previous order: an endpoint that is in
    /// it keeps its slots where possible.
    pub(crate) fn assign(
        before: impl Iterator<Item = SocketAddr>,
        pool: &Pool,
        lb_algorithm: LbAlgorithm,
    ) -> Self {
        const HOLE: u32 = u32::MAX;
        let natural = Self::natural(pool, lb_algorithm);
        if Method::of(lb_algorithm).is_hash() {
            return natural;
        }
        // How many slots each endpoint still has to get.
        let mut left = vec![0u32; pool.len()];
        natural.indexes(pool).for_each(|index| left[index as usize] += 1);
        let mut order = vec![HOLE; natural.len(pool)];
        for (slot, address) in order.iter_mut().zip(before) {
            if let Ok(index) = pool.binary_search_by_key(&address, |endpoint| endpoint.address)
                && left[index] > 0
            {
                left[index] -= 1;
                *slot = index as u32;
            }
        }
        let mut unplaced = natural.indexes(pool).filter(|&index| {
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
        if natural.indexes(pool).eq(order.iter().copied()) {
            natural
        } else {
            Self::Historic(order.into())
        }
    }

    /// The number of slots.
    pub(crate) fn len(&self, pool: &Pool) -> usize {
        self.list().map_or(pool.len(), <[u32]>::len)
    }

    /// The address in a slot; `None` behind the last slot.
    pub(crate) fn address(&self, pool: &Pool, slot: usize) -> Option<SocketAddr> {
        let index = match self.list() {
            Some(order) => *order.get(slot)? as usize,
            None => slot,
        };
        pool.get(index).map(|endpoint| endpoint.address)
    }

    /// The addresses, slot by slot.
    pub(crate) fn addresses<'s>(&'s self, pool: &'s Pool) -> impl Iterator<Item = SocketAddr> + 's {
        (0..self.len(pool)).filter_map(|slot| self.address(pool, slot))
    }

    /// The order; `None` if it is that of the pool.
    fn list(&self) -> Option<&[u32]> {
        match self {
            Self::PoolOrder => None,
            Self::Natural(order) => Some(order),
            Self::Historic(order) => Some(order),
        }
    }

    fn indexes(&self, pool: &Pool) -> impl Iterator<Item = u32> + '_ {
        let list = self.list();
        (0..self.len(pool)).map(move |slot| list.map_or(slot as u32, |list| list[slot]))
    }
}

/// Returns an order in which the slots of each endpoint are as far apart as they can be: endpoints that
/// take turns should not take several at a time.
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

    fn ports(slots: &Slots<'_>, pool: &Pool) -> Vec<u16> {
        slots.addresses(pool).map(|address| address.port()).collect()
    }

    fn follow(before: &[u16], wanted: &[(u16, u32)]) -> Vec<u16> {
        let before = before.iter().map(|&port| ([10, 0, 0, 1], port).into());
        let pool = pool(wanted.iter().copied());
        ports(&Slots::assign(before, &pool, LbAlgorithm::Random), &pool)
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
            let slots = Slots::assign(before.into_iter(), &pool, lb_algorithm);
            assert_eq!(ports(&slots, &pool), ports(&Slots::natural(&pool, lb_algorithm), &pool));
            assert_eq!(slots.len(&pool), 1021);
            assert_eq!(slots.into_remembered(), None);
        }
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

        #[test]
        fn what_is_remembered_is_recalled(
            before in proptest::collection::vec(0u16..10, 0..20),
            wanted in proptest::collection::btree_map(0u16..10, 1u32..3, 0..10),
        ) {
            let pool = pool(wanted);
            let before = before.into_iter().map(|port| ([10, 0, 0, 1], port).into());
            let slots = Slots::assign(before, &pool, LbAlgorithm::RoundRobin);
            let addresses = ports(&slots, &pool);
            let remembered = slots.into_remembered();
            let recalled = Slots::recall(&remembered, &pool, LbAlgorithm::RoundRobin);
            prop_assert_eq!(ports(&recalled, &pool), addresses);
        }
    }
}
