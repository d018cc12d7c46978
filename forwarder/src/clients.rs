//! The clients that run on this node, which matters to `externalTrafficPolicy: Local`.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use ipnet::IpNet;

/// The clients that run on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalClients {
    /// The networks of this node's pods.
    pub networks: Vec<IpNet>,
}

impl LocalClients {
    /// Whether a client is a pod of this node, or the node itself.
    pub(crate) fn contains(&self, client: IpAddr) -> bool {
        self.networks.iter().any(|net| net.contains(&client)) || is_of_this_node(client)
    }
}

/// Whether an address is the node's: only then can a socket have it. This asks the system, in the
/// namespace of the calling thread, and so knows addresses that came a moment ago.
fn is_of_this_node(ip: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_and_its_pods_are_local() {
        let clients = LocalClients { networks: vec!["192.0.2.0/24".parse().unwrap()] };
        let is_local = |ip: &str| clients.contains(ip.parse().unwrap());
        assert!(is_local("192.0.2.7"), "a pod");
        assert!(is_local("127.0.0.1"), "the node");
        assert!(!is_local("198.51.100.7"));
    }
}
