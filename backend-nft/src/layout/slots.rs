//! The slots of endpoints within a pool.
//!
//! A pool of N endpoints fills the slots 0 to N-1. When endpoints are added and removed, the others
//! keep their slots where possible, so that a commit holds the changed endpoints and not all that come
//! after them. A restart takes the slots over as the kernel has them.

use std::net::SocketAddr;

use switchyard_core::state::Pool;

/// The order of a pool's endpoints in its slots; `None` if the slots have the order of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots(Option<Box<[u32]>>);

impl Slots {
    /// Puts the endpoints of `pool` into slots. `before` is the previous order: an endpoint that is in
    /// it keeps its slot where possible.
    pub(crate) fn assign(before: impl Iterator<Item = SocketAddr>, pool: &Pool) -> Self {
        const HOLE: u32 = u32::MAX;
        let mut order = vec![HOLE; pool.len()];
        let mut placed = vec![false; pool.len()];
        for (slot, address) in order.iter_mut().zip(before) {
            if let Ok(index) = pool.binary_search_by_key(&address, |endpoint| endpoint.address)
                && !placed[index]
            {
                placed[index] = true;
                *slot = index as u32;
            }
        }
        let mut unplaced = (0..pool.len()).filter(|&index| !placed[index]);
        for slot in order.iter_mut().filter(|slot| **slot == HOLE) {
            // The number of holes is the number of endpoints without a slot.
            let Some(index) = unplaced.next() else { break };
            *slot = index as u32;
        }
        let is_own = order.iter().enumerate().all(|(slot, &index)| slot == index as usize);
        Self((!is_own).then(|| order.into()))
    }

    /// The address in a slot; `None` behind the last slot.
    pub(crate) fn address(&self, pool: &Pool, slot: usize) -> Option<SocketAddr> {
        let index = match &self.0 {
            Some(order) => *order.get(slot)? as usize,
            None => slot,
        };
        pool.get(index).map(|endpoint| endpoint.address)
    }

    /// The addresses, slot by slot.
    pub(crate) fn addresses<'a>(&'a self, pool: &'a Pool) -> impl Iterator<Item = SocketAddr> + 'a {
        (0..pool.len()).filter_map(|slot| self.address(pool, slot))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use switchyard_core::state::Endpoint;

    use super::*;

    fn pool(ports: impl IntoIterator<Item = u16>) -> Pool {
        let sorted: BTreeSet<u16> = ports.into_iter().collect();
        sorted
            .into_iter()
            .map(|port| Endpoint {
                address: ([10, 0, 0, 1], port).into(),
                is_local: false,
                may_be_local: false,
                weight: 1,
            })
            .collect()
    }

    fn ports(slots: &Slots, pool: &Pool) -> Vec<u16> {
        slots.addresses(pool).map(|address| address.port()).collect()
    }

    fn follow(before: &[u16], wanted: &[u16]) -> Vec<u16> {
        let before = before.iter().map(|&port| ([10, 0, 0, 1], port).into());
        let pool = pool(wanted.iter().copied());
        ports(&Slots::assign(before, &pool), &pool)
    }

    #[test]
    fn endpoints_that_stay_keep_their_slots() {
        assert_eq!(follow(&[], &[3, 1, 2]), [1, 2, 3]);
        assert_eq!(follow(&[1, 2, 3], &[0, 1, 2, 3]), [1, 2, 3, 0]);
        assert_eq!(follow(&[1, 2, 3], &[2, 3]), [3, 2]);
        assert_eq!(follow(&[1, 2, 3], &[1, 9, 3]), [1, 9, 3]);
        assert_eq!(follow(&[1, 1, 1], &[1, 2]), [1, 2]);
        assert!(follow(&[1, 2], &[]).is_empty());
    }

    proptest! {
        #![proptest_config(switchyard_core::testing::proptest_config(256))]

        #[test]
        fn every_endpoint_has_one_slot_and_few_move(
            before in proptest::collection::vec(0u16..40, 0..40),
            wanted in proptest::collection::btree_set(0u16..40, 0..40),
        ) {
            let wanted: Vec<u16> = wanted.into_iter().collect();
            let after = follow(&before, &wanted);
            let mut sorted = after.clone();
            sorted.sort_unstable();
            prop_assert_eq!(&sorted, &wanted);
            // An endpoint that was the first in a slot that still exists is still in it.
            let mut seen = BTreeSet::new();
            for (slot, port) in before.iter().enumerate().take(wanted.len()) {
                if seen.insert(port) && wanted.contains(port) {
                    prop_assert_eq!(after[slot], *port);
                }
            }
        }
    }
}
