//! What a cast is: Services, the pods behind them, and the clients. Each act has a cast of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet_rig::{Protocol, address};

/// The Services, pods and clients of an act.
#[derive(Debug)]
pub struct Cast {
    /// The mode of the proxy, on the screen.
    pub mode: &'static str,
    /// Where the proxy runs, on the screen.
    pub place: &'static str,
    /// The Services in the order in which they are shown: those of `examples/`, the same in each act.
    pub roles: &'static [Role],
    /// The pods, grouped by Service, in the order in which they are shown.
    pub pods: &'static [Pod],
}

/// The addresses that pods have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Those of the manifests in `examples/`, in network namespaces.
    Cluster,
    /// IPv4 loopback addresses.
    Loopback,
    /// The one IPv6 loopback address.
    LoopbackV6,
}

/// A pod with an echo server.
#[derive(Debug)]
pub struct Pod {
    /// The name with which the pod's server answers.
    pub name: &'static str,
    /// The number of the pod's node.
    pub node: u8,
    /// The pod's index on the node, from which the address follows.
    pub index: u8,
    /// The kind of address.
    pub network: Network,
}

impl Pod {
    /// A pod in a network namespace of its own.
    pub const fn new(name: &'static str, node: u8, index: u8) -> Self {
        Self { name, node, index, network: Network::Cluster }
    }

    /// The address that the screen shows.
    pub fn ip(&self) -> IpAddr {
        let cluster = address::pod(self.node, self.index).v4;
        match self.network {
            Network::Cluster => cluster.into(),
            Network::Loopback => on_loopback(cluster).into(),
            Network::LoopbackV6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// [`Self::ip`] as text.
    pub fn address(&self) -> String {
        self.ip().to_string()
    }
}

/// The loopback address that stands for a pod's address: 127.77.1.12 for 10.244.1.12.
pub fn on_loopback(address: Ipv4Addr) -> Ipv4Addr {
    let [_, _, node, pod] = address.octets();
    Ipv4Addr::new(127, 77, node, pod)
}

/// A frontend of a Service.
#[derive(Debug)]
pub struct Frontend {
    /// The name on the screen.
    pub label: &'static str,
    /// The protocol.
    pub protocol: Protocol,
    /// The address and port that clients connect to; on loopback, the address and port of the Service.
    pub target: &'static str,
}

impl Frontend {
    /// A frontend for TCP.
    pub const fn tcp(label: &'static str, target: &'static str) -> Self {
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
    /// The clients' places: names in the rig, or loopback addresses.
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

/// The Service whose endpoints come and go, as an index into the roles.
pub const WEB: usize = 0;
/// The Service that loses all its endpoints.
pub const DNS: usize = 2;
/// The Service without endpoints.
#[cfg(test)]
pub const IDLE: usize = 5;
