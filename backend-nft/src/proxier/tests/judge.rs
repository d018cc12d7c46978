//! The fates that a state asks for, packet by packet, read from the state alone.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use switchyard_core::{
    model::IpFamily,
    state::{
        Action, Endpoint, Frontend, FrontendAddress, LocalPods, Masquerade, PoolKind,
        ResolvedServicePort, State,
    },
};
use switchyard_kernel::nftables::testing::{Fate, Packet};

/// The addresses of the node, in both families.
pub(super) fn local_addresses() -> BTreeSet<IpAddr> {
    ["192.168.1.1", "127.0.0.1", "fd00:1::1", "::1"].map(|ip| ip.parse().expect("an IP")).into()
}

/// The fates that a packet may have on a node with these addresses. The client of a Service port
/// with affinity is remembered at `remembered`, if that is in the pool.
pub(super) fn fates(
    state: &State,
    packet: &Packet,
    local: &BTreeSet<IpAddr>,
    remembered: Option<SocketAddr>,
) -> BTreeSet<Fate> {
    let all = state.service_ports.values();
    let frontends = all.flat_map(|port| port.frontends.iter().map(move |at| (port, at)));
    let mut found: Vec<_> =
        frontends.filter(|(port, frontend)| is_at(state, port, frontend, packet, local)).collect();
    // The addresses of Services come before the node's.
    found.sort_by_key(|(_, frontend)| frontend.at.ip().is_none());
    match found.first() {
        Some((port, frontend)) => of_frontend(state, port, frontend, packet, local, remembered),
        None => [elsewhere(state, packet, local)].into(),
    }
}

fn is_at(
    state: &State,
    port: &ResolvedServicePort,
    frontend: &Frontend,
    packet: &Packet,
    local: &BTreeSet<IpAddr>,
) -> bool {
    let ip = packet.destination.ip();
    let is_address = match frontend.at {
        FrontendAddress::NodePort => {
            let family = port.id.family;
            local.contains(&ip)
                && family == IpFamily::of(&ip)
                && state.node.node_ports.get(family).contains(ip)
        }
        at => at.ip() == Some(ip),
    };
    is_address
        && frontend.port == packet.destination.port()
        && port.id.name.protocol == packet.protocol
}

/// The fate of a packet to no Service port.
fn elsewhere(state: &State, packet: &Packet, local: &BTreeSet<IpAddr>) -> Fate {
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

fn of_frontend(
    state: &State,
    port: &ResolvedServicePort,
    frontend: &Frontend,
    packet: &Packet,
    local: &BTreeSet<IpAddr>,
    remembered: Option<SocketAddr>,
) -> BTreeSet<Fate> {
    let source = packet.source.ip();
    let allowed = frontend.allowed_sources.as_deref();
    if allowed.is_some_and(|nets| !nets.iter().any(|net| net.contains(&source))) {
        return [Fate::Dropped].into();
    }
    let is_pod = match state.node.local_pods.get(port.id.family) {
        Some(LocalPods::Source(net)) => net.contains(&source),
        Some(LocalPods::Interface(name)) => packet.interface == Some(name.as_str()),
        Some(LocalPods::InterfacePrefix(prefix)) => {
            packet.interface.is_some_and(|name| name.starts_with(prefix.as_str()))
        }
        None => false,
    };
    let is_node = local.contains(&source);
    let (kind, masqueraded) = match frontend.action {
        Action::Pool { pool, masquerade } => {
            let masqueraded = match masquerade {
                Masquerade::Never => false,
                Masquerade::ExceptLocalPods => !is_pod,
                Masquerade::Always => true,
            };
            (pool, masqueraded)
        }
        Action::ExternalLocal if is_pod => (PoolKind::Cluster, false),
        Action::ExternalLocal if is_node => (PoolKind::Cluster, true),
        Action::ExternalLocal if port.local.is_empty() => return [Fate::Dropped].into(),
        Action::ExternalLocal => (PoolKind::Local, false),
        Action::Reject => return [Fate::Rejected].into(),
        Action::Drop => return [Fate::Dropped].into(),
        action => panic!("{action:?} is for another backend"),
    };
    let pool = port.pool(kind);
    let known = remembered.filter(|_| port.affinity.is_some());
    let known = known.and_then(|at| pool.iter().find(|endpoint| endpoint.address == at));
    let chosen: Vec<&Endpoint> = match known {
        Some(known) => vec![known],
        None => pool.iter().collect(),
    };
    let fate = |endpoint: &Endpoint| {
        let is_hairpin = endpoint.may_be_local && endpoint.address.ip() == source;
        let masqueraded = masqueraded || is_hairpin;
        Fate::Passed { to: endpoint.address, translated: true, masqueraded }
    };
    chosen.into_iter().map(fate).collect()
}
