//! Helpers for unit tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

use std::sync::Arc;

use switchyard_core::{
    model::{IpFamily, LbAlgorithm, Protocol, ServiceName, ServicePortId, ServicePortName},
    state::{Endpoint, Pool, ResolvedServicePort},
};

use crate::{
    conntrack::{
        Group,
        flow::{Flow, Tuple},
    },
    netlink::{Socket, Writer},
};

/// A UDP port of the Service `name`, with these endpoints and no frontends.
pub(crate) fn resolved(name: &str, endpoints: &[&str]) -> Arc<ResolvedServicePort> {
    let service = ServiceName::new("ns", name);
    let name = ServicePortName { service, port: "".into(), protocol: Protocol::Udp };
    let endpoint = |address: &&str| Endpoint {
        address: address.parse().unwrap(),
        is_local: false,
        may_be_local: false,
        weight: 1,
    };
    Arc::new(ResolvedServicePort {
        proxy_protocol: None,
        id: ServicePortId { name, family: IpFamily::V4 },
        frontends: Vec::new(),
        cluster: endpoints.iter().map(endpoint).collect(),
        local: Pool::default(),
        draining: Pool::default(),
        affinity: None,
        lb_algorithm: LbAlgorithm::default(),
    })
}

/// A flow.
pub(crate) fn flow(client: &str, to: &str, by: &str) -> Flow {
    let [source, destination, answered_by] = [client, to, by].map(|text| text.parse().unwrap());
    Flow { original: Tuple { source, destination }, answered_by, id: [1, 2, 3, 4] }
}

/// Makes an entry for a flow in this thread's namespace. The kernel gives it an id.
pub(crate) fn create(flow: &Flow, group: Group) {
    assert!(try_create(flow, group));
}

/// Makes an entry for a flow. Returns false if there is one.
pub(crate) fn try_create(flow: &Flow, group: Group) -> bool {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).unwrap();
    let sequence = socket.sequences(1);
    let mut writer = Writer::new();
    flow.create(&mut writer, group, sequence);
    socket.batch(writer.as_slice(), sequence).unwrap().is_empty()
}
