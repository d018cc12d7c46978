//! The resolved state: what this node should program, decided.
//!
//! Backends render this and nothing else. Every policy (traffic policies, topology, readiness,
//! masquerading, what an empty pool means) has been applied; a backend that needs to know more
//! about a Service is asking for a new field here.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

use crate::model::{PerFamily, ServiceName, ServicePortId};

/// Everything to be programmed on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The Service ports that have at least one frontend.
    pub service_ports: HashMap<ServicePortId, Arc<ResolvedServicePort>>,
    /// What holds for the whole node.
    pub node: NodeState,
    /// The Services whose health load balancers ask this node for.
    pub health_checks: HashMap<ServiceName, HealthCheck>,
}

/// How a load balancer asks whether this node has endpoints of a Service (`healthCheckNodePort`):
/// for type `LoadBalancer` with `externalTrafficPolicy: Local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port where it asks, 1 to 65535, on the addresses that [`NodeState::node_ports`] says.
    pub port: u16,
    /// Endpoints of the Service on this node that are ready, by their addresses: one that has
    /// several ports counts once, and one that terminates does not count even if it serves. `None`
    /// in a family that the Service has no address in.
    pub local_endpoints: PerFamily<Option<usize>>,
}

/// What holds for the whole node, in each family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// How to tell that a packet comes from a pod of this node; `None` where nothing is configured.
    pub local_pods: PerFamily<Option<LocalPods>>,
    /// On which of the node's addresses node ports are served.
    pub node_ports: PerFamily<NodePortAddresses>,
    /// Ranges that cluster IPs are allocated from: sorted, without overlaps, adjacent ones merged.
    /// Traffic to an address in them that no Service has is dropped.
    pub service_cidrs: PerFamily<Vec<IpNet>>,
}

/// How to tell that a packet comes from a pod of this node (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalPods {
    /// Its source address is in this network.
    Source(IpNet),
    /// It came in through this interface.
    Interface(String),
    /// It came in through an interface whose name starts so.
    InterfacePrefix(String),
}

/// On which of the node's addresses node ports are served. Loopback addresses never are, except
/// where a backend says that it can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// On every local address.
    #[default]
    AllLocal,
    /// On these.
    Only(BTreeSet<IpAddr>),
}

/// A Service port in one family, as this node should program it.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedServicePort {
    /// Which.
    pub id: ServicePortId,
    /// Where its traffic arrives, sorted, each (address, protocol, port) at most once in the whole
    /// [`State`]: if two Services claim one, the older of them has it.
    pub frontends: Vec<Frontend>,
    /// Endpoints of the `Cluster` policy; empty if no frontend uses them.
    pub cluster: Pool,
    /// Endpoints of the `Local` policy, all on this node; empty if no frontend uses them.
    pub local: Pool,
    /// Endpoints outside both pools that still serve: terminating, or left out by a policy. They
    /// get no new flows, and the flows they have stay. Known for UDP and SCTP, whose flows have to
    /// be ended by us; empty for TCP, whose connections end themselves.
    pub draining: Pool,
    /// For how long after its last new connection a client goes back to the same endpoint
    /// (`sessionAffinity: ClientIP`), whatever frontend it comes through.
    pub affinity: Option<Duration>,
}

impl ResolvedServicePort {
    /// The pool of that kind.
    pub fn pool(&self, kind: PoolKind) -> &Pool {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }

    /// Whether the endpoint at `address` still serves flows that it has. Not to be asked of TCP.
    pub fn serves(&self, address: SocketAddr) -> bool {
        [&self.cluster, &self.local, &self.draining].into_iter().any(|pool| is_in(pool, address))
    }

    /// The endpoints of both pools, each once, in order.
    pub fn reachable(&self) -> impl Iterator<Item = &Endpoint> {
        let both: BTreeSet<&Endpoint> = self.cluster.iter().chain(self.local.iter()).collect();
        both.into_iter()
    }
}

/// Endpoints that traffic is spread over evenly: sorted by address, each once.
pub type Pool = Arc<[Endpoint]>;

/// Whether there is an endpoint at `address` in the pool.
pub(crate) fn is_in(pool: &Pool, address: SocketAddr) -> bool {
    pool.binary_search_by_key(&address, |endpoint| endpoint.address).is_ok()
}

/// An endpoint of a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether it runs on this node, so that a connection may come back to its own client
    /// (hairpin) without leaving it.
    pub is_local: bool,
}

/// Which of a Service port's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolKind {
    /// [`ResolvedServicePort::cluster`]
    Cluster,
    /// [`ResolvedServicePort::local`]
    Local,
}

/// An address and port where a Service port's traffic arrives.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    /// Where.
    pub at: FrontendAddress,
    /// The port, 1 to 65535. The protocol is the Service port's.
    pub port: u16,
    /// What happens to a new connection or flow.
    pub route: Route,
    /// If present, new connections from any other source are dropped, whatever the route
    /// (`loadBalancerSourceRanges`). Sorted, without overlaps.
    pub allowed_sources: Option<Arc<[IpNet]>>,
}

/// Where a [`Frontend`] listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendAddress {
    /// `spec.clusterIPs`
    ClusterIp(IpAddr),
    /// `status.loadBalancer.ingress[].ip`
    LoadBalancerIp(IpAddr),
    /// `spec.externalIPs`
    ExternalIp(IpAddr),
    /// The node's own addresses, as [`NodeState::node_ports`] says.
    NodePort,
}

impl FrontendAddress {
    /// The address, unless it is the node's.
    pub fn ip(&self) -> Option<IpAddr> {
        match *self {
            Self::ClusterIp(ip) | Self::LoadBalancerIp(ip) | Self::ExternalIp(ip) => Some(ip),
            Self::NodePort => None,
        }
    }
}

/// What happens to a new connection or flow at a [`Frontend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Route {
    /// It goes to an endpoint of this pool, which is not empty.
    Pool {
        /// The pool.
        pool: PoolKind,
        /// Whose source address is replaced with the node's. (Hairpin connections are masqueraded
        /// in any case.)
        masquerade: Masquerade,
    },
    /// `externalTrafficPolicy: Local`. Clients on this node have the `Cluster` pool, which is not
    /// empty: pods ([`NodeState::local_pods`]) unmasqueraded, the node itself masqueraded. All
    /// others have the `Local` pool, unmasqueraded; if that is empty, their packets are dropped.
    ExternalLocal,
    /// Nothing serves it anywhere: refused (ICMP port unreachable).
    Reject,
    /// Nothing on this node may serve it, but something elsewhere could: dropped silently, so that
    /// a load balancer tries another node.
    Drop,
}

/// Whose source address is replaced with the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Masquerade {
    /// Nobody's.
    Never,
    /// Everybody's but that of pods of this node ([`NodeState::local_pods`], which is present).
    ExceptLocalPods,
    /// Everybody's.
    Always,
}

/// What changed since the last successful sync. A sync that fails keeps its delta: the next one
/// has both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Service ports that were added, changed or removed.
    pub service_ports: BTreeSet<ServicePortId>,
    /// Whether [`State::node`] changed.
    pub node: bool,
    /// Whether [`State::health_checks`] changed. That alone is nothing to the kernel.
    pub health_checks: bool,
    /// Whether the backend should compare everything with the kernel, instead of trusting what it
    /// remembers: at the first sync, after a failure, and on a period.
    pub full: bool,
}

impl Delta {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.service_ports.is_empty() && !self.node && !self.health_checks && !self.full
    }

    /// Adds what `later` says.
    pub fn merge(&mut self, later: Delta) {
        self.service_ports.extend(later.service_ports);
        self.node |= later.node;
        self.health_checks |= later.health_checks;
        self.full |= later.full;
    }
}
