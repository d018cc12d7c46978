//! The virtual servers of a Service port.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use switchyard_core::{
    model::{IpFamily, PerFamily},
    state::{Action, Frontend, NodePortAddresses, NodeState, PoolKind, ResolvedServicePort},
};
use switchyard_kernel::ipvs::{Selector, VirtualServer};

use super::{Context, addresses::is_served, node_addresses};
use crate::scheduler::Scheduler;

/// The greatest weight that the kernel takes (a signed number of 32 bits).
const GREATEST_WEIGHT: u32 = i32::MAX as u32;

/// Whether a virtual server is that of an address of these families.
pub(crate) fn is_of(selector: &Selector, families: &PerFamily<bool>) -> bool {
    match selector {
        Selector::Address { ip, .. } => *families.get(IpFamily::of(ip)),
        Selector::Mark { .. } => false,
    }
}

/// Whether a virtual server is another program's: within these networks, or that of a mark.
pub(crate) fn is_excluded(selector: &Selector, excluded: &[IpNet]) -> bool {
    match selector {
        Selector::Address { ip, .. } => excluded.iter().any(|net| net.contains(ip)),
        Selector::Mark { .. } => true,
    }
}

/// The virtual server wanted at a frontend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    /// The Service port, which knows the endpoints that still serve the flows that they have.
    pub(crate) port: Arc<ResolvedServicePort>,
    pub(crate) scheduler: Scheduler,
    /// The pool that new connections go to. If `None`, rules drop or refuse new connections, and
    /// the virtual server is there only as long as real servers have connections from before.
    pub(crate) pool: Option<PoolKind>,
}

impl Server {
    /// Returns the virtual server as the kernel should have it.
    pub(crate) fn definition(&self, selector: Selector) -> VirtualServer {
        let affinity = self.port.affinity;
        let persistence = if affinity.is_some() { VirtualServer::PERSISTENT } else { 0 };
        VirtualServer {
            selector,
            scheduler: self.scheduler.as_str().to_owned(),
            flags: persistence | self.scheduler.flags(),
            // The kernel rejects zero seconds.
            timeout: affinity
                .map_or(0, |affinity| u32::try_from(affinity.as_secs()).unwrap_or(u32::MAX).max(1)),
            netmask: match self.port.id.family {
                IpFamily::V4 => u32::MAX,
                IpFamily::V6 => 128,
            },
        }
    }

    /// Returns the weights of the real servers that take new connections, by address.
    pub(crate) fn weights(&self) -> BTreeMap<SocketAddr, u32> {
        let pool = match self.pool {
            None => &[],
            Some(kind) => &**self.port.pool(kind),
        };
        pool.iter().map(|e| (e.address, e.weight.min(GREATEST_WEIGHT))).collect()
    }
}

/// Calls `each` with every virtual server of a Service port.
pub(crate) fn of_port(
    port: &Arc<ResolvedServicePort>,
    context: &Context<'_>,
    mut each: impl FnMut(Selector, Server),
) {
    let (scheduler, _) = context.scheduler(port);
    let served = |frontend: &&Frontend| is_served(frontend.at, context.never_bound);
    for frontend in port.frontends.iter().filter(served) {
        let pool = match frontend.action {
            Action::Pool { pool, .. } => Some(pool),
            Action::ExternalLocal if !port.local.is_empty() => Some(PoolKind::Local),
            _ => None,
        };
        for ip in addresses(frontend, port, context) {
            let selector = selector(frontend, port, ip);
            // An address beats the node ports there.
            if frontend.at.ip().is_some() || !context.claimed.contains(&selector) {
                each(selector, Server { port: Arc::clone(port), scheduler, pool });
            }
        }
    }
}

fn selector(frontend: &Frontend, port: &ResolvedServicePort, ip: IpAddr) -> Selector {
    Selector::Address { protocol: port.id.name.protocol.number().into(), ip, port: frontend.port }
}

/// Calls `each` with the virtual servers that a Service port has by addresses of its own which
/// serve node ports, too.
pub(crate) fn claimed(
    port: &ResolvedServicePort,
    node: &NodeState,
    never_bound: &BTreeSet<IpAddr>,
    mut each: impl FnMut(Selector),
) {
    let NodePortAddresses::Only(ips) = node.node_ports.get(port.id.family) else { return };
    for frontend in port.frontends.iter().filter(|frontend| is_served(frontend.at, never_bound)) {
        if let Some(ip) = frontend.at.ip().filter(|ip| ips.contains(ip)) {
            each(selector(frontend, port, ip));
        }
    }
}

/// Returns the addresses of a frontend: one, or those of the node.
fn addresses<'a>(
    frontend: &'a Frontend,
    port: &'a ResolvedServicePort,
    context: &'a Context<'_>,
) -> impl Iterator<Item = IpAddr> + use<'a> {
    let own = frontend.at.ip();
    let of_node = match own {
        Some(_) => None,
        None => Some(node_addresses(context.node, port.id.family)),
    };
    own.into_iter().chain(of_node.into_iter().flatten())
}
