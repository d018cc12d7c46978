//! The small cluster: the packet rig's nodes and client, and a pod for every endpoint.

use packet_rig::{EchoServer, NetNs, Place, Protocol, RigError, Topology, address};

use super::CLUSTER;
use crate::cast::Pod;

/// The hardware address of the node's end of every pod's link, as in the rig's own pods.
const GATEWAY_MAC: &str = "ee:ee:ee:ee:ee:ee";

/// The port that every pod serves.
const PORT: u16 = 8080;

/// All namespaces and servers. Dropping the value removes them; if the process is killed, the kernel
/// removes them.
pub struct World {
    _servers: Vec<EchoServer>,
    topology: Topology,
}

impl World {
    /// Makes the namespaces and starts the servers.
    pub fn new() -> Result<Self, RigError> {
        let topology = Topology::new()?;
        let namespaces =
            CLUSTER.pods.iter().map(|_| NetNs::new_bare()).collect::<Result<Vec<_>, RigError>>()?;
        for (number, node) in [(1, topology.node()), (2, topology.other_node())] {
            let on_node =
                CLUSTER.pods.iter().zip(&namespaces).filter(|(pod, _)| pod.node == number);
            node.namespace
                .ip(&on_node.map(|(pod, own)| node_side(pod, own)).collect::<String>())?;
        }
        let mut servers = Vec::new();
        for (pod, namespace) in CLUSTER.pods.iter().zip(&namespaces) {
            namespace.ip(&pod_side(pod))?;
            let protocols = [Protocol::Tcp, Protocol::Udp];
            servers.push(EchoServer::start(namespace, pod.name, PORT, &protocols)?);
        }
        Ok(Self { _servers: servers, topology })
    }

    /// The node that the proxy runs on.
    pub fn node(&self) -> &Place {
        self.topology.node()
    }

    /// A place by its name in the rig.
    pub fn place(&self, name: &str) -> Result<&Place, RigError> {
        self.topology.place(name).ok_or_else(|| RigError::BadCase {
            case: "the demo".to_owned(),
            message: format!("there is no place {name}"),
        })
    }
}

/// The hardware address of a pod's end of its link.
fn mac(pod: &Pod) -> String {
    format!("02:00:00:00:{:02x}:{:02x}", pod.node, pod.index)
}

/// The `ip` commands for the pod's node.
fn node_side(pod: &Pod, namespace: &NetNs) -> String {
    let (own, mac) = (address::pod(pod.node, pod.index), mac(pod));
    format!(
        "link add {link} address {GATEWAY_MAC} type veth \
             peer name eth0 address {mac} netns {path}\n\
         link set {link} up\n\
         route add {v4}/32 dev {link}\n\
         route add {v6}/128 dev {link}\n\
         neigh add {v4} lladdr {mac} dev {link} nud permanent\n\
         neigh add {v6} lladdr {mac} dev {link} nud permanent\n",
        link = format_args!("veth-{}", pod.name),
        path = namespace.path().display(),
        v4 = own.v4,
        v6 = own.v6,
    )
}

/// The `ip` commands for the inside of the pod.
fn pod_side(pod: &Pod) -> String {
    let own = address::pod(pod.node, pod.index);
    format!(
        "link set lo up\n\
         link set eth0 up\n\
         addr add {v4}/32 dev eth0\n\
         addr add {v6}/128 dev eth0 nodad\n\
         neigh add 169.254.1.1 lladdr {GATEWAY_MAC} dev eth0 nud permanent\n\
         neigh add fe80::1 lladdr {GATEWAY_MAC} dev eth0 nud permanent\n\
         route add 169.254.1.1 dev eth0 scope link\n\
         route add default via 169.254.1.1 dev eth0\n\
         route add default via fe80::1 dev eth0\n",
        v4 = own.v4,
        v6 = own.v6,
    )
}
