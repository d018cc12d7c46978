//! Questions about what a runner knows.

use std::fmt;

use crate::track::Tracker;

/// A function that reads the tracker, on the engine's thread between two syncs: it must not take
/// long.
pub struct Query(Box<dyn FnOnce(&Tracker) + Send>);

impl Query {
    /// Creates a query, which sends what it reads where `read` chooses.
    pub fn new(read: impl FnOnce(&Tracker) + Send + 'static) -> Self {
        Self(Box::new(read))
    }

    /// Reads the tracker, in place of a runner.
    pub fn answer(self, tracker: &Tracker) {
        (self.0)(tracker);
    }
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Query")
    }
}
