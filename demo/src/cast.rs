//! Who plays: the Services of `examples/`, the pods behind them, and the clients.

use packet_rig::{Protocol, Topology, address};

/// A pod with an echo server.
#[derive(Debug)]
pub struct Pod {
    /// Its name, by which its server answers.
    pub name: &'static str,
    /// The number of its node.
    pub node: u8,
    /// Its number on the node, which makes its address.
    pub index: u8,
}

impl Pod {
    const fn new(name: &'static str, node: u8, index: u8) -> Self {
        Self { name, node, index }
    }

    /// Its IPv4 address as text.
    pub fn address(&self) -> String {
        address::pod(self.node, self.index).v4.to_string()
    }
}

/// The pods, those of a Service together and in the order in which they are shown.
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

/// A way into a Service.
#[derive(Debug)]
pub struct Frontend {
    /// How it is called on the screen.
    pub label: &'static str,
    /// Its protocol.
    pub protocol: Protocol,
    /// Where connections go.
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
    /// How its clients are called on the screen.
    pub clients: &'static str,
    /// Where its clients are: places of the rig.
    pub places: &'static [&'static str],
    /// How many connect at once from each place.
    pub workers: usize,
    /// How long each rests between two connections, in microseconds.
    pub pause: u64,
    /// The ways in, used in turn.
    pub frontends: &'static [Frontend],
    /// What else there is to say on the screen.
    pub note: Note,
}

/// What else is shown of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// Nothing.
    None,
    /// It has endpoints of both families.
    DualStack,
    /// Whether every client keeps to one endpoint.
    Affinity,
    /// It has no endpoints.
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
