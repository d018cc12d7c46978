//! Random numbers, and draws in proportion to weights in constant time.

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

/// Draws indices of a pool in proportion to the weights: the alias method (Vose, "A linear
/// algorithm for generating random numbers with a given distribution", 1991).
pub(super) enum AliasTable {
    /// All weights are the same.
    Even(usize),
    Weighted(Box<[AliasCell]>),
}

/// One of equally likely cells, shared by two indices.
pub(super) struct AliasCell {
    /// The part of 2^32 that the cell's own index has.
    own: u64,
    other: u32,
}

impl AliasTable {
    pub(super) fn new(pool: &[Endpoint]) -> Self {
        if is_even(pool) {
            return Self::Even(pool.len());
        }
        const WHOLE: u64 = 1 << 32;
        let sum: u128 = pool.iter().map(|endpoint| u128::from(endpoint.weight)).sum();
        let count = pool.len() as u128;
        let share = |e: &Endpoint| u128::from(e.weight) * count * u128::from(WHOLE) / sum.max(1);
        let mut shares: Vec<u128> = pool.iter().map(share).collect();
        let mut cells: Vec<AliasCell> =
            (0..pool.len()).map(|i| AliasCell { own: WHOLE, other: i as u32 }).collect();
        let whole = u128::from(WHOLE);
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..pool.len()).partition(|&i| shares[i] < whole);
        while let (Some(less), Some(&more)) = (small.pop(), large.last()) {
            cells[less] = AliasCell { own: shares[less] as u64, other: more as u32 };
            shares[more] -= whole - shares[less];
            if shares[more] < whole {
                large.pop();
                small.push(more);
            }
        }
        Self::Weighted(cells.into())
    }

    /// Draws an index. The pool is not empty.
    pub(super) fn draw(&self) -> usize {
        match self {
            Self::Even(len) => below(*len as u64) as usize,
            Self::Weighted(cells) => {
                let random = number();
                let index = ((u128::from(random) * cells.len() as u128) >> 64) as usize;
                let cell = &cells[index];
                if below(1 << 32) < cell.own { index } else { cell.other as usize }
            }
        }
    }
}

/// Whether all endpoints have the same weight.
pub(super) fn is_even(pool: &[Endpoint]) -> bool {
    pool.windows(2).all(|two| two[0].weight == two[1].weight)
}
