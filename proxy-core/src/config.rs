//! What an operator or an embedder says about this node.

use std::net::IpAddr;

use ipnet::IpNet;

/// The node that Services are resolved for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// The node's name, as in `nodeName` of endpoints and `metadata.name` of its Node.
    pub node_name: String,
    /// Masquerade all traffic to cluster IPs, whoever sends it.
    pub masquerade_all: bool,
    /// How to tell that traffic comes from a pod of this node (`detectLocalMode`).
    pub local_pods: LocalPodsConfig,
    /// Where node ports are served (`nodePortAddresses`); empty means on all local addresses.
    pub node_port_addresses: Vec<NodePortAddressConfig>,
    /// `bindAddress`, if it names one address: it stands for the node's own in its family.
    pub bind_address: Option<IpAddr>,
    /// Whether a node that has no Node object may have traffic from load balancers. In a cluster
    /// it may not, since it is not known whether it is being removed; without one it may.
    pub eligible_without_node: bool,
    /// Whether `externalIPs` of Services are programmed (the gate `AllowServiceExternalIPs`).
    pub external_ips: bool,
}

impl NodeConfig {
    /// A node of this name, with nothing else configured.
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
    /// Whether the Node object decides where node ports are served, or which pods are local.
    pub(crate) fn asks_the_node(&self) -> bool {
        self.node_port_addresses.contains(&NodePortAddressConfig::Primary)
            || self.local_pods == LocalPodsConfig::NodeCidr
    }
}

/// `detectLocalMode` and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalPodsConfig {
    /// `ClusterCIDR`: the source is in the first of these networks of the family. A family without
    /// one cannot tell.
    ClusterCidr(Vec<IpNet>),
    /// `NodeCIDR`: the source is in the first of the Node's `spec.podCIDRs` of the family.
    NodeCidr,
    /// `BridgeInterface`: the packet came in through this interface.
    BridgeInterface(String),
    /// `InterfaceNamePrefix`: the packet came in through an interface whose name starts so.
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
    /// `primary`: the node's first address of each family, as its Node (or
    /// [`NodeConfig::bind_address`]) says.
    Primary,
    /// The interface addresses that lie in this network.
    Cidr(IpNet),
}
