//! The configuration of this node, by an operator or an embedder.

use std::net::IpAddr;

use ipnet::IpNet;

/// The node that Services are resolved for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeConfig {
    /// The node's name, as in `nodeName` of endpoints and `metadata.name` of its Node.
    pub node_name: String,
    /// Whether to masquerade all traffic to cluster IPs, whatever its source.
    pub masquerade_all: bool,
    /// How to detect traffic from pods of this node (`detectLocalMode`).
    pub local_pods: LocalPodsConfig,
    /// The addresses that serve node ports (`nodePortAddresses`); if empty, all local addresses.
    pub node_port_addresses: Vec<NodePortAddressConfig>,
    /// `bindAddress`, if that is one address: overrides the node's own address in its family.
    pub bind_address: Option<IpAddr>,
    /// Whether a node without a Node object may have traffic from load balancers: false in a cluster,
    /// where such a node may be about to be removed; true without a cluster.
    pub eligible_without_node: bool,
    /// Whether `externalIPs` of Services are programmed (the gate `AllowServiceExternalIPs`).
    pub external_ips: bool,
}

impl NodeConfig {
    /// Creates the configuration of a node with this name, with nothing else configured.
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            masquerade_all: false,
            local_pods: LocalPodsConfig::default(),
            node_port_addresses: Vec::new(),
            bind_address: None,
            eligible_without_node: false,
            external_ips: true,
        }
    }
}

impl NodeConfig {
    /// Whether the configuration serves node ports on all IPv4 addresses, so that loopback addresses may
    /// be among them. `primary` hardly means a loopback address.
    pub fn allows_loopback_node_ports(&self) -> bool {
        let lengths = self.node_port_addresses.iter().filter_map(|entry| match entry {
            NodePortAddressConfig::Cidr(IpNet::V4(net)) => Some(net.prefix_len()),
            NodePortAddressConfig::Cidr(IpNet::V6(_)) => None,
            NodePortAddressConfig::Primary => Some(32),
        });
        // Without entries there is no limit.
        lengths.min().is_none_or(|widest| widest == 0)
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
    /// `ClusterCIDR`: the source is in the first of these networks of the family. In a family without
    /// a network, local traffic is not detected.
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
    /// The interface addresses that lie in this network.
    Cidr(IpNet),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_among_all_addresses() {
        let allows = |entries: &[&str]| {
            let entry = |text: &&str| match *text {
                "primary" => NodePortAddressConfig::Primary,
                net => NodePortAddressConfig::Cidr(net.parse().unwrap()),
            };
            let node_port_addresses = entries.iter().map(entry).collect();
            NodeConfig { node_port_addresses, ..NodeConfig::new("n") }.allows_loopback_node_ports()
        };
        assert!(allows(&[]) && allows(&["10.0.0.0/8", "0.0.0.0/0"]));
        assert!(allows(&["fd00::/8"]), "that limits the other family only");
        assert!(!allows(&["10.0.0.0/8"]) && !allows(&["primary"]));
    }
}
