//! The Services of `examples/`, the pods behind them, and the clients, in both shows.

use std::net::Ipv4Addr;

use packet_rig::address;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Nftables mode in network namespaces; root is needed.
    Cluster,
    /// Userspace mode at loopback addresses, as any user.
    Loopback,
}

type Name = &'static str;
type Names = &'static [Name];

/// A Service and its traffic.
#[derive(Debug)]
pub struct Role {
    pub name: Name,
    pub clients: Name,
    /// The clients' places: names in the rig, or loopback addresses.
    pub places: Names,
    pub workers: usize,
    /// The pause of a client between two connections, in microseconds.
    pub pause: u64,
    /// The frontends, used in turn: the Service's own address after the name on the screen, if it
    /// has one.
    pub frontends: Names,
}

#[rustfmt::skip]
const fn role(name: Name, clients: Name, places: Names, workers: usize, pause: u64, frontends: Names) -> Role {
    Role { name, clients, places, workers, pause, frontends }
}

/// The Service whose endpoints come and go, as an index into the roles.
pub const WEB: usize = 0;
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
    role("api", "1", &["127.77.9.1"], 1, 5000, &["tcp://10.96.0.20:80"]),
    role("dns", "3", &CLIENTS, 1, 7500, &["UDP 10.96.0.53:53 udp://10.96.0.53:53"]),
    role("shop", "3", &CLIENTS, 1, 7500, &["tcp://10.96.0.30:80", NODE_PORT]),
    role("cart", "3", &CLIENTS, 1, 6000, &["tcp://10.96.0.40:80"]),
    role("idle", "1", &["127.77.9.1"], 1, 100_000, &["tcp://10.96.0.50:80"]),
];
const CLIENTS: [&str; 3] = ["127.77.9.1", "127.77.9.2", "127.77.9.3"];
pub const NODE_PORT: &str = "node port tcp://10.96.0.30:80";

impl Show {
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
            (_, index) => vec![(1, index), (2, index)],
        };
        let name = |number| format!("{}-{}", self.roles()[role].name, number + 1);
        places.into_iter().enumerate().map(|(i, (node, index))| (name(i), node, index)).collect()
    }

    /// The address of a pod: that in `examples/`, or a loopback address that stands for it.
    pub fn address(self, node: u8, index: u8) -> Ipv4Addr {
        let address = address::pod(node, index).v4;
        match self {
            Self::Cluster => address,
            Self::Loopback => on_loopback(address),
        }
    }
}

/// The loopback address that stands for a pod's address: 127.77.1.12 for 10.244.1.12.
pub fn on_loopback(address: Ipv4Addr) -> Ipv4Addr {
    let [_, _, node, pod] = address.octets();
    Ipv4Addr::new(127, 77, node, pod)
}
