//! The fates that a state asks for on a node whose packets to no Service port are judged, too.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use switchyard_core::{
    state::{FrontendAddress, State},
    testing::service_fates,
};
use switchyard_kernel::nftables::testing::{Fate, Packet};

pub(super) use switchyard_core::testing::local_addresses;

/// The fates that a packet may have on a node with these addresses. The client of a Service port
/// with affinity is remembered at `remembered`, if that is in the pool.
pub(super) fn fates(
    state: &State,
    packet: &Packet,
    local: &BTreeSet<IpAddr>,
    remembered: Option<SocketAddr>,
) -> BTreeSet<Fate> {
    let of_service = service_fates(state, packet, local, remembered);
    of_service.unwrap_or_else(|| [elsewhere(state, packet, local)].into())
}

/// The fate of a packet to no Service port.
pub(super) fn elsewhere(state: &State, packet: &Packet, local: &BTreeSet<IpAddr>) -> Fate {
    let ip = packet.destination.ip();
    let mut frontends = state.service_ports.values().flat_map(|port| &port.frontends);
    let mut cidrs = state.node.service_cidrs.v4.iter().chain(&state.node.service_cidrs.v6);
    let is_forwarded = packet.interface.is_none() || !local.contains(&ip);
    if is_forwarded && frontends.any(|at| at.at == FrontendAddress::ClusterIp(ip)) {
        Fate::Rejected
    } else if is_forwarded && cidrs.any(|net| net.contains(&ip)) {
        Fate::Dropped
    } else {
        Fate::Passed { to: packet.destination, translated: false, masqueraded: false }
    }
}
