//! The cast of the demo: the Services of `examples/`, the pods behind them, and the clients.

use packet_rig::{Protocol, Topology, address};

/// A pod with an echo server.
#[derive(Debug)]
pub struct Pod {
    /// The name with which the pod's server answers.
    pub name: &'static str,
    /// The number of the pod's node.
    pub node: u8,
    /// The pod's index on the node, from which the address follows.
    pub index: u8,
}

impl Pod {
    const fn new(name: &'static str, node: u8, index: u8) -> Self {
        Self { name, node, index }
    }

    /// The IPv4 address as text.
    pub fn address(&self) -> String {
        address::pod(self.node, self.index).v4.to_string()
    }
}

/// The pods, grouped by Service, in the order in which they are shown.
pub const PODS: [Pod; 12] = [
    Pod::new("web-1", 1, 2),
    Pod::new("web-2", 1, 3),
    Pod::new("web-3", 2, 2),
    Pod::new("web-4", 2, 3),
    Pod::new("api-1", 1, 4),
    Pod::new("api-2", 2, 4),
    Pod::new("dns-1", 1, 5),
    Pod::new("dns-2", 2, 5),
    Pod::new("shop-1", 1, 6),
    Pod::new("shop-2", 2, 6),
    Pod::new("cart-1", 1, 7),
    Pod::new("cart-2", 2, 7),
];

/// A frontend of a Service.
#[derive(Debug)]
pub struct Frontend {
    /// The name on the screen.
    pub label: &'static str,
    /// The protocol.
    pub protocol: Protocol,
    /// The address and port that clients connect to.
    pub target: &'static str,
}

impl Frontend {
    const fn tcp(label: &'static str, target: &'static str) -> Self {
        Self { label, protocol: Protocol::Tcp, target }
    }
}

/// A Service and its traffic.
#[derive(Debug)]
pub struct Role {
    /// The Service's name; its endpoints' names begin with it.
    pub name: &'static str,
    /// The name of the clients on the screen.
    pub clients: &'static str,
    /// The clients' places in the rig.
    pub places: &'static [&'static str],
    /// The number of clients at each place.
    pub workers: usize,
    /// The pause of a client between two connections, in microseconds.
    pub pause: u64,
    /// The frontends, used in turn.
    pub frontends: &'static [Frontend],
    /// The remark on the screen.
    pub note: Note,
}

/// A remark about a Service on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Nothing.
    None,
    /// The Service has endpoints of both families.
    DualStack,
    /// Whether every client keeps to one endpoint.
    Affinity,
    /// The Service has no endpoints.
    Refused,
}

/// The Service whose endpoints come and go.
pub const WEB: usize = 0;
/// The Service that loses all its endpoints.
pub const DNS: usize = 2;
/// The Service without endpoints.
#[cfg(test)]
pub const IDLE: usize = 5;

/// The Services in the order in which they are shown.
pub const ROLES: [Role; 6] = [
    Role {
        name: "web",
        clients: "pod",
        places: &["a"],
        workers: 3,
        pause: 700,
        frontends: &[Frontend::tcp("cluster IP 10.96.0.10:80", "10.96.0.10:80")],
        note: Note::None,
    },
    Role {
        name: "api",
        clients: "pod",
        places: &["a"],
        workers: 1,
        pause: 4000,
        frontends: &[
            Frontend::tcp("10.96.0.20:80", "10.96.0.20:80"),
            Frontend::tcp("[fd00:10:96::20]:80", "[fd00:10:96::20]:80"),
        ],
        note: Note::DualStack,
    },
    Role {
        name: "dns",
        clients: "pod",
        places: &["b"],
        workers: 2,
        pause: 4000,
        frontends: &[Frontend {
            label: "UDP 10.96.0.53:53",
            protocol: Protocol::Udp,
            target: "10.96.0.53:53",
        }],
        note: Note::None,
    },
    Role {
        name: "shop",
        clients: "outside",
        places: &[Topology::CLIENT],
        workers: 2,
        pause: 4000,
        frontends: &[
            Frontend::tcp("node port 30080", "192.168.10.1:30080"),
            Frontend::tcp("external 198.51.100.10", "198.51.100.10:80"),
        ],
        note: Note::None,
    },
    Role {
        name: "cart",
        clients: "2 pods, a node",
        places: &["a", "b", Topology::NODE],
        workers: 1,
        pause: 5000,
        frontends: &[Frontend::tcp("10.96.0.40:80", "10.96.0.40:80")],
        note: Note::Affinity,
    },
    Role {
        name: "idle",
        clients: "pod",
        places: &["b"],
        workers: 1,
        pause: 100_000,
        frontends: &[Frontend::tcp("10.96.0.50:80", "10.96.0.50:80")],
        note: Note::Refused,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pod_belongs_to_a_service_and_to_one_address() {
        for pod in &PODS {
            let (service, _) = pod.name.rsplit_once('-').unwrap();
            assert!(ROLES.iter().any(|role| role.name == service), "{}", pod.name);
        }
        let mut addresses: Vec<String> = PODS.iter().map(Pod::address).collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), PODS.len());
        assert_eq!([WEB, DNS, IDLE].map(|role| ROLES[role].name), ["web", "dns", "idle"]);
    }
}
