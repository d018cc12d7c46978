//! From the policies of Services to what this node should program.
//!
//! Four questions, a file each: which endpoints may serve a Service port from this node
//! ([`pools`]), what happens to traffic at each of its frontends ([`frontends`]), how connections
//! are shared out by a backend that cannot do everything ([`lb_algorithm`]), and which endpoints do
//! not have their full shares yet ([`slow_start`]).

pub(crate) mod frontends;
pub(crate) mod lb_algorithm;
pub(crate) mod pools;
pub(crate) mod slow_start;

use std::{net::IpAddr, sync::Arc};

use self::{
    lb_algorithm::{Limit, UnsupportedFeatures},
    pools::{Kept, Places, Pools, Weights},
    slow_start::GrowingShares,
};
use crate::{
    model::{HashMap, HashSet, IpFamily, LbAlgorithm, Protocol, ServicePortId, ServicePortName},
    parsed::{
        service::{Addresses, Service, ServicePort},
        slice::Slice,
    },
    proxier::Capabilities,
    state::{Action, Frontend, Pool, PoolKind, ResolvedServicePort},
};

/// The inputs of decisions about a Service besides the Service and its endpoints, in one family.
#[derive(Debug, PartialEq)]
pub(crate) struct NodeContext {
    pub(crate) zone: Option<String>,
    /// This node's address in the family.
    pub(crate) node_ip: Option<IpAddr>,
    /// Whether pods of this node can be distinguished from other clients in the family.
    pub(crate) knows_local_pods: bool,
    /// Whether all traffic to cluster IPs is masqueraded.
    pub(crate) masquerade_all: bool,
    pub(crate) external_ips: bool,
    /// The number of the node's addresses on which node ports are served, if each has endpoints of
    /// its own.
    pub(crate) node_port_addresses: usize,
    /// The algorithm for the connections of Services that ask for nothing.
    pub(crate) lb_algorithm: LbAlgorithm,
    pub(crate) capabilities: Capabilities,
}

/// The endpoints of a Service in a family.
pub(crate) struct Endpoints<'s> {
    pub(crate) slices: Vec<&'s Slice>,
    /// The endpoints that do not have their full shares yet.
    pub(crate) growing: Option<&'s GrowingShares>,
    /// The most endpoints of each pool of a port.
    pub(crate) most: usize,
    /// The most slots of each frontend.
    pub(crate) most_slots: usize,
    /// Whether a port had more endpoints than `most`.
    pub(crate) is_limited: bool,
    /// The number of endpoints that may still be looked at: ports whose slices differ have each
    /// endpoint looked at again.
    pub(crate) left: usize,
    /// The number of ports that have no endpoints since too many were looked at before.
    pub(crate) left_out: usize,
    /// The ready endpoints on this node of all ports, for the health check; `None` without one.
    pub(crate) ready_here: Option<HashSet<IpAddr>>,
    /// The choices for ports so far, with numbers of [`pools::places`], by what decides each.
    pub(crate) chosen: HashMap<(Places, bool, bool, Kept), Pools>,
}

/// The identity of a Service port in a family.
pub(crate) fn id(service: &Service, port: &ServicePort, family: IpFamily) -> ServicePortId {
    ServicePortId {
        name: ServicePortName {
            service: service.name.clone(),
            port: port.name.clone(),
            protocol: port.protocol,
        },
        family,
    }
}

/// Resolves one port of a Service in one family, and returns what the port asks for and does not
/// get. `owns` returns whether a frontend belongs to this port, and not to another Service port
/// that precedes it.
pub(crate) fn resolve(
    id: &ServicePortId,
    service: &Service,
    port: &ServicePort,
    addresses: &Addresses,
    endpoints: &mut Endpoints<'_>,
    node: &NodeContext,
    owns: impl Fn(&Frontend) -> bool,
) -> (ResolvedServicePort, UnsupportedFeatures) {
    let external = service.is_externally_accessible(port, addresses, node.external_ips);
    let asked = service.lb_algorithm.map_or(node.lb_algorithm, |asked| asked.lb_algorithm);
    let weights = match asked {
        LbAlgorithm::WeightedOverflow if node.capabilities.most_endpoints(asked) > 0 => {
            Weights::Connections
        }
        _ => Weights::Proportion,
    };
    let pools = Pools::choose(
        id,
        endpoints,
        node.zone.as_deref(),
        service.uses_cluster(port, addresses, node.external_ips),
        service.internal_local || (service.external_local && external),
        weights,
        &node.capabilities,
    );
    let mut frontends = frontends::frontends(service, port, addresses, &pools, node);
    frontends.retain(owns);
    frontends.sort_unstable();
    // A pool whose frontends all went to another Service port, or that no route names, would only
    // cost the backend work.
    let uses = |kind: PoolKind| {
        frontends.iter().any(|frontend| match frontend.action {
            Action::Pool { pool, .. } => pool == kind,
            Action::ExternalLocal => true,
            _ => false,
        })
    };
    let kept = |kind: PoolKind, pool: &Pool| {
        if uses(kind) { Arc::clone(pool) } else { Pool::default() }
    };
    let mut cluster = kept(PoolKind::Cluster, &pools.cluster);
    let mut local = kept(PoolKind::Local, &pools.local);
    // Only TCP has a beginning where the address could be sent.
    let proxy_protocol = service.proxy_protocol.filter(|_| id.name.protocol == Protocol::Tcp);
    let mut unsupported = UnsupportedFeatures {
        affinity: service.affinity.is_some() && !node.capabilities.has_affinity(),
        slow_start: service.slow_start.is_some() && !node.capabilities.has_weights(),
        proxy_protocol: proxy_protocol.is_some() && !node.capabilities.has_proxy_protocol(),
        ..UnsupportedFeatures::default()
    };
    let mut even_out = |cluster: &mut Pool, local: &mut Pool, limit| {
        for pool in [cluster, local] {
            if pools::is_uneven(pool) {
                unsupported.weights = Some(limit);
                *pool = pools::evenly(pool.to_vec());
            }
        }
    };
    if !node.capabilities.has_weights() {
        even_out(&mut cluster, &mut local, Limit::Mode);
    }
    let slots_fit = |lb_algorithm, pools: [&Pool; 2]| {
        let pools = pools.into_iter().filter(|pool| !pool.is_empty());
        let slots = pools.clone().map(|pool| node.capabilities.slots(lb_algorithm, pool));
        slots.sum::<usize>() <= endpoints.most_slots.max(pools.map(|pool| pool.len()).sum())
    };
    let (lb_algorithm, replaced) = lb_algorithm::nearest(
        asked,
        cluster.len().max(local.len()),
        &node.capabilities,
        |lb_algorithm| slots_fit(lb_algorithm, [&cluster, &local]),
    );
    if !slots_fit(lb_algorithm, [&cluster, &local]) {
        even_out(&mut cluster, &mut local, Limit::Slots);
    }
    unsupported.lb_algorithm = replaced
        // A default that cannot be programmed at all is the node's fault, and reported once.
        .filter(|replaced| service.lb_algorithm.is_some() || replaced.limit != Limit::Mode)
        .map(|replaced| (service.lb_algorithm.map(|asked| asked.annotation), replaced));
    let resolved = ResolvedServicePort {
        draining: pools.draining(&cluster, &local),
        cluster,
        local,
        affinity: service.affinity.filter(|_| node.capabilities.has_affinity()),
        lb_algorithm,
        proxy_protocol: proxy_protocol.filter(|_| node.capabilities.has_proxy_protocol()),
        frontends,
        id: id.clone(),
    };
    (resolved, unsupported)
}
