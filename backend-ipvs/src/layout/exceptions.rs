//! The frontends that need rules of their own, which are few: those where clients on this node have
//! another pool, and those with source ranges.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use switchyard_core::{
    model::{Protocol, ServicePortName},
    state::{Action, Frontend, FrontendAddress, PoolKind, ResolvedServicePort},
};

/// The rules of a family that belong to single frontends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exceptions {
    /// Where clients on this node are led elsewhere.
    pub(crate) detours: Vec<Detour>,
    /// Where connections of the node itself are limited to source ranges.
    pub(crate) limits: Vec<Limit>,
}

/// A frontend whose clients on this node have the `Cluster` pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Detour {
    /// The Service port, for readers of the rules.
    pub(crate) name: ServicePortName,
    /// The frontend's address; `None` for those of the node.
    pub(crate) ip: Option<IpAddr>,
    /// The frontend's port.
    pub(crate) port: u16,
    /// What the destination becomes, in proportion to the weights: the cluster IP if the virtual server
    /// there has the pool; else the endpoints themselves.
    pub(crate) targets: Vec<(SocketAddr, u32)>,
}

/// A frontend with source ranges, as the node itself may connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The frontend's address.
    pub(crate) ip: IpAddr,
    /// The protocol.
    pub(crate) protocol: Protocol,
    /// The frontend's port.
    pub(crate) port: u16,
    /// The ranges that have an address of the node; connections from others are dropped.
    pub(crate) sources: Vec<IpNet>,
}

impl Exceptions {
    /// Returns the exceptions of Service ports, in order. `local` has the addresses of the node's
    /// devices.
    pub(crate) fn of_ports<'a>(
        ports: impl Iterator<Item = &'a ResolvedServicePort>,
        local: &BTreeSet<IpAddr>,
    ) -> Self {
        let mut exceptions = Self::default();
        for port in ports.filter(|port| has_any(port)) {
            for frontend in &port.frontends {
                exceptions.add(port, frontend, local);
            }
        }
        // An address of the node before the node ports, which are served at every address of it.
        exceptions.detours.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
        exceptions.limits.sort_unstable_by_key(|limit| (limit.ip, limit.protocol, limit.port));
        exceptions
    }

    fn add(&mut self, port: &ResolvedServicePort, frontend: &Frontend, local: &BTreeSet<IpAddr>) {
        if frontend.action == Action::ExternalLocal {
            self.detours.push(Detour {
                name: port.id.name.clone(),
                ip: frontend.at.ip(),
                port: frontend.port,
                targets: cluster_pool(port),
            });
        }
        if let (Some(ip), Some(sources)) = (frontend.at.ip(), &frontend.allowed_sources) {
            // The node's own connection to the address comes from that address, which is on
            // `kube-ipvs0`, unless the program chooses another.
            let is_of_node =
                |net: &&IpNet| net.contains(&ip) || local.iter().any(|local| net.contains(local));
            self.limits.push(Limit {
                ip,
                protocol: port.id.name.protocol,
                port: frontend.port,
                sources: sources.iter().filter(is_of_node).copied().collect(),
            });
        }
    }
}

/// Whether a Service port has exceptions.
pub(crate) fn has_any(port: &ResolvedServicePort) -> bool {
    let is_exception = |frontend: &Frontend| {
        frontend.action == Action::ExternalLocal || frontend.allowed_sources.is_some()
    };
    port.frontends.iter().any(is_exception)
}

fn order(detour: &Detour) -> impl Ord + use<'_> {
    (detour.ip.is_none(), detour.ip, detour.port, detour.name.protocol)
}

/// Returns where the `Cluster` pool of a Service port can be reached.
fn cluster_pool(port: &ResolvedServicePort) -> Vec<(SocketAddr, u32)> {
    let has_pool = |frontend: &&Frontend| {
        matches!(frontend.at, FrontendAddress::ClusterIp(_))
            && matches!(frontend.action, Action::Pool { pool: PoolKind::Cluster, .. })
    };
    let cluster_ip = port.frontends.iter().find(has_pool);
    match cluster_ip.and_then(|frontend| Some(SocketAddr::new(frontend.at.ip()?, frontend.port))) {
        Some(address) => vec![(address, 1)],
        None => port.cluster.iter().map(|e| (e.address, e.weight)).collect(),
    }
}
