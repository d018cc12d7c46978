//! A Service port whose connections are forwarded: the pools, as they are now.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
};

use switchyard_core::{
    model::{ProxyProtocol, ServicePortId},
    state::{PoolKind, ResolvedServicePort},
};

/// A Service port, shared by its listeners, connections and flows.
pub(crate) struct Port {
    id: ServicePortId,
    /// Replaced as a whole by each change.
    now: RwLock<Arc<ResolvedServicePort>>,
}

/// The two ends of a connection that a client has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// The client's address and port.
    pub(crate) client: SocketAddr,
    /// The address and port that the client has connected to.
    pub(crate) destination: SocketAddr,
}

/// An endpoint that was chosen for a connection. The connection counts as one of the endpoint's until
/// the value is dropped.
pub(crate) struct Chosen {
    /// The endpoint's address and port.
    pub(crate) address: SocketAddr,
}

impl Port {
    pub(crate) fn new(resolved: &Arc<ResolvedServicePort>) -> Self {
        Self { id: resolved.id.clone(), now: RwLock::new(Arc::clone(resolved)) }
    }

    pub(crate) fn id(&self) -> &ServicePortId {
        &self.id
    }

    /// Replaces the pools, for connections from now on. Endpoints that stay keep what is known of them.
    pub(crate) fn update(&self, resolved: &Arc<ResolvedServicePort>) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(resolved);
    }

    fn now(&self) -> Arc<ResolvedServicePort> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// How endpoints are sent the client's address.
    pub(crate) fn proxy_protocol(&self) -> Option<ProxyProtocol> {
        self.now().proxy_protocol
    }

    /// Chooses an endpoint of a pool for a new connection or flow, other than those that were `tried` for
    /// the connection already. Returns `None` if no endpoint is left.
    pub(crate) fn choose(
        &self,
        pool: PoolKind,
        _ends: Ends,
        tried: &[SocketAddr],
    ) -> Option<Chosen> {
        let now = self.now();
        let mut left = now.pool(pool).iter().map(|e| e.address).filter(|e| !tried.contains(e));
        left.next().map(|address| Chosen { address })
    }

    /// Notes that an endpoint did not take the connection of a client, which is remembered no longer.
    pub(crate) fn failed(&self, _endpoint: SocketAddr, _client: IpAddr) {}

    /// Notes that an endpoint took a connection, or answered.
    pub(crate) fn succeeded(&self, _endpoint: SocketAddr) {}

    /// Whether an endpoint still serves the flows that it has. Meaningless for TCP.
    pub(crate) fn serves(&self, endpoint: SocketAddr) -> bool {
        self.now().serves(endpoint)
    }
}
pub const ABILITIES: switchyard_core::proxier::Abilities =
    switchyard_core::proxier::Abilities::PARITY;
