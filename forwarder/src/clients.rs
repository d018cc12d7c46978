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
    /// The addresses of the node, besides loopback addresses.
    pub addresses: BTreeSet<IpAddr>,
}

impl LocalClients {
    /// Whether a client is a pod of this node, or the node itself.
    pub(crate) fn contains(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        client.is_loopback()
            || self.addresses.contains(&client)
            || self.networks.iter().any(|net| net.contains(&client))
    }

    /// Returns the key by which connections of a client are counted: the address of a client that
    /// runs on this node, and of any client of IPv4; otherwise all addresses that begin like an
    /// IPv6 address, since one host can have them all (RFC 4291, section 2.5.4).
    pub(crate) fn source(&self, client: IpAddr) -> IpAddr {
        match client.to_canonical() {
            IpAddr::V6(v6) if !self.contains(client) => {
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
        };
        let is_local = |ip: &str| clients.contains(ip.parse().unwrap());
        assert!(is_local("192.0.2.7"), "a pod");
        assert!(is_local("127.0.0.1") && is_local("203.0.113.1"), "the node");
        assert!(!is_local("198.51.100.7"));
    }

    #[test]
    fn a_pod_is_a_client_and_elsewhere_a_network_of_hosts_is() {
        let networks = vec!["2001:db8::/64".parse().unwrap()];
        let clients = LocalClients { networks, addresses: BTreeSet::new() };
        let source = |ip: &str| clients.source(ip.parse().unwrap()).to_string();
        assert_ne!(source("2001:db8::1"), source("2001:db8::2"), "pods");
        assert_eq!(source("2001:db8:0:1::1"), source("2001:db8:0:1::2"), "a host");
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
        assert_eq!(source("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
