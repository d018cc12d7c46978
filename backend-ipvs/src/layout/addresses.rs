//! The addresses of Services that the node must take for its own.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use switchyard_core::{
    model::{HashMap, ServicePortId},
    state::{FrontendAddress, ResolvedServicePort},
};

/// The addresses of a Service port; of its cluster IPs, and of others that no other device of the
/// node has.
pub(crate) fn of_port<'a>(
    port: &'a ResolvedServicePort,
    elsewhere: &'a BTreeSet<IpAddr>,
) -> impl Iterator<Item = IpAddr> + use<'a> {
    port.frontends.iter().filter_map(|frontend| match frontend.at {
        FrontendAddress::ClusterIp(ip) => Some(ip),
        FrontendAddress::LoadBalancerIp(ip) | FrontendAddress::ExternalIp(ip) => {
            (!elsewhere.contains(&ip)).then_some(ip)
        }
        FrontendAddress::NodePort => None,
    })
}

/// The addresses of a Service port that may be on another device of the node.
pub(crate) fn external(port: &ResolvedServicePort) -> impl Iterator<Item = IpAddr> {
    port.frontends.iter().filter_map(|frontend| external_ip(frontend.at))
}

fn external_ip(at: FrontendAddress) -> Option<IpAddr> {
    match at {
        FrontendAddress::LoadBalancerIp(ip) | FrontendAddress::ExternalIp(ip) => Some(ip),
        FrontendAddress::ClusterIp(_) | FrontendAddress::NodePort => None,
    }
}

/// Whether something may be served at a frontend: at any but an external address that is never
/// bound.
pub(crate) fn is_served(at: FrontendAddress, never_bound: &BTreeSet<IpAddr>) -> bool {
    external_ip(at).is_none_or(|ip| !never_bound.contains(&ip))
}

/// Those of the Service ports that have one of these addresses, as far as they have one.
pub(crate) fn owners<'a>(
    ports: &'a HashMap<ServicePortId, Arc<ResolvedServicePort>>,
    ips: &'a BTreeSet<IpAddr>,
    elsewhere: &'a BTreeSet<IpAddr>,
) -> impl Iterator<Item = (IpAddr, &'a ServicePortId)> {
    let ports = ports.values().filter(|_| !ips.is_empty());
    ports.flat_map(move |port| {
        of_port(port, elsewhere).filter(|ip| ips.contains(ip)).map(|ip| (ip, &port.id))
    })
}
