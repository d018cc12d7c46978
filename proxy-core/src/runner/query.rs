//! Questions about what a runner knows, and about what the kernel holds of it.

use std::fmt;

use crate::{
    model::ServiceName,
    proxier::{Drift, ProxierError},
    track::Tracker,
};

/// A function that reads the tracker, on the engine's thread between two syncs: it must not take
/// long.
pub struct Query {
    read: Box<dyn FnOnce(&Tracker) + Send>,
    pub(super) is_after_lists: bool,
}

impl Query {
    /// Creates a query, which sends what it reads where `read` chooses. It is answered between two
    /// parts of a long list, of which the rest is not known then.
    pub fn new(read: impl FnOnce(&Tracker) + Send + 'static) -> Self {
        Self { read: Box::new(read), is_after_lists: false }
    }

    /// The same, answered once the lists that arrived before are applied whole.
    pub fn after_lists(self) -> Self {
        Self { is_after_lists: true, ..self }
    }

    /// Reads the tracker, in place of a runner.
    pub fn answer(self, tracker: &Tracker) {
        (self.read)(tracker);
    }
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Query")
    }
}

/// A question whether the kernel holds what was programmed for a Service
/// ([`Proxier::compare`](crate::proxier::Proxier::compare)).
pub struct Audit {
    pub(super) service: ServiceName,
    pub(super) answer: Box<dyn FnOnce(Result<Option<Drift>, ProxierError>) + Send>,
}

impl Audit {
    /// Creates a question, whose answer is given to `answer`: `None` while there are changes to
    /// sync, for some minutes after an answer that took longer than a second, and if the backend
    /// does not compare. A difference has the runner compare and repair everything.
    pub fn new(
        service: ServiceName,
        answer: impl FnOnce(Result<Option<Drift>, ProxierError>) + Send + 'static,
    ) -> Self {
        Self { service, answer: Box::new(answer) }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Audit of {}", self.service)
    }
}
