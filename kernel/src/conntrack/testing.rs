//! Helpers for unit tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

use std::sync::Arc;

use switchyard_core::{
    model::Protocol,
    state::ResolvedServicePort,
    testing::{port_id, resolved_port},
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
    let endpoints: Vec<_> = endpoints.iter().map(|address| address.parse().unwrap()).collect();
    Arc::new(resolved_port(&port_id(name, Protocol::Udp), &endpoints))
}

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
