//! The handling of traffic at each frontend of a Service port: traffic policies, masquerading,
//! empty pools and source ranges.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{NodeContext, pools::Pools};
use crate::{
    model::aggregated,
    parsed::service::{Addresses, Service, ServicePort},
    state::{Action, Frontend, FrontendAddress, Masquerade, PoolKind},
};

/// Returns the addresses and ports at which a Service port listens in one family; external IPs only
/// if they are programmed on this node.
pub(crate) fn listeners<'a>(
    port: &ServicePort,
    addresses: &'a Addresses,
    external_ips: bool,
) -> impl Iterator<Item = (FrontendAddress, u16)> + use<'a> {
    let (number, node_port) = (port.port, port.node_port);
    let ips = std::iter::once(FrontendAddress::ClusterIp(addresses.cluster_ip))
        .chain(addresses.load_balancer_ips.iter().copied().map(FrontendAddress::LoadBalancerIp))
        .chain(
            addresses.external_ips(external_ips).iter().copied().map(FrontendAddress::ExternalIp),
        );
    ips.map(move |at| (at, number))
        .chain(node_port.map(|number| (FrontendAddress::NodePort, number)))
}

/// Returns all frontends of a Service port, with their routes.
pub(crate) fn frontends(
    service: &Service,
    port: &ServicePort,
    addresses: &Addresses,
    pools: &Pools,
    node: &NodeContext,
) -> Vec<Frontend> {
    let internal = internal_route(service, pools, node);
    let external = external_route(service, pools);
    let allowed = allowed_sources(addresses, node.node_ip);
    listeners(port, addresses, node.external_ips)
        .map(|(at, port)| Frontend {
            at,
            port,
            action: match at {
                FrontendAddress::ClusterIp(_) => internal,
                _ => external,
            },
            allowed_sources: match at {
                FrontendAddress::LoadBalancerIp(_) => allowed.clone(),
                _ => None,
            },
        })
        .collect()
}

fn internal_route(service: &Service, pools: &Pools, node: &NodeContext) -> Action {
    let (kind, pool) = if service.internal_local {
        (PoolKind::Local, &pools.local)
    } else {
        (PoolKind::Cluster, &pools.cluster)
    };
    match (pool.is_empty(), pools.has_any) {
        (false, _) => Action::Pool {
            pool: kind,
            masquerade: match (node.masquerade_all, node.knows_local_pods) {
                (true, _) => Masquerade::Always,
                (false, true) => Masquerade::ExceptLocalPods,
                (false, false) => Masquerade::Never,
            },
        },
        (true, true) => Action::Drop,
        (true, false) => Action::Reject,
    }
}

fn external_route(service: &Service, pools: &Pools) -> Action {
    match (pools.cluster.is_empty(), pools.has_any) {
        (false, _) if service.external_local => Action::ExternalLocal,
        (false, _) => Action::Pool { pool: PoolKind::Cluster, masquerade: Masquerade::Always },
        (true, true) => Action::Drop,
        (true, false) => Action::Reject,
    }
}

/// Returns the source ranges to enforce. If a load balancer's address is on an interface of the
/// node, the node's own connections to that address come from it: they are allowed if the node is.
fn allowed_sources(addresses: &Addresses, node_ip: Option<IpAddr>) -> Option<Arc<[IpNet]>> {
    if addresses.source_ranges.is_empty() {
        return None;
    }
    let mut ranges = addresses.source_ranges.clone();
    if node_ip.is_some_and(|ip| ranges.iter().any(|range| range.contains(&ip))) {
        ranges.extend(addresses.load_balancer_ips.iter().copied().map(IpNet::from));
        ranges = aggregated(&ranges);
    }
    Some(ranges.into())
}
