//! The entries of sets that a Service port needs, and the addresses.

use std::net::IpAddr;

use switchyard_core::{
    model::{IpFamily, Protocol},
    state::{
        Action, Endpoint, Frontend, FrontendAddress, HealthCheck, Masquerade, ResolvedServicePort,
    },
};
use switchyard_netlink::ipset::Entry;

use super::{Context, servers};
use crate::sets::Set;

/// A need of a Service port. Service ports may share one, which is there as long as one of them needs
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Need {
    /// An entry of a set of the family.
    Entry(IpFamily, Set, Entry),
    /// An address of a Service, which the node must take for its own.
    Address {
        /// The address.
        ip: IpAddr,
        /// Whether the address may be on another device of the node, so that nothing needs to be
        /// done: not for cluster IPs.
        may_be_elsewhere: bool,
    },
}

/// Calls `each` with every need of a Service port, some of them several times.
pub(crate) fn of_port(
    port: &ResolvedServicePort,
    context: &Context<'_>,
    mut each: impl FnMut(Need),
) {
    let family = port.id.family;
    for frontend in &port.frontends {
        if let Some(ip) = frontend.at.ip() {
            let may_be_elsewhere = !matches!(frontend.at, FrontendAddress::ClusterIp(_));
            each(Need::Address { ip, may_be_elsewhere });
        }
        let protocol = port.id.name.protocol;
        let sets = sets(frontend, protocol, context.node.local_pods.get(family).is_some());
        for ip in servers::addresses(frontend, port, context) {
            let at = Entry::IpPort { ip, protocol: protocol.number(), port: frontend.port };
            for set in sets.into_iter().flatten() {
                let entry = if set.has_addresses() { at } else { Entry::Port(frontend.port) };
                each(Need::Entry(family, set, entry));
            }
            if is_silent(frontend, port) {
                each(Need::Entry(family, Set::Silent, at));
            }
            if let Some(sources) = &frontend.allowed_sources {
                each(Need::Entry(family, Set::LoadBalancerFirewall, at));
                for &net in sources.iter() {
                    let (protocol, port) = (protocol.number(), frontend.port);
                    let entry = Entry::IpPortNet { ip, protocol, port, net };
                    each(Need::Entry(family, Set::LoadBalancerSources, entry));
                }
            }
        }
    }
    for endpoint in port.cluster.iter().chain(port.local.iter()).filter(|e| e.may_be_local) {
        each(Need::Entry(family, Set::LoopBack, to_itself(endpoint, port.id.name.protocol)));
    }
}

/// Returns the need of a health check.
pub(crate) fn of_health_check(check: &HealthCheck, family: IpFamily) -> Option<Need> {
    check.local_endpoints.get(family).as_ref()?;
    Some(Need::Entry(family, Set::HealthCheck, Entry::Port(check.port)))
}

/// Whether new connections to a frontend get no answer, but for those of clients on this node that have
/// another pool.
fn is_silent(frontend: &Frontend, port: &ResolvedServicePort) -> bool {
    match frontend.action {
        Action::Drop => true,
        Action::ExternalLocal => port.local.is_empty(),
        _ => false,
    }
}

/// Returns the sets that decide whether clients of a frontend are masqueraded.
///
/// The set of cluster IPs stands for the clients that the node's settings name: all but pods of this
/// node, or none where pods cannot be told apart. A cluster IP whose clients are treated otherwise is
/// in the set of external IPs with that treatment.
fn sets(frontend: &Frontend, protocol: Protocol, knows_pods: bool) -> [Option<Set>; 2] {
    use FrontendAddress::{ClusterIp, ExternalIp, LoadBalancerIp, NodePort};

    let keeps_address = match frontend.action {
        Action::ExternalLocal => true,
        Action::Pool { masquerade: Masquerade::ExceptLocalPods, .. } if frontend.at != NodePort => {
            return [Some(Set::ClusterIp), None];
        }
        Action::Pool { masquerade, .. } => masquerade == Masquerade::Never,
        _ => return [None, None],
    };
    match (frontend.at, keeps_address) {
        (ClusterIp(_), true) if !knows_pods => [Some(Set::ClusterIp), None],
        (ClusterIp(_) | ExternalIp(_), true) => [Some(Set::ExternalIpLocal), None],
        (ClusterIp(_) | ExternalIp(_), false) => [Some(Set::ExternalIp), None],
        (LoadBalancerIp(_), true) => [Some(Set::LoadBalancer), Some(Set::LoadBalancerLocal)],
        (LoadBalancerIp(_), false) => [Some(Set::LoadBalancer), None],
        (NodePort, true) => [Some(Set::NodePort(protocol)), Some(Set::NodePortLocal(protocol))],
        (NodePort, false) => [Some(Set::NodePort(protocol)), None],
    }
}

/// Returns the entry of an endpoint that connects to itself.
fn to_itself(endpoint: &Endpoint, protocol: Protocol) -> Entry {
    let (ip, port) = (endpoint.address.ip(), endpoint.address.port());
    Entry::IpPortIp { ip, protocol: protocol.number(), port, second: ip }
}
