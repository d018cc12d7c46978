//! The fates that a state asks for, packet by packet, read from the state alone.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use crate::{
    model::{
        IpFamily,
        testing::{Fate, Packet},
    },
    state::{
        Action, Endpoint, Frontend, FrontendAddress, LocalPods, Masquerade, PoolKind,
        ResolvedServicePort, State,
    },
};

/// The addresses of the node, in both families.
pub fn local_addresses() -> BTreeSet<IpAddr> {
    ["192.168.1.1", "127.0.0.1", "fd00:1::1", "::1"].map(|ip| ip.parse().expect("an IP")).into()
}

/// A packet from another host to each frontend of a Service port, on a node with the
/// [`local_addresses`].
pub fn packets_to(port: &ResolvedServicePort) -> impl Iterator<Item = Packet> + '_ {
    let [source, node] = match port.id.family {
        IpFamily::V4 => ["198.51.100.9", "192.168.1.1"],
        IpFamily::V6 => ["2001:db8:ffff::9", "fd00:1::1"],
    }
    .map(|ip| ip.parse::<IpAddr>().expect("an IP"));
    // Packets of other hosts to loopback addresses are dropped, whatever Services have them.
    let frontends = port.frontends.iter();
    let frontends = frontends.filter(|f| !f.at.ip().is_some_and(|ip| ip.is_loopback()));
    frontends.map(move |frontend| Packet {
        protocol: port.id.name.protocol,
        source: SocketAddr::new(source, 40_000),
        destination: SocketAddr::new(frontend.at.ip().unwrap_or(node), frontend.port),
        interface: Some("eth0"),
        hash: 0x4000_0000,
    })
}

/// The fates that a packet may have on a node with these addresses; `None` if it is to no Service
/// port. The client of a Service port with affinity is remembered at `remembered`, if that is in
/// the pool.
pub fn service_fates(
    state: &State,
    packet: &Packet,
    local: &BTreeSet<IpAddr>,
    remembered: Option<SocketAddr>,
) -> Option<BTreeSet<Fate>> {
    let all = state.service_ports.values();
    let frontends = all.flat_map(|port| port.frontends.iter().map(move |at| (port, at)));
    let mut found: Vec<_> =
        frontends.filter(|(port, frontend)| is_at(state, port, frontend, packet, local)).collect();
    // The addresses of Services come before the node's.
    found.sort_by_key(|(_, frontend)| frontend.at.ip().is_none());
    let (port, frontend) = found.first()?;
    Some(of_frontend(state, port, frontend, packet, local, remembered))
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
