//! Service ports of unit tests.

use std::{net::SocketAddr, sync::Arc};

use switchyard_core::{
    model::{IpFamily, LbAlgorithm, Protocol, ServiceName, ServicePortId, ServicePortName},
    state::{Action, Endpoint, Masquerade, Pool, PoolKind, ResolvedServicePort},
};

use crate::forwarder::{listener::Listener, port::Port, shared::Serving};

/// A Service port with these endpoints, which take turns.
pub(crate) fn resolved(protocol: Protocol, endpoints: &[SocketAddr]) -> ResolvedServicePort {
    let service = ServiceName::new("default", "web");
    let name = ServicePortName { service, port: "http".into(), protocol };
    ResolvedServicePort {
        id: ServicePortId { name, family: IpFamily::V4 },
        frontends: Vec::new(),
        cluster: pool(endpoints),
        local: pool(&[]),
        draining: pool(&[]),
        affinity: None,
        lb_algorithm: LbAlgorithm::RoundRobin,
        proxy_protocol: None,
    }
}

/// A pool of endpoints, all with the same weight.
pub(crate) fn pool(endpoints: &[SocketAddr]) -> Pool {
    let endpoint = |&address| Endpoint { address, is_local: false, may_be_local: false, weight: 1 };
    endpoints.iter().map(endpoint).collect()
}

/// The target of a listener at `address` that serves a Service port to all clients.
pub(crate) fn serving(resolved: ResolvedServicePort, address: SocketAddr) -> Serving {
    let action = Action::Pool { pool: PoolKind::Cluster, masquerade: Masquerade::Always };
    let port = resolved.id.clone();
    let listener = Listener { port, address, action, allowed_sources: None };
    Serving { port: Arc::new(Port::new(&Arc::new(resolved), &Arc::default())), listener }
}
