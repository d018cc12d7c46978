//! This node's Node object, and the ranges of cluster IPs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use super::problem::Problems;
use crate::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    model::{IpFamily, PerFamily, aggregated, parse_cidr, parse_ip},
    objects,
    state::{LocalPods, NodePortAddresses, NodeState},
};

/// The label that names a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// A node with this taint is about to be removed: load balancers should stop using it.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// What the Node object of this node says, parsed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    /// The zone, unless the label is missing or empty.
    pub(crate) zone: Option<String>,
    /// Neither being deleted nor tainted as such.
    pub(crate) is_eligible: bool,
    pod_cidrs: Vec<IpNet>,
    /// The first address of each family: internal ones come before external ones.
    addresses: PerFamily<Option<IpAddr>>,
}

impl Node {
    pub(crate) fn parse(object: &objects::Node, problems: &mut Problems) -> Self {
        let mut addresses: PerFamily<Option<IpAddr>> = PerFamily::default();
        for kind in ["InternalIP", "ExternalIP"] {
            for (i, address) in object.status.addresses.iter().enumerate() {
                if address.kind != kind {
                    continue;
                }
                match parse_ip(&address.address) {
                    Ok(ip) => {
                        addresses.of_mut(IpFamily::of(&ip)).get_or_insert(ip);
                    }
                    Err(error) => problems.add(
                        format!("status.addresses[{i}].address"),
                        format_args!("{error}; ignored"),
                    ),
                }
            }
        }
        Self {
            zone: object.metadata.labels.get(ZONE).filter(|zone| !zone.is_empty()).cloned(),
            is_eligible: object.metadata.deletion_timestamp.is_empty()
                && object.spec.taints.iter().all(|taint| taint.key != TO_BE_DELETED),
            pod_cidrs: parse_cidrs("spec.podCIDRs", &object.spec.pod_cidrs, problems),
            addresses,
        }
    }
}

/// The networks in a list of texts.
pub(crate) fn parse_cidrs(field: &str, texts: &[String], problems: &mut Problems) -> Vec<IpNet> {
    let parse = |(i, text): (usize, &String)| {
        parse_cidr(text)
            .map_err(|error| {
                problems.add(format!("{field}[{i}]"), format_args!("{error}; ignored"))
            })
            .ok()
    };
    texts.iter().enumerate().filter_map(parse).collect()
}

/// What node-wide settings are made of.
#[derive(Debug, Default)]
pub(crate) struct NodeInputs {
    pub(crate) node: Option<Node>,
    /// The addresses of the node's interfaces; `None` until somebody says them.
    pub(crate) interface_addresses: Option<BTreeSet<IpAddr>>,
    /// The ranges of each ServiceCIDR, by its name.
    pub(crate) service_cidrs: BTreeMap<String, Vec<IpNet>>,
}

impl NodeInputs {
    /// This node's own address in `family`.
    pub(crate) fn node_ip(&self, config: &NodeConfig, family: IpFamily) -> Option<IpAddr> {
        let bound = config.bind_address.filter(|ip| !ip.is_unspecified());
        bound
            .filter(|ip| IpFamily::of(ip) == family)
            .or_else(|| *self.node.as_ref()?.addresses.of(family))
    }

    /// The settings for this node.
    pub(crate) fn resolve(&self, config: &NodeConfig) -> NodeState {
        NodeState {
            local_pods: PerFamily::from_fn(|family| self.local_pods(config, family)),
            node_ports: PerFamily::from_fn(|family| self.node_ports(config, family)),
            service_cidrs: PerFamily::from_fn(|family| {
                let nets = self.service_cidrs.values().flatten().copied();
                let of_family: Vec<IpNet> =
                    nets.filter(|net| IpFamily::of_net(net) == family).collect();
                aggregated(&of_family)
            }),
        }
    }

    fn local_pods(&self, config: &NodeConfig, family: IpFamily) -> Option<LocalPods> {
        let first = |nets: &[IpNet]| {
            let net = nets.iter().find(|net| IpFamily::of_net(net) == family);
            net.copied().map(LocalPods::Source)
        };
        match &config.local_pods {
            LocalPodsConfig::ClusterCidr(nets) => first(nets),
            LocalPodsConfig::NodeCidr => first(&self.node.as_ref()?.pod_cidrs),
            LocalPodsConfig::BridgeInterface(name) => Some(LocalPods::Interface(name.clone())),
            LocalPodsConfig::InterfaceNamePrefix(prefix) => {
                Some(LocalPods::InterfacePrefix(prefix.clone()))
            }
        }
    }

    /// Upstream's rule: a family that no entry is left for, or that has an entry of /0, serves
    /// node ports everywhere.
    fn node_ports(&self, config: &NodeConfig, family: IpFamily) -> NodePortAddresses {
        let mut nets = Vec::new();
        for entry in &config.node_port_addresses {
            let net = match entry {
                NodePortAddressConfig::Primary => {
                    self.node_ip(config, family).filter(|ip| !ip.is_loopback()).map(IpNet::from)
                }
                NodePortAddressConfig::Cidr(net) => Some(*net),
            };
            nets.extend(net.filter(|net| IpFamily::of_net(net) == family));
        }
        if nets.is_empty() || nets.iter().any(|net| net.prefix_len() == 0) {
            return NodePortAddresses::AllLocal;
        }
        let is_within =
            |ip: &&IpAddr| !ip.is_loopback() && nets.iter().any(|net| net.contains(*ip));
        NodePortAddresses::Only(match &self.interface_addresses {
            Some(addresses) => addresses.iter().filter(is_within).copied().collect(),
            // Nobody lists interfaces for us: single addresses are taken at their word.
            None => nets
                .iter()
                .filter(|net| net.prefix_len() == net.max_prefix_len())
                .map(IpNet::addr)
                .filter(|ip| !ip.is_loopback())
                .collect(),
        })
    }
}
