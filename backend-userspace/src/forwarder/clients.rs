//! The clients that run on this node: `externalTrafficPolicy: Local` and limits distinguish them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::IpNet;

/// The clients that run on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalClients {
    /// The networks of this node's pods.
    pub networks: Vec<IpNet>,
    /// More networks of pods: they count as clients of their own, but not as clients on this node.
    pub pods: Vec<IpNet>,
    /// The addresses of the node, besides loopback addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// The networks of the node's interfaces. Two hosts of one reach each other without the node.
    pub links: Vec<IpNet>,
}

impl LocalClients {
    /// Whether a client is a pod of this node, or the node itself.
    pub(crate) fn contains(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        client.is_loopback()
            || self.addresses.contains(&client)
            || self.networks.iter().any(|net| net.contains(&client))
    }

    /// Whether the answers of an endpoint to the address of a client come back to this node:
    /// neither is the client here, nor the endpoint the node itself, nor do they share a network.
    pub(crate) fn are_behind(&self, client: IpAddr, endpoint: IpAddr) -> bool {
        let client = client.to_canonical();
        let is_of_link = match client {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        client.is_ipv4() == endpoint.is_ipv4()
            && client != endpoint
            && !is_of_link
            && !endpoint.is_loopback()
            && !self.addresses.contains(&endpoint)
            && !self.contains(client)
            && !self.links.iter().any(|net| net.contains(&client) && net.contains(&endpoint))
    }

    /// Returns the key by which connections of a client are counted: the address of a client that
    /// runs on this node, of a pod, and of any client of IPv4; otherwise all addresses that begin
    /// like an IPv6 address, since one host can have them all (RFC 4291, section 2.5.4).
    pub(crate) fn source(&self, client: IpAddr) -> IpAddr {
        let ip = client.to_canonical();
        let is_pod = || self.pods.iter().any(|net| net.contains(&ip));
        match ip {
            IpAddr::V6(v6) if !self.contains(ip) && !is_pod() => {
                Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into()
            }
            ip => ip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_and_its_pods_are_local() {
        let clients = LocalClients {
            networks: vec!["192.0.2.0/24".parse().unwrap()],
            addresses: BTreeSet::from(["203.0.113.1".parse().unwrap()]),
            ..LocalClients::default()
        };
        let is_local = |ip: &str| clients.contains(ip.parse().unwrap());
        assert!(is_local("192.0.2.7"), "a pod");
        assert!(is_local("127.0.0.1") && is_local("203.0.113.1"), "the node");
        assert!(!is_local("198.51.100.7"));
    }

    #[test]
    fn answers_come_back_from_pods_to_clients_behind_the_node() {
        let clients = LocalClients {
            networks: vec!["10.0.1.0/24".parse().unwrap()],
            addresses: BTreeSet::from(["203.0.113.1".parse().unwrap()]),
            pods: vec!["203.0.113.0/24".parse().unwrap()],
            links: vec!["10.0.1.0/25".parse().unwrap(), "10.0.9.0/24".parse().unwrap()],
        };
        let are_behind = |client: &str, at: &str| {
            clients.are_behind(client.parse().unwrap(), at.parse().unwrap())
        };
        assert!(are_behind("203.0.113.7", "10.0.1.2"), "a client from elsewhere");
        assert!(are_behind("::ffff:203.0.113.7", "10.0.1.2"));
        assert!(!are_behind("10.0.1.3", "10.0.1.2"), "a pod");
        assert!(!are_behind("203.0.113.1", "10.0.1.2"), "the node");
        assert!(!are_behind("203.0.113.7", "203.0.113.1"), "an endpoint that is the node");
        assert!(!are_behind("10.0.9.7", "10.0.9.2"), "hosts of one network");
        assert!(!are_behind("169.254.7.7", "10.0.1.2"), "an address without a route");
        assert!(!are_behind("2001:db8::7", "10.0.1.2"), "another family");
    }

    #[test]
    fn a_pod_is_a_client_and_elsewhere_a_network_of_hosts_is() {
        let networks = vec!["2001:db8::/64".parse().unwrap()];
        let pods = vec!["2001:db8:1::/64".parse().unwrap()];
        let clients = LocalClients { networks, pods, ..LocalClients::default() };
        let source = |ip: &str| clients.source(ip.parse().unwrap()).to_string();
        assert_ne!(source("2001:db8::1"), source("2001:db8::2"), "pods");
        assert_ne!(source("2001:db8:1::1"), source("2001:db8:1::2"), "pods");
        assert_eq!(source("2001:db8:0:1::1"), source("2001:db8:0:1::2"), "a host");
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
        assert_eq!(source("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
