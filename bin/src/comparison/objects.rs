//! The fates of packets that objects ask for, read from the resolved state alone.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use switchyard_core::{
    model::{IpFamily, LocalPods, Protocol, ServicePortId},
    state::{
        Action, Endpoint, FrontendAddress, Masquerade, NodePortAddresses, NodeState, PoolKind,
        ResolvedServicePort,
    },
};
use switchyard_kernel::nftables::{
    Family,
    bytecode::{Domain, End, PacketField, Packets, interface_name, interface_prefix},
};

use super::asked::{Asked, Class, address, number};

/// Sources that the node's settings tell apart.
struct Sources {
    name: &'static str,
    packets: Packets,
    is_pod: bool,
    is_node: bool,
}

/// Destinations, with the only one if there is one, and the ports that frontends have there.
type Region = (Option<IpAddr>, Domain, Vec<(Protocol, u16)>);

/// A family of the objects.
pub struct Objects<'a> {
    family: Family,
    node: &'a NodeState,
    ports: Vec<&'a ResolvedServicePort>,
    /// The node's addresses, with all loopback ones.
    pub local: Domain,
    loopback: Domain,
    /// The endpoints that may be on this node, whose connections to themselves are masqueraded.
    hairpin: HashSet<(Protocol, IpAddr, u16)>,
    /// The endpoints whose weight is 0.
    drained: HashSet<(&'a ServicePortId, SocketAddr)>,
    /// Addresses and ports that other Services have; `None` if the ports are those of all Services.
    others: Option<&'a [(Protocol, u16, IpAddr)]>,
}

impl<'a> Objects<'a> {
    pub fn new(
        family: Family,
        node: &'a NodeState,
        ports: impl IntoIterator<Item = &'a Arc<ResolvedServicePort>>,
        addresses: &BTreeSet<IpAddr>,
    ) -> Self {
        let ports = ports.into_iter().map(|port| &**port);
        let ports: Vec<_> = ports.filter(|port| Family::from(port.id.family) == family).collect();
        let loopback = match family {
            Family::Ip => [(0x7f00_0000, 0x7fff_ffff)],
            Family::Ip6 => [(1, 1)],
        };
        let own = addresses.iter().filter(|ip| Family::from(IpFamily::of(ip)) == family);
        let own = own.map(|ip| (number(*ip), number(*ip)));
        let local = Domain::new(own.chain(loopback));
        let hairpin = ports.iter().flat_map(|port| {
            let protocol = port.id.name.protocol;
            let local = port.reachable().filter(|endpoint| endpoint.may_be_local);
            local.map(move |one| (protocol, one.address.ip(), one.address.port()))
        });
        let hairpin = hairpin.collect();
        let loopback = Domain::new(loopback);
        let drained = HashSet::new();
        Self { family, node, ports, local, loopback, hairpin, drained, others: None }
    }

    /// Adds the endpoints whose weight is 0, which are in no pool.
    #[must_use]
    pub fn drained(
        mut self,
        endpoints: impl IntoIterator<Item = (&'a ServicePortId, SocketAddr)>,
    ) -> Self {
        self.drained.extend(endpoints);
        self
    }

    /// Whether packets go to an endpoint of the port whose weight is 0.
    pub fn is_drained(&self, port: &ServicePortId, end: &End) -> bool {
        let End::Passed { to: Some((ip, number)), .. } = *end else { return false };
        self.drained.contains(&(port, SocketAddr::new(address(self.family, ip), number)))
    }

    /// Takes the ports for those of a part of the Services: the packets about which other Services
    /// decide are left out. These have the addresses and ports of the node in `others`.
    #[must_use]
    pub fn beside(mut self, others: &'a [(Protocol, u16, IpAddr)]) -> Self {
        self.others = Some(others);
        self
    }

    /// Shows all classes of packets.
    pub fn classes(&self, see: &mut dyn FnMut(Class<'a>)) {
        let sources = self.sources();
        let mut taken: HashMap<(Protocol, u16), Vec<IpAddr>> = HashMap::new();
        for &(protocol, port, ip) in self.others.unwrap_or_default() {
            taken.entry((protocol, port)).or_default().push(ip);
        }
        let mut others: BTreeMap<IpAddr, Vec<(Protocol, u16)>> = BTreeMap::new();
        let mut node_ports: Vec<(Protocol, u16)> = Vec::new();
        for port in &self.ports {
            let protocol = port.id.name.protocol;
            for frontend in &port.frontends {
                match frontend.at.ip() {
                    Some(ip) => {
                        taken.entry((protocol, frontend.port)).or_default().push(ip);
                        others.entry(ip).or_default().push((protocol, frontend.port));
                    }
                    None => node_ports.push((protocol, frontend.port)),
                }
            }
        }
        for port in &self.ports {
            let protocol = port.id.name.protocol;
            for frontend in &port.frontends {
                let destination = match frontend.at.ip() {
                    Some(ip) => Domain::one(number(ip)),
                    None => {
                        let of_services = taken.get(&(protocol, frontend.port));
                        let of_services = of_services.into_iter().flatten();
                        let of_services = of_services.map(|ip| (number(*ip), number(*ip)));
                        self.served().without(&Domain::new(of_services))
                    }
                };
                let at = match frontend.at.ip() {
                    Some(ip) => ip.to_string(),
                    None => "the node's addresses".to_owned(),
                };
                let to = format!("{} {at}, port {}", protocol.as_lower(), frontend.port);
                for source in &sources {
                    let packets = source.packets.with(PacketField::Destination, &destination);
                    let packets = packets
                        .with(PacketField::Protocol, &Domain::one(protocol.number().into()))
                        .with(PacketField::DestinationPort, &Domain::one(frontend.port.into()));
                    let packets = self.not_martian(packets);
                    let mut class = |from, packets: Packets, asked| {
                        if !packets.is_empty() {
                            see(Class { port: Some(port), to: to.clone(), from, packets, asked });
                        }
                    };
                    let allowed = match &frontend.allowed_sources {
                        None => packets,
                        Some(ranges) => {
                            let ranges = Domain::new(ranges.iter().map(|net| interval(*net)));
                            let outside = packets.without(PacketField::Source, &ranges);
                            class("outside the source ranges", outside, Asked::End(End::Dropped));
                            packets.with(PacketField::Source, &ranges)
                        }
                    };
                    self.at_frontend(port, frontend.action, source, allowed, &mut class);
                }
            }
        }
        if self.others.is_none() {
            self.elsewhere(&others, &node_ports, see);
        }
    }

    fn at_frontend(
        &self,
        port: &'a ResolvedServicePort,
        action: Action,
        source: &Sources,
        packets: Packets,
        class: &mut dyn FnMut(&'static str, Packets, Asked<'a>),
    ) {
        let (kind, masquerades) = match action {
            Action::Pool { pool, masquerade } => (
                pool,
                match masquerade {
                    Masquerade::Never => false,
                    Masquerade::ExceptLocalPods => !source.is_pod,
                    Masquerade::Always => true,
                },
            ),
            Action::ExternalLocal if source.is_pod => (PoolKind::Cluster, false),
            Action::ExternalLocal if source.is_node => (PoolKind::Cluster, true),
            Action::ExternalLocal if !port.local.is_empty() => (PoolKind::Local, false),
            Action::Reject => return class(source.name, packets, Asked::End(End::Rejected)),
            Action::ExternalLocal | Action::Drop => {
                return class(source.name, packets, Asked::End(End::Dropped));
            }
            // Of a state that is derived for another backend.
            Action::Delivered { .. } | Action::DeliveredLocal => return,
        };
        let pool = port.pool(kind);
        let protocol = port.id.name.protocol;
        let is_hairpin = |endpoint: &Endpoint| {
            self.hairpin.contains(&(protocol, endpoint.address.ip(), endpoint.address.port()))
        };
        let themselves: BTreeSet<IpAddr> =
            pool.iter().filter(|one| is_hairpin(one)).map(|one| one.address.ip()).collect();
        let mut part = |name, packets: Packets, client: Option<IpAddr>| {
            let end = |endpoint: &Endpoint| {
                let (ip, port) = (endpoint.address.ip(), endpoint.address.port());
                let returns = client == Some(ip) && is_hairpin(endpoint);
                // What comes in for the node does not leave it, and keeps its source.
                let leaves = packets.is_from_node() || !self.local.contains(number(ip));
                let masqueraded = (masquerades || returns) && leaves;
                End::Passed { to: Some((number(ip), port)), masqueraded }
            };
            let ends = pool.iter().map(end).collect();
            let algorithm = port.lb_algorithm;
            let affinity = port.affinity;
            class(name, packets, Asked::Pool { kind, pool, affinity, algorithm, ends });
        };
        let mut rest = packets;
        for &ip in &themselves {
            let own = Domain::one(number(ip));
            if rest.get(PacketField::Source).contains(number(ip)) {
                part("an endpoint itself", rest.with(PacketField::Source, &own), Some(ip));
                rest = rest.without(PacketField::Source, &own);
            }
        }
        if self.others.is_some() {
            // Another Service may have them as endpoints of this node.
            let unknown = pool.iter().filter(|one| !is_hairpin(one));
            let unknown = unknown.map(|one| (number(one.address.ip()), number(one.address.ip())));
            rest = rest.without(PacketField::Source, &Domain::new(unknown));
        }
        part(source.name, rest, None);
    }

    /// All packets that are to no frontend.
    fn elsewhere(
        &self,
        others: &BTreeMap<IpAddr, Vec<(Protocol, u16)>>,
        node_ports: &[(Protocol, u16)],
        see: &mut dyn FnMut(Class<'a>),
    ) {
        let cluster_ips: HashMap<IpAddr, &'a ResolvedServicePort> = self
            .ports
            .iter()
            .flat_map(|port| port.frontends.iter().map(move |frontend| (frontend.at, *port)))
            .filter_map(|(at, port)| match at {
                FrontendAddress::ClusterIp(ip) => Some((ip, port)),
                _ => None,
            })
            .collect();
        let cidrs = self.node.service_cidrs.get(self.family.into()).iter();
        let cidrs = Domain::new(cidrs.map(|net| interval(*net)));
        let served = self.served();
        let known = Domain::new(others.keys().map(|ip| (number(*ip), number(*ip))));
        let mut regions: Vec<Region> = Vec::new();
        for (&ip, ports) in others {
            let mut ports = ports.clone();
            if served.contains(number(ip)) {
                ports.extend(node_ports);
            }
            regions.push((Some(ip), Domain::one(number(ip)), ports));
        }
        regions.push((None, served.without(&known), node_ports.to_vec()));
        let rest = Domain::all(8 * PacketField::Destination.length(self.family) as u32);
        regions.push((None, rest.without(&known).without(&served), Vec::new()));
        for is_from_node in [false, true] {
            let all = self.all(is_from_node);
            let from = if is_from_node { "this node" } else { "anywhere else" };
            for (ip, destination, ports) in &regions {
                let packets = all.with(PacketField::Destination, destination);
                let packets = self.not_martian(packets);
                let is_known = ip.and_then(|ip| cluster_ips.get(&ip)).copied();
                // The node does not forward what is its own.
                let checked = match is_from_node {
                    true => packets.clone(),
                    false => packets.without(PacketField::Destination, &self.local),
                };
                let unchecked = match is_from_node {
                    true => packets.with(PacketField::Destination, &Domain::new([])),
                    false => packets.with(PacketField::Destination, &self.local),
                };
                let passed = || End::Passed { to: None, masqueraded: false };
                let parts = match is_known {
                    Some(_) => vec![(checked, End::Rejected), (unchecked, passed())],
                    None => vec![
                        (checked.with(PacketField::Destination, &cidrs), End::Dropped),
                        (checked.without(PacketField::Destination, &cidrs), passed()),
                        (unchecked, passed()),
                    ],
                };
                for (packets, end) in parts {
                    self.other_ports(&packets, ports, &mut |packets| {
                        let to = match ip {
                            Some(ip) => format!("other ports of {ip}"),
                            None => "addresses that no Service has".to_owned(),
                        };
                        let asked = Asked::End(end.clone());
                        see(Class { port: is_known, to, from, packets, asked });
                    });
                }
            }
        }
    }

    /// Splits packets by protocol, without those to some ports.
    fn other_ports(
        &self,
        packets: &Packets,
        ports: &[(Protocol, u16)],
        see: &mut dyn FnMut(Packets),
    ) {
        if packets.is_empty() {
            return;
        }
        let mut rest = packets.clone();
        for protocol in Protocol::ALL {
            let own = Domain::one(protocol.number().into());
            let ports = ports.iter().filter(|(of, _)| *of == protocol);
            let ports = Domain::new(ports.map(|(_, port)| (u128::from(*port), u128::from(*port))));
            if !ports.is_empty() {
                let packets = rest.with(PacketField::Protocol, &own);
                see(packets.without(PacketField::DestinationPort, &ports));
                rest = rest.without(PacketField::Protocol, &own);
            }
        }
        see(rest);
    }

    /// The addresses at which node ports are served.
    fn served(&self) -> Domain {
        match self.node.node_ports.get(self.family.into()) {
            NodePortAddresses::AllLocal => self.local.without(&self.loopback),
            NodePortAddresses::AllWithLoopback => self.local.clone(),
            NodePortAddresses::Only(ips) => {
                Domain::new(ips.iter().map(|ip| (number(*ip), number(*ip))))
            }
        }
    }

    /// Whether packets are to loopback addresses alone.
    pub fn is_loopback(&self, packets: &Packets) -> bool {
        packets.without(PacketField::Destination, &self.loopback).is_empty()
    }

    /// Leaves out packets of other hosts from or to loopback addresses, which the kernel or the
    /// first two rules drop.
    fn not_martian(&self, packets: Packets) -> Packets {
        match packets.is_from_node() {
            true => packets,
            false => packets
                .without(PacketField::Source, &self.loopback)
                .without(PacketField::Destination, &self.loopback),
        }
    }

    fn all(&self, is_from_node: bool) -> Packets {
        let all = Packets::all(self.family, is_from_node);
        match is_from_node {
            true => all.with(PacketField::Source, &self.local),
            false => all,
        }
    }

    fn sources(&self) -> Vec<Sources> {
        let mut sources = Vec::new();
        for is_from_node in [false, true] {
            let all = self.all(is_from_node);
            let (pods, others) = match self.node.local_pods.get(self.family.into()) {
                None => (None, all),
                Some(pods) => {
                    let (field, interval) = match pods {
                        LocalPods::Source(net) => (PacketField::Source, interval(*net)),
                        LocalPods::Interface(name) => {
                            (PacketField::Interface, interface_name(name.as_str()))
                        }
                        LocalPods::InterfacePrefix(prefix) => {
                            (PacketField::Interface, interface_prefix(prefix.as_str()))
                        }
                    };
                    let pods = Domain::new([interval]);
                    (Some(all.with(field, &pods)), all.without(field, &pods))
                }
            };
            let mut add = |name, packets: Packets, is_pod, is_node| {
                if !packets.is_empty() {
                    sources.push(Sources { name, packets, is_pod, is_node });
                }
            };
            if let Some(pods) = pods {
                add("pods of this node", pods, true, false);
            }
            let own = others.with(PacketField::Source, &self.local);
            let name = if is_from_node { "this node" } else { "addresses of this node" };
            add(name, own, false, true);
            add("other hosts", others.without(PacketField::Source, &self.local), false, false);
        }
        sources
    }
}

fn interval(net: IpNet) -> (u128, u128) {
    (number(net.network()), number(net.broadcast()))
}
