//! A transition that is put together by hand.

use std::sync::Arc;

use crate::{
    model::ServicePortId,
    state::{NodeState, ResolvedServicePort, State},
    transition::{Transition, Unsynced},
};

/// An owned [`Transition`], for what observes syncs.
#[derive(Debug)]
pub struct OwnedTransition {
    after: State,
    unsynced: Unsynced,
}

impl OwnedTransition {
    /// A transition to this state, in which nothing has changed since the last sync.
    pub fn to(after: State) -> Self {
        let mut unsynced = Unsynced::default();
        unsynced.mark_synced();
        Self { after, unsynced }
    }

    /// The same, with a Service port that was `before` when it was synced.
    pub fn port(mut self, id: ServicePortId, before: Option<Arc<ResolvedServicePort>>) -> Self {
        self.unsynced.note_port(id, before);
        self
    }

    /// The same, with the node's settings changed.
    pub fn node(mut self, before: NodeState) -> Self {
        self.unsynced.note_node(before);
        self
    }

    /// The same, with everything compared.
    pub fn comparing(mut self) -> Self {
        self.unsynced.request_resync();
        self
    }

    /// The transition.
    pub fn get(&self) -> Transition<'_> {
        Transition::new(&self.after, &self.unsynced)
    }
}
