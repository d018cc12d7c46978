//! The Services of `examples/`, the pods behind them, and the clients, in both shows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet_rig::address;

/// One of the two shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Nftables mode in network namespaces; root is needed.
    Cluster,
    /// Userspace mode at loopback addresses, as any user.
    Loopback,
}

/// A Service and its traffic.
#[derive(Debug)]
pub struct Role {
    pub name: &'static str,
    /// The name of the clients on the screen.
    pub clients: &'static str,
    /// The clients' places: names in the rig, or loopback addresses.
    pub places: &'static [&'static str],
    /// The number of clients at each place.
    pub workers: usize,
    /// The pause of a client between two connections, in microseconds.
    pub pause: u64,
    /// The frontends, used in turn: the Service's own address after the name on the screen, if it
    /// has one.
    pub frontends: &'static [&'static str],
}

const fn role(
    name: &'static str,
    clients: &'static str,
    places: &'static [&'static str],
    workers: usize,
    pause: u64,
    frontends: &'static [&'static str],
) -> Role {
    Role { name, clients, places, workers, pause, frontends }
}

/// The Service whose endpoints come and go, as an index into the roles.
pub const WEB: usize = 0;
/// The Service that loses all its endpoints.
pub const DNS: usize = 2;

const CLUSTER: [Role; 6] = [
    role("web", "pod", &["a"], 3, 700, &["cluster IP 10.96.0.10:80 tcp://10.96.0.10:80"]),
    role("api", "pod", &["a"], 1, 4000, &["tcp://10.96.0.20:80", "tcp://[fd00:10:96::20]:80"]),
    role("dns", "pod", &["b"], 2, 4000, &["UDP 10.96.0.53:53 udp://10.96.0.53:53"]),
    role("shop", "outside", &["client"], 2, 4000, &SHOP),
    role("cart", "2 pods, a node", &["a", "b", "node-1"], 1, 5000, &["tcp://10.96.0.40:80"]),
    role("idle", "pod", &["b"], 1, 100_000, &["tcp://10.96.0.50:80"]),
];
const SHOP: [&str; 2] =
    ["node port 30080 tcp://192.168.10.1:30080", "external 198.51.100.10 tcp://198.51.100.10:80"];

const LOOPBACK: [Role; 6] = [
    role("web", "3", &CLIENTS, 1, 1500, &["tcp://10.96.0.10:80"]),
    role("api", "1", &["127.77.9.1"], 1, 5000, &["tcp://10.96.0.20:80", API_V6]),
    role("dns", "3", &CLIENTS, 1, 7500, &["UDP 10.96.0.53:53 udp://10.96.0.53:53"]),
    role("shop", "3", &CLIENTS, 1, 7500, &["tcp://10.96.0.30:80", NODE_PORT]),
    role("cart", "3", &CLIENTS, 1, 6000, &["tcp://10.96.0.40:80"]),
    role("idle", "1", &["127.77.9.1"], 1, 100_000, &["tcp://10.96.0.50:80"]),
];
const CLIENTS: [&str; 3] = ["127.77.9.1", "127.77.9.2", "127.77.9.3"];
const API_V6: &str = "IPv6 tcp://[fd00:10:96::20]:80";
/// The frontend at loopback that is the node port of the Service before it.
pub const NODE_PORT: &str = "node port tcp://10.96.0.30:80";

impl Show {
    /// The Services in the order in which they are shown.
    pub fn roles(self) -> &'static [Role] {
        match self {
            Self::Cluster => &CLUSTER,
            Self::Loopback => &LOOPBACK,
        }
    }

    /// The pods of a Service: name, node, index on the node.
    pub fn pods(self, role: usize) -> Vec<(String, u8, u8)> {
        let places = match (self.roles()[role].name, 3 + role as u8) {
            ("web", _) => vec![(1, 2), (1, 3), (2, 2), (2, 3)],
            ("idle", _) => vec![],
            ("api", index) if self == Self::Loopback => vec![(1, index), (2, index), (1, V6)],
            (_, index) => vec![(1, index), (2, index)],
        };
        let name = |number| format!("{}-{}", self.roles()[role].name, number + 1);
        places.into_iter().enumerate().map(|(i, (node, index))| (name(i), node, index)).collect()
    }

    /// The address of a pod: that in `examples/`, or a loopback address that stands for it.
    pub fn address(self, node: u8, index: u8) -> IpAddr {
        match (self, index) {
            (Self::Cluster, _) => address::pod(node, index).v4.into(),
            (Self::Loopback, V6) => Ipv6Addr::LOCALHOST.into(),
            (Self::Loopback, _) => on_loopback(address::pod(node, index).v4).into(),
        }
    }
}

/// The index of the pod that has the one IPv6 loopback address there is.
const V6: u8 = 0;

/// The loopback address that stands for a pod's address: 127.77.1.12 for 10.244.1.12.
pub fn on_loopback(address: Ipv4Addr) -> Ipv4Addr {
    let [_, _, node, pod] = address.octets();
    Ipv4Addr::new(127, 77, node, pod)
}
