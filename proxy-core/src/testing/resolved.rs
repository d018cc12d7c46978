//! Service ports as a tracker resolves them, for tests of what follows.

use std::net::SocketAddr;

use super::NAMESPACE;
use crate::{
    model::{IpFamily, LbAlgorithm, Protocol, ServiceName, ServicePortId, ServicePortName},
    state::{Endpoint, Pool, ResolvedServicePort},
};

/// The only port of a Service, in IPv4.
pub fn port_id(service: &str, protocol: Protocol) -> ServicePortId {
    let service = ServiceName::new(NAMESPACE, service);
    let name = ServicePortName { service, port: "".into(), protocol };
    ServicePortId { name, family: IpFamily::V4 }
}

/// Returns a pool of endpoints, all with the same weight.
pub fn pool(endpoints: &[SocketAddr]) -> Pool {
    let mut endpoints = endpoints.to_vec();
    endpoints.sort();
    let endpoint = |address| Endpoint { address, is_local: false, may_be_local: false, weight: 1 };
    endpoints.into_iter().map(endpoint).collect()
}

/// A Service port with these endpoints in its `Cluster` pool, as round robin serves them, and
/// without frontends.
pub fn resolved_port(id: &ServicePortId, endpoints: &[SocketAddr]) -> ResolvedServicePort {
    ResolvedServicePort {
        id: id.clone(),
        frontends: Vec::new(),
        cluster: pool(endpoints),
        local: Pool::default(),
        draining: Pool::default(),
        affinity: None,
        lb_algorithm: LbAlgorithm::RoundRobin,
        proxy_protocol: None,
    }
}
