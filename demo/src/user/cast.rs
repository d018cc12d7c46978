//! The cast on loopback addresses: the same Services, with servers and clients on the machine itself.

use packet_rig::Protocol;

use crate::cast::{Cast, Frontend, Network, Note, Pod, Role};

/// The cast on loopback addresses.
pub static LOOPBACK: Cast =
    Cast { mode: "userspace", place: "any user", roles: &ROLES, pods: &PODS };

/// The pods, grouped by Service, in the order in which they are shown.
const PODS: [Pod; 13] = [
    pod("web-1", 1, 2),
    pod("web-2", 1, 3),
    pod("web-3", 2, 2),
    pod("web-4", 2, 3),
    pod("api-1", 1, 4),
    pod("api-2", 2, 4),
    Pod { name: "api-3", node: 1, index: 0, network: Network::LoopbackV6 },
    pod("dns-1", 1, 5),
    pod("dns-2", 2, 5),
    pod("shop-1", 1, 6),
    pod("shop-2", 2, 6),
    pod("cart-1", 1, 7),
    pod("cart-2", 2, 7),
];

/// A pod at the loopback address that stands for its address in `examples/`.
const fn pod(name: &'static str, node: u8, index: u8) -> Pod {
    Pod { name, node, index, network: Network::Loopback }
}

/// The Services in the order in which they are shown.
const ROLES: [Role; 6] = [
    Role {
        name: "web",
        clients: "3",
        places: &["127.77.9.1", "127.77.9.2", "127.77.9.3"],
        workers: 1,
        pause: 1500,
        frontends: &[Frontend::tcp("10.96.0.10:80", "10.96.0.10:80")],
        note: Note::None,
    },
    Role {
        name: "api",
        clients: "1",
        places: &["127.77.9.1"],
        workers: 1,
        pause: 5000,
        frontends: &[
            Frontend::tcp("10.96.0.20:80", "10.96.0.20:80"),
            Frontend::tcp("IPv6", "[fd00:10:96::20]:80"),
        ],
        note: Note::None,
    },
    Role {
        name: "dns",
        clients: "2",
        places: &["127.77.9.1", "127.77.9.2"],
        workers: 1,
        pause: 5000,
        frontends: &[Frontend {
            label: "UDP 10.96.0.53:53",
            protocol: Protocol::Udp,
            target: "10.96.0.53:53",
        }],
        note: Note::None,
    },
    Role {
        name: "shop",
        clients: "2",
        places: &["127.77.9.2", "127.77.9.3"],
        workers: 1,
        pause: 5000,
        frontends: &[
            Frontend::tcp("10.96.0.30:80", "10.96.0.30:80"),
            Frontend::tcp("node port", NODE_PORT),
        ],
        note: Note::None,
    },
    Role {
        name: "cart",
        clients: "3",
        places: &["127.77.9.1", "127.77.9.2", "127.77.9.3"],
        workers: 1,
        pause: 6000,
        frontends: &[Frontend::tcp("10.96.0.40:80", "10.96.0.40:80")],
        note: Note::Affinity,
    },
    Role {
        name: "idle",
        clients: "1",
        places: &["127.77.9.1"],
        workers: 1,
        pause: 100_000,
        frontends: &[Frontend::tcp("10.96.0.50:80", "10.96.0.50:80")],
        note: Note::Refused,
    },
];

/// The target that means the node port of the Service before it.
pub const NODE_PORT: &str = "node port";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{manifests::EXAMPLES, user::rewrite::Ports};

    #[test]
    fn every_endpoint_of_the_manifests_is_a_pod_of_its_service() {
        let ports = Ports { servers: 4321, node: 31_234, has_v6: true };
        let mut listed = 0;
        for (name, text) in EXAMPLES {
            let service = name.trim_end_matches(".yaml");
            for line in ports.rewrite(text).lines().filter(|line| line.contains("ready: true")) {
                let is_listed = |pod: &&Pod| line.contains(&pod.address());
                let pod = PODS.iter().find(is_listed).unwrap_or_else(|| panic!("{line}"));
                assert!(pod.name.starts_with(service), "{name}: {line}");
                listed += 1;
            }
        }
        assert_eq!(listed, PODS.len() - 1, "one is added later");
    }
}
