//! Settings of the whole node: from its Node, its interfaces and the ranges of cluster IPs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

use crate::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    model::{IpFamily, PerFamily, aggregated},
    parsed::node::NodeFacts,
    proxier::Capabilities,
    state::{LocalPods, NodePortAddresses, NodeState},
};

/// The sources of node-wide settings.
#[derive(Debug, Default)]
pub(crate) struct NodeInputs {
    /// The facts that the Node states, or stated last; see [`NodeInputs::set_node`].
    pub(crate) node: Option<NodeFacts>,
    pub(crate) node_exists: bool,
    /// The addresses of the node's interfaces; `None` until they are set.
    pub(crate) interface_addresses: Option<BTreeSet<IpAddr>>,
    /// The ranges of each ServiceCIDR, by its name.
    pub(crate) service_cidrs: BTreeMap<String, Vec<IpNet>>,
}

impl NodeInputs {
    /// Sets what the Node states. A node does not stop having an address or pod networks because
    /// its Node is created anew and lacks them for a while: a family that has none keeps the last
    /// known, and the last known internal address while there is an external one only. Otherwise
    /// `primary` would open node ports on all addresses, and traffic would no longer be
    /// masqueraded. Returns whether this changes anything.
    pub(crate) fn set_node(&mut self, mut facts: NodeFacts) -> bool {
        if let Some(before) = &self.node {
            facts.fill_from(before);
        }
        self.node_exists = true;
        let facts = Some(facts);
        let changed = self.node != facts;
        self.node = facts;
        changed
    }

    /// Notes that the Node was deleted. The node keeps its zone, addresses and pod networks, and
    /// stays as eligible as it was.
    pub(crate) fn remove_node(&mut self) {
        self.node_exists = false;
    }

    /// This node's own address in `family`.
    pub(crate) fn node_ip(&self, config: &NodeConfig, family: IpFamily) -> Option<IpAddr> {
        match &self.node {
            Some(node) => node.ip(config.bind_address, family),
            None => NodeFacts::default().ip(config.bind_address, family),
        }
    }

    /// The settings for this node, with a backend that has these capabilities.
    pub(crate) fn resolve(&self, config: &NodeConfig, capabilities: &Capabilities) -> NodeState {
        let addresses = PerFamily::from_fn(|family| self.node_ports(config, family, false));
        let node_ports = match capabilities.lists_node_ports() {
            true => PerFamily::from_fn(|family| {
                NodePortAddresses::Only(self.listed(addresses.get(family), config, family))
            }),
            false => addresses,
        };
        let facts = self.node.as_ref().filter(|_| capabilities.has_proxy_protocol());
        let known = self.interface_addresses.as_ref();
        let known = known.filter(|_| capabilities.lists_node_ports());
        NodeState {
            addresses: known.cloned().unwrap_or_default(),
            local_pods: PerFamily::from_fn(|family| self.local_pods(config, family)),
            pod_networks: facts.map_or_else(Vec::new, |facts| facts.pod_cidrs.clone()),
            node_ports,
            health_check_addresses: match config.health_checks_everywhere {
                true => PerFamily::from_fn(|_| NodePortAddresses::AllLocal),
                false => PerFamily::from_fn(|family| self.node_ports(config, family, true)),
            },
            service_cidrs: match config.service_proxy_name {
                Some(_) => PerFamily::default(),
                None => PerFamily::from_fn(|family| {
                    let nets = self.service_cidrs.values().flatten().copied();
                    let of_family: Vec<IpNet> =
                        nets.filter(|net| IpFamily::of_net(net) == family).collect();
                    aggregated(&of_family)
                }),
            },
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
    /// node ports everywhere. `localhost` is an entry of both families, but does not narrow
    /// `primary`, even if the node's address is not known. `by_sockets` is whether programs listen
    /// there, which loopback addresses are as good for as any.
    fn node_ports(
        &self,
        config: &NodeConfig,
        family: IpFamily,
        by_sockets: bool,
    ) -> NodePortAddresses {
        use NodePortAddressConfig::{Cidr, Localhost, Primary};

        let entries = &config.node_port_addresses;
        let mut nets = Vec::new();
        for entry in entries {
            let net = match entry {
                Primary => {
                    self.node_ip(config, family).filter(|ip| !ip.is_loopback()).map(IpNet::from)
                }
                Localhost => None,
                Cidr(net) => Some(*net),
            };
            nets.extend(net.filter(|net| IpFamily::of_net(net) == family));
        }
        let has_loopback = family == IpFamily::V4 && config.serves_localhost();
        let names_localhost = entries.contains(&Localhost);
        let is_limited = match nets.is_empty() {
            true => names_localhost && !entries.contains(&Primary),
            false => nets.iter().all(|net| net.prefix_len() > 0),
        };
        if !is_limited {
            return match has_loopback {
                true => NodePortAddresses::AllWithLoopback,
                false => NodePortAddresses::AllLocal,
            };
        }
        let is_chosen = |ip: &IpAddr| {
            let is_named = names_localhost && ip.is_loopback() && IpFamily::of(ip) == family;
            let is_possible = has_loopback || by_sockets || !ip.is_loopback();
            is_possible && (is_named || nets.iter().any(|net| net.contains(ip)))
        };
        NodePortAddresses::Only(match &self.interface_addresses {
            Some(addresses) => addresses.iter().copied().filter(is_chosen).collect(),
            // The interfaces are not known: single addresses are taken as configured, and every
            // node has these loopback addresses.
            None => nets
                .iter()
                .filter(|net| net.prefix_len() == net.max_prefix_len())
                .map(IpNet::addr)
                .chain([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
                .filter(is_chosen)
                .collect(),
        })
    }

    /// The addresses that serve node ports, for a backend that has to know each: upstream's choice
    /// in ipvs mode. While the interfaces are not known, the node's own address stands for all.
    fn listed(
        &self,
        addresses: &NodePortAddresses,
        config: &NodeConfig,
        family: IpFamily,
    ) -> BTreeSet<IpAddr> {
        let is_served = |ip: &IpAddr| {
            let is_link_local = matches!(ip, IpAddr::V6(ip) if Ipv6Addr::is_unicast_link_local(ip));
            IpFamily::of(ip) == family && !ip.is_loopback() && !is_link_local
        };
        let known = match (addresses, &self.interface_addresses) {
            (NodePortAddresses::Only(chosen), _) => chosen.clone(),
            (_, Some(all)) => all.clone(),
            (_, None) => self.node_ip(config, family).into_iter().collect(),
        };
        known.into_iter().filter(is_served).collect()
    }
}
