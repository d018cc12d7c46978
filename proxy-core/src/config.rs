//! The configuration of this node, by an operator or an embedder.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net};

use crate::model::LbAlgorithm;

/// The loopback addresses of IPv4 (RFC 1122).
const LOOPBACK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);

/// The node that Services are resolved for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeConfig {
    /// The node's name, as in `nodeName` of endpoints and `metadata.name` of its Node.
    pub node_name: String,
    /// Whether to masquerade all traffic to cluster IPs, whatever its source.
    pub masquerade_all: bool,
    /// The way to detect traffic from pods of this node (`detectLocalMode`).
    pub local_pods: LocalPodsConfig,
    /// The addresses that serve node ports (`nodePortAddresses`); if empty, all local addresses.
    pub node_port_addresses: Vec<NodePortAddressConfig>,
    /// Whether the health checks of Services are served on all local addresses, whatever
    /// `node_port_addresses` is. To be set where `node_port_addresses` is not configured, since load
    /// balancers may send health checks to addresses of their own.
    pub health_checks_everywhere: bool,
    /// Whether node ports may be served on loopback addresses as well
    /// (`iptables.localhostNodePorts`), if the entries of `node_port_addresses` include loopback
    /// addresses. The kernel can do so for IPv4 only, with the setting `route_localnet`,
    /// which the proxy around the engine makes once the backend guards these addresses
    /// ([`Profile::guards_loopback`](crate::proxier::Profile::guards_loopback)).
    pub localhost_node_ports: bool,
    /// `bindAddress`, if that is one address: overrides the node's own address in its family.
    pub bind_address: Option<IpAddr>,
    /// Whether a node without a Node object may have traffic from load balancers: false in a
    /// cluster, where such a node may be about to be removed; true without a cluster.
    pub eligible_without_node: bool,
    /// Whether `externalIPs` of Services are programmed (the gate `AllowServiceExternalIPs`).
    pub external_ips: bool,
    /// The algorithm for the connections of Services that ask for nothing; `None` for the algorithm
    /// of the backend
    /// ([`Capabilities::default_algorithm`](crate::proxier::Capabilities::default_algorithm)).
    pub lb_algorithm: Option<LbAlgorithm>,
    /// Whether endpoints may have loopback addresses, which the API refuses since they would lead
    /// the traffic of other hosts into the node. For a machine that serves itself alone, from
    /// manifests, with a backend that can
    /// ([`Capabilities::has_loopback_endpoints`](crate::proxier::Capabilities::has_loopback_endpoints));
    /// fixed for the lifetime of a tracker, like the name.
    pub loopback_endpoints: bool,
    /// The value of the label `service.kubernetes.io/service-proxy-name` of the Services that this
    /// proxy serves (KEP-2447); `None` for Services without the label. A proxy with a name stands
    /// beside the cluster's, which needs a backend that can
    /// ([`Profile::is_beside`](crate::proxier::Profile::is_beside)): addresses of a ServiceCIDR
    /// that no Service has are the other proxy's to drop. Fixed for the lifetime of a tracker, like
    /// the name.
    pub service_proxy_name: Option<String>,
}

impl NodeConfig {
    /// Creates the configuration of a node with this name, with nothing else configured.
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            masquerade_all: false,
            local_pods: LocalPodsConfig::default(),
            node_port_addresses: Vec::new(),
            health_checks_everywhere: false,
            localhost_node_ports: false,
            bind_address: None,
            eligible_without_node: false,
            external_ips: true,
            lb_algorithm: None,
            loopback_endpoints: false,
            service_proxy_name: None,
        }
    }
}

impl NodeConfig {
    /// Whether the configuration serves node ports on loopback addresses of IPv4: on all of them
    /// with all local addresses, or on chosen ones.
    pub fn serves_localhost(&self) -> bool {
        self.localhost_node_ports && (self.names(LOOPBACK.into()) || !self.limits_ipv4())
    }

    /// Whether the configuration serves node ports on the loopback address of IPv6, by an entry
    /// that includes it. No kernel routes this address, and so no state asks a backend to serve it;
    /// a program may have sockets there.
    pub fn serves_ipv6_localhost(&self) -> bool {
        self.localhost_node_ports && self.names(IpAddr::from(Ipv6Addr::LOCALHOST).into())
    }

    /// Whether an entry includes one of these loopback addresses.
    fn names(&self, loopback: IpNet) -> bool {
        self.node_port_addresses.iter().any(|entry| match entry {
            NodePortAddressConfig::Localhost => true,
            NodePortAddressConfig::Cidr(net) => net.contains(&loopback) || loopback.contains(net),
            NodePortAddressConfig::Primary => false,
        })
    }

    /// Whether an entry could be of IPv4, so that a family without entries does not mean all
    /// addresses.
    fn limits_ipv4(&self) -> bool {
        let is_ipv6 = |entry: &NodePortAddressConfig| {
            matches!(entry, NodePortAddressConfig::Cidr(IpNet::V6(_)))
        };
        !self.node_port_addresses.iter().all(is_ipv6)
    }

    /// Whether the Node object decides where node ports are served, or which pods are local.
    pub(crate) fn asks_the_node(&self) -> bool {
        self.node_port_addresses.contains(&NodePortAddressConfig::Primary)
            || self.local_pods == LocalPodsConfig::NodeCidr
    }
}

/// `detectLocalMode` and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalPodsConfig {
    /// `ClusterCIDR`: the source is in the first of these networks of the family. In a family
    /// without a network, local traffic is not detected.
    ClusterCidr(Vec<IpNet>),
    /// `NodeCIDR`: the source is in the first of the Node's `spec.podCIDRs` of the family.
    NodeCidr,
    /// `BridgeInterface`: the packet came in through this interface.
    BridgeInterface(String),
    /// `InterfaceNamePrefix`: the packet came in through an interface whose name starts with this.
    InterfaceNamePrefix(String),
}

impl Default for LocalPodsConfig {
    fn default() -> Self {
        Self::ClusterCidr(Vec::new())
    }
}

/// One of `nodePortAddresses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddressConfig {
    /// `primary`: the node's first address of each family, from its Node or
    /// [`NodeConfig::bind_address`].
    Primary,
    /// `localhost`: the node's loopback addresses.
    Localhost,
    /// The interface addresses that lie in this network.
    Cidr(IpNet),
}

impl fmt::Display for NodePortAddressConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary"),
            Self::Localhost => f.write_str("localhost"),
            Self::Cidr(net) => net.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_is_served_if_an_entry_includes_it() {
        let config = |entries: &[&str], localhost_node_ports| {
            let entry = |text: &&str| match *text {
                "primary" => NodePortAddressConfig::Primary,
                "localhost" => NodePortAddressConfig::Localhost,
                net => NodePortAddressConfig::Cidr(net.parse().unwrap()),
            };
            NodeConfig {
                node_port_addresses: entries.iter().map(entry).collect(),
                localhost_node_ports,
                ..NodeConfig::new("n")
            }
        };
        let serves = |entries: &[&str]| {
            assert!(!config(entries, false).serves_localhost(), "{entries:?}");
            config(entries, true).serves_localhost()
        };
        assert!(serves(&[]) && serves(&["10.0.0.0/8", "0.0.0.0/0"]));
        assert!(serves(&["fd00::/8"]), "that limits the other family only");
        assert!(serves(&["primary", "localhost"]) && serves(&["10.0.0.0/8", "127.0.0.1/32"]));
        assert!(serves(&["126.0.0.0/7"]), "a network around the loopback addresses");
        let serves_ipv6 = |entries: &[&str]| config(entries, true).serves_ipv6_localhost();
        assert!(serves_ipv6(&["localhost"]) && serves_ipv6(&["primary", "::/0"]));
        assert!(
            serves_ipv6(&["::1/128"]) && !config(&["localhost"], false).serves_ipv6_localhost()
        );
        assert!(!serves_ipv6(&["primary", "0.0.0.0/0"]) && !serves_ipv6(&["fd00::/8"]));
        assert!(!serves(&["10.0.0.0/8"]) && !serves(&["primary"]) && !serves(&["primary", "::/0"]));
    }
}
