//! The cast of the cluster: the Services of `examples/`, the pods behind them, and the clients.

use packet_rig::{Protocol, Topology};

use crate::cast::{Cast, Frontend, Note, Pod, Role};

/// The cast of the cluster.
pub static CLUSTER: Cast = Cast { mode: "nftables", place: "node-1", roles: &ROLES, pods: &PODS };

/// The pods, grouped by Service, in the order in which they are shown.
const PODS: [Pod; 12] = [
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

/// The Services in the order in which they are shown.
const ROLES: [Role; 6] = [
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
    use crate::cast::{DNS, IDLE, WEB};

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
