//! Transactions that are refused on purpose.

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// The transactions that a [`Subject`](super::Subject) refuses, for backends that commit in this
/// process: clones are one counter.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Arc<Mutex<Counter>>);

#[derive(Debug, Default)]
struct Counter {
    refused: Range<usize>,
    transactions: usize,
}

impl Refusals {
    /// Counts from 0, and refuses the transactions in the range.
    pub fn set(&self, refused: Range<usize>) {
        *self.lock() = Counter { refused, transactions: 0 };
    }

    /// Counts a transaction, and returns whether it should be refused.
    pub fn is_next_refused(&self) -> bool {
        let mut counter = self.lock();
        counter.transactions += 1;
        counter.refused.contains(&(counter.transactions - 1))
    }

    /// The number of transactions that were refused.
    pub fn count(&self) -> usize {
        let Counter { refused, transactions } = &*self.lock();
        refused.end.min(*transactions).saturating_sub(refused.start)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counter> {
        // Two numbers are whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
