//! The virtual servers of a Service port.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use switchyard_core::{
    model::IpFamily,
    state::{Action, Frontend, PoolKind, ResolvedServicePort},
};
use switchyard_netlink::ipvs::{Selector, VirtualServer};

use super::{Context, node_addresses};
use crate::scheduler::Scheduler;

/// The greatest weight that the kernel takes (a signed number of 32 bits).
const GREATEST_WEIGHT: u32 = i32::MAX as u32;

/// What should be at a frontend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Server {
    /// The Service port, which knows the endpoints that still serve the flows that they have.
    pub(crate) port: Arc<ResolvedServicePort>,
    /// The scheduler.
    pub(crate) scheduler: Scheduler,
    /// The pool that new connections go to. If `None`, rules drop or refuse new connections, and the
    /// virtual server is there only as long as real servers have connections from before.
    pub(crate) pool: Option<Members>,
}

/// The members of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// None: the kernel refuses connections (ICMP port unreachable).
    Nobody,
    /// A pool of the Service port.
    Pool(PoolKind),
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
            None | Some(Members::Nobody) => &[],
            Some(Members::Pool(kind)) => &**self.port.pool(kind),
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
    for frontend in &port.frontends {
        let pool = match frontend.action {
            Action::Pool { pool, .. } => Some(Members::Pool(pool)),
            Action::ExternalLocal if port.local.is_empty() => None,
            Action::ExternalLocal => Some(Members::Pool(PoolKind::Local)),
            // The kernel would refuse the node's own connections before any rule sees them, also those
            // from outside the source ranges; without a virtual server, a rule refuses the others.
            Action::Reject if frontend.allowed_sources.is_some() => None,
            Action::Reject => Some(Members::Nobody),
            _ => None,
        };
        for ip in addresses(frontend, port, context) {
            let selector = Selector::Address {
                protocol: port.id.name.protocol.number().into(),
                ip,
                port: frontend.port,
            };
            each(selector, Server { port: Arc::clone(port), scheduler, pool });
        }
    }
}

/// Returns the addresses of a frontend: one, or those of the node.
pub(super) fn addresses<'a>(
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
