//! Random numbers, and draws in proportion to weights.

use std::{
    cell::Cell,
    hash::{BuildHasher, RandomState},
};

use switchyard_core::state::Endpoint;

use super::hash::mix;

/// Returns a random number, from a generator of the thread (SplitMix64). Good enough to spread
/// load, and no secret.
pub(crate) fn number() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
    }
    STATE.with(|state| {
        let next = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(next);
        mix(next)
    })
}

/// Returns a random number below `end`, which is not 0; the bias is less than `end` in 2^64.
pub(crate) fn below(end: u64) -> u64 {
    ((u128::from(number()) * u128::from(end)) >> 64) as u64
}

/// The sums of the weights up to each endpoint, by which indices are drawn in proportion.
pub(super) struct Sums(Box<[u64]>);

impl Sums {
    pub(super) fn new(pool: &[Endpoint]) -> Self {
        let add = |sum: &mut u64, endpoint: &Endpoint| {
            *sum += u64::from(endpoint.weight);
            Some(*sum)
        };
        Self(pool.iter().scan(0, add).collect())
    }

    /// Draws an index. The pool is not empty.
    pub(super) fn draw(&self) -> usize {
        let number = below(self.0.last().copied().unwrap_or_default());
        self.0.partition_point(|sum| *sum <= number).min(self.0.len() - 1)
    }
}

/// Whether all endpoints have the same weight.
pub(super) fn is_even(pool: &[Endpoint]) -> bool {
    pool.windows(2).all(|two| two[0].weight == two[1].weight)
}
