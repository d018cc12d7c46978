//! The sets that the rules match, by kube-proxy's names.
//!
//! kube-proxy in ipvs mode takes over sets with these names and types, and removes entries that it does
//! not want; so the types are kube-proxy's, too. [`Set::Silent`] is this backend's own.

use std::fmt;

use switchyard_core::model::{IpFamily, Protocol};
use switchyard_netlink::ipset::SetType;

/// A set. Each family has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Set {
    /// Endpoints that may be on this node, each with itself as the client: hairpin connections.
    LoopBack,
    /// Cluster IPs with endpoints. Clients are masqueraded as the node's settings say.
    ClusterIp,
    /// External IPs with endpoints whose clients are masqueraded.
    ExternalIp,
    /// External IPs whose clients keep their addresses.
    ExternalIpLocal,
    /// Load balancer IPs with endpoints.
    LoadBalancer,
    /// Those of [`Set::LoadBalancer`] whose clients keep their addresses.
    LoadBalancerLocal,
    /// Load balancer IPs with source ranges.
    LoadBalancerFirewall,
    /// The source ranges.
    LoadBalancerSources,
    /// Node ports.
    NodePort(Protocol),
    /// Those of [`Set::NodePort`] whose clients keep their addresses.
    NodePortLocal(Protocol),
    /// Ports of health checks of Services.
    HealthCheck,
    /// The addresses on `kube-ipvs0`.
    Bound,
    /// Where new connections are dropped without an answer. kube-proxy has no such set: it sends this
    /// traffic to endpoints of other nodes.
    Silent,
}

impl Set {
    /// Every set.
    pub(crate) const ALL: [Self; 17] = [
        Self::LoopBack,
        Self::ClusterIp,
        Self::ExternalIp,
        Self::ExternalIpLocal,
        Self::LoadBalancer,
        Self::LoadBalancerLocal,
        Self::LoadBalancerFirewall,
        Self::LoadBalancerSources,
        Self::NodePort(Protocol::Tcp),
        Self::NodePortLocal(Protocol::Tcp),
        Self::NodePort(Protocol::Udp),
        Self::NodePortLocal(Protocol::Udp),
        Self::NodePort(Protocol::Sctp),
        Self::NodePortLocal(Protocol::Sctp),
        Self::HealthCheck,
        Self::Bound,
        Self::Silent,
    ];

    /// The name of the IPv4 set.
    const fn ipv4_name(self) -> &'static str {
        match self {
            Self::LoopBack => "KUBE-LOOP-BACK",
            Self::ClusterIp => "KUBE-CLUSTER-IP",
            Self::ExternalIp => "KUBE-EXTERNAL-IP",
            Self::ExternalIpLocal => "KUBE-EXTERNAL-IP-LOCAL",
            Self::LoadBalancer => "KUBE-LOAD-BALANCER",
            Self::LoadBalancerLocal => "KUBE-LOAD-BALANCER-LOCAL",
            Self::LoadBalancerFirewall => "KUBE-LOAD-BALANCER-FW",
            Self::LoadBalancerSources => "KUBE-LOAD-BALANCER-SOURCE-CIDR",
            Self::NodePort(Protocol::Tcp) => "KUBE-NODE-PORT-TCP",
            Self::NodePort(Protocol::Udp) => "KUBE-NODE-PORT-UDP",
            Self::NodePort(Protocol::Sctp) => "KUBE-NODE-PORT-SCTP-HASH",
            Self::NodePortLocal(Protocol::Tcp) => "KUBE-NODE-PORT-LOCAL-TCP",
            Self::NodePortLocal(Protocol::Udp) => "KUBE-NODE-PORT-LOCAL-UDP",
            Self::NodePortLocal(Protocol::Sctp) => "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
            Self::HealthCheck => "KUBE-HEALTH-CHECK-NODE-PORT",
            Self::Bound => "KUBE-IPVS-IPS",
            Self::Silent => "SWITCHYARD-SILENT",
        }
    }

    /// The name of the set of a family.
    pub(crate) fn name(self, family: IpFamily) -> Name {
        Name { set: self.ipv4_name(), family }
    }

    /// The type of the set.
    pub(crate) const fn kind(self) -> SetType {
        match self {
            Self::LoopBack => SetType::HashIpPortIp,
            Self::LoadBalancerSources => SetType::HashIpPortNet,
            Self::NodePort(Protocol::Tcp | Protocol::Udp)
            | Self::NodePortLocal(Protocol::Tcp | Protocol::Udp)
            | Self::HealthCheck => SetType::BitmapPort,
            Self::Bound => SetType::HashIp,
            _ => SetType::HashIpPort,
        }
    }

    /// Whether a set of node ports holds the node's addresses as well as ports.
    pub(crate) const fn has_addresses(self) -> bool {
        !matches!(self.kind(), SetType::BitmapPort)
    }
}

/// kube-proxy's set for load balancer IPs that come from themselves, which are among the source ranges
/// here.
const UNUSED: &str = "KUBE-LOAD-BALANCER-SOURCE-IP";

/// The name of a set, at most [`LONGEST_NAME`](switchyard_netlink::ipset::LONGEST_NAME) bytes long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    set: &'static str,
    family: IpFamily,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((prefix, rest)) = self.set.split_once('-').filter(|_| self.family == IpFamily::V6)
        else {
            return f.write_str(self.set);
        };
        // Cut to what the kernel allows.
        let room = switchyard_netlink::ipset::LONGEST_NAME - prefix.len() - "-6-".len();
        write!(f, "{prefix}-6-{}", rest.get(..room).unwrap_or(rest))
    }
}

/// Returns the name of the set of a family that only kube-proxy has.
pub(crate) fn unused_name(family: IpFamily) -> String {
    Name { set: UNUSED, family }.to_string()
}

/// Returns the names of all sets of both families, kube-proxy's and this backend's.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let ours = Set::ALL.into_iter().map(Set::ipv4_name);
    ours.chain([UNUSED])
        .flat_map(|set| IpFamily::ALL.map(|family| Name { set, family }.to_string()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use switchyard_netlink::ipset::LONGEST_NAME;

    use super::*;

    #[test]
    fn ipv6_names_are_cut() {
        let name = |set: Set| set.name(IpFamily::V6).to_string();
        assert_eq!(name(Set::Bound), "KUBE-6-IPVS-IPS");
        assert_eq!(name(Set::LoadBalancerSources), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        assert_eq!(name(Set::NodePortLocal(Protocol::Sctp)), "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS");
        assert_eq!(name(Set::Silent), "SWITCHYARD-6-SILENT");
        let all: BTreeSet<String> = names().collect();
        assert!(all.iter().all(|name| name.len() <= LONGEST_NAME));
        assert_eq!(all.len(), 2 * (Set::ALL.len() + 1));
    }
}
