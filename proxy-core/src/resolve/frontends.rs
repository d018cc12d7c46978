//! What happens to traffic at each frontend of a Service port: traffic policies, masquerading,
//! empty pools and source ranges.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use super::{Surroundings, pools::Pools};
use crate::{
    model::aggregated,
    parsed::service::{Addresses, Service, ServicePort},
    state::{Frontend, FrontendAddress, Masquerade, PoolKind, Route},
};

/// Returns the addresses and ports at which a Service port listens in one family; external IPs only if
/// they are programmed on this node.
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
    around: &Surroundings,
) -> Vec<Frontend> {
    let internal = internal_route(service, pools, around);
    let external = external_route(service, pools);
    let allowed = allowed_sources(addresses, around.node_ip);
    listeners(port, addresses, around.external_ips)
        .map(|(at, port)| Frontend {
            at,
            port,
            route: match at {
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

fn internal_route(service: &Service, pools: &Pools, around: &Surroundings) -> Route {
    let (kind, pool) = if service.internal_local {
        (PoolKind::Local, &pools.local)
    } else {
        (PoolKind::Cluster, &pools.cluster)
    };
    match (pool.is_empty(), pools.has_any) {
        (false, _) => Route::Pool {
            pool: kind,
            masquerade: match (around.masquerade_all, around.knows_local_pods) {
                (true, _) => Masquerade::Always,
                (false, true) => Masquerade::ExceptLocalPods,
                (false, false) => Masquerade::Never,
            },
        },
        (true, true) => Route::Drop,
        (true, false) => Route::Reject,
    }
}

fn external_route(service: &Service, pools: &Pools) -> Route {
    match (pools.cluster.is_empty(), pools.has_any) {
        (false, _) if service.external_local => Route::ExternalLocal,
        (false, _) => Route::Pool { pool: PoolKind::Cluster, masquerade: Masquerade::Always },
        (true, true) => Route::Drop,
        (true, false) => Route::Reject,
    }
}

/// Returns the source ranges to enforce. If a load balancer's address is on an interface of the node,
/// the node's own connections to that address come from it: they are allowed if the node is.
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
