//! This node as its Node object tells of it at the start: [`discovery`] waits for that, and
//! [`sanity`] holds the configuration against it.
//!
//! The engine follows the Node by itself, and for ever. What is here are the questions that are
//! asked once: is there a Node, which family is the node's own, and does the configuration fit?

pub mod discovery;
pub mod sanity;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proxy_core::{
    model::{IpFamily, PerFamily, parse_cidr, parse_ip},
    objects::Node,
};

/// What a Node says that matters at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its first address, and the first of the other family: internal ones before external ones.
    pub ips: Vec<IpAddr>,
    /// `spec.podCIDRs`, as far as they can be read.
    pub pod_cidrs: Vec<IpNet>,
}

impl NodeFacts {
    /// Reads them. What cannot be read is passed over; the tracker reports it.
    pub fn of(node: &Node) -> Self {
        let of_kind = |kind: &'static str| {
            let addresses = node.status.addresses.iter().filter(move |a| a.kind == kind);
            addresses.filter_map(|address| parse_ip(&address.address).ok())
        };
        let mut ips: Vec<IpAddr> = Vec::new();
        for ip in of_kind("InternalIP").chain(of_kind("ExternalIP")) {
            if ips.iter().all(|known| IpFamily::of(known) != IpFamily::of(&ip)) {
                ips.push(ip);
            }
        }
        let pod_cidrs = node.spec.pod_cidrs.iter().filter_map(|text| parse_cidr(text).ok());
        Self { ips, pod_cidrs: pod_cidrs.collect() }
    }
}

/// The node's own addresses, and which family comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeIps {
    /// The family of the node's first address.
    pub primary: IpFamily,
    /// An address of each family; a loopback address where none is known.
    pub ips: PerFamily<IpAddr>,
}

impl NodeIps {
    /// By what the Node says and `bindAddress`, if that names one address: it stands for the node's
    /// in its family, and makes that the primary one.
    pub fn detect(facts: &NodeFacts, bind_address: Option<IpAddr>) -> Self {
        let mut ips = PerFamily { v4: Ipv4Addr::LOCALHOST.into(), v6: Ipv6Addr::LOCALHOST.into() };
        for ip in facts.ips.iter().copied().chain(bind_address) {
            *ips.of_mut(IpFamily::of(&ip)) = ip;
        }
        let first = bind_address.as_ref().or(facts.ips.first());
        Self { primary: first.map_or(IpFamily::V4, IpFamily::of), ips }
    }

    /// The address of the primary family.
    pub fn primary_ip(&self) -> IpAddr {
        *self.ips.of(self.primary)
    }
}

#[cfg(test)]
mod tests {
    use proxy_core::objects::NodeAddress;

    use super::*;

    pub(super) fn node(addresses: &[(&str, &str)], pod_cidrs: &[&str]) -> Node {
        let mut node = Node::default();
        node.metadata.name = "node-1".into();
        let address = |(kind, address): &(&str, &str)| NodeAddress {
            kind: (*kind).into(),
            address: (*address).into(),
        };
        node.status.addresses = addresses.iter().map(address).collect();
        node.spec.pod_cidrs = pod_cidrs.iter().map(|&text| text.into()).collect();
        node
    }

    #[test]
    fn internal_addresses_come_first_and_families_follow_once() {
        let ips = |addresses: &[(&str, &str)]| {
            let ips = NodeFacts::of(&node(addresses, &[])).ips;
            ips.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        let (internal, external) = ("InternalIP", "ExternalIP");
        assert_eq!(
            ips(&[
                (external, "203.0.113.1"),
                (internal, "fd00::1"),
                ("Hostname", "10.9.9.9"),
                (internal, "nonsense"),
                (internal, "fd00::2"),
                (internal, "010.0.0.1"),
            ]),
            ["fd00::1", "10.0.0.1"]
        );
        assert_eq!(ips(&[(external, "203.0.113.1")]), ["203.0.113.1"]);
        assert_eq!(ips(&[("Hostname", "x")]), [""; 0]);
    }

    #[test]
    fn the_primary_family_is_that_of_the_first_or_the_bind_address() {
        let detect = |ips: &[&str], bind: &str| {
            let ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let bind = bind.parse::<IpAddr>().ok().filter(|ip| !ip.is_unspecified());
            let found = NodeIps::detect(&NodeFacts { ips, ..NodeFacts::default() }, bind);
            (found.primary, found.ips.v4.to_string(), found.ips.v6.to_string())
        };
        let is = |primary, v4: &str, v6: &str| (primary, v4.to_owned(), v6.to_owned());
        use IpFamily::{V4, V6};
        assert_eq!(detect(&[], ""), is(V4, "127.0.0.1", "::1"));
        assert_eq!(detect(&[], "::"), is(V4, "127.0.0.1", "::1"), "all zeros are no address");
        assert_eq!(detect(&["10.0.0.1"], "::"), is(V4, "10.0.0.1", "::1"));
        assert_eq!(detect(&["fd00::1", "10.0.0.1"], ""), is(V6, "10.0.0.1", "fd00::1"));
        assert_eq!(detect(&["fd00::1", "10.0.0.1"], "10.0.0.9"), is(V4, "10.0.0.9", "fd00::1"));
        assert_eq!(detect(&["10.0.0.1"], "fd00::9"), is(V6, "10.0.0.1", "fd00::9"));
    }
}
