//! The resolved state: what this node should program, with all decisions made.
//!
//! Backends render this and nothing else. Every policy (traffic policies, topology, readiness,
//! masquerading, what an empty pool means) has been applied; a backend that needs to know more
//! about a Service is asking for a new field here.
//!
//! Two kinds of growth are treated differently. [`State`] may get fields, which a backend may
//! ignore. The enums [`Action`], [`Masquerade`], [`FrontendAddress`], [`LocalPods`] and
//! [`NodePortAddresses`] are exhaustive on purpose: a backend that does not know a way to treat
//! traffic must not compile.
//!
//! With the feature `serde`, a [`State`] can be serialized, for status pages. Names are those of
//! the fields in camel case; lists and maps are sorted.

#[cfg(feature = "serde")]
mod serialized;

use std::{
    collections::{self, BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

pub use crate::model::LocalPods;
use crate::model::{
    HashMap, IpFamily, LbAlgorithm, PerFamily, ProxyProtocol, ServiceName, ServicePortId,
};

/// Everything to be programmed on this node.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
#[non_exhaustive]
pub struct State {
    /// The Service ports that have at least one frontend.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialized::sorted_values"))]
    pub service_ports: HashMap<ServicePortId, Arc<ResolvedServicePort>>,
    /// The settings of the whole node.
    pub node: NodeState,
    /// The health checks of Services, which load balancers send to this node.
    #[cfg_attr(feature = "serde", serde(serialize_with = "serialized::by_name"))]
    pub health_checks: collections::HashMap<ServiceName, HealthCheck>,
}

/// The Services that others cannot do without: the API server's, and the cluster's DNS by the name
/// that its manifests have in every distribution.
const URGENT_SERVICES: [(&str, &str); 2] = [("default", "kubernetes"), ("kube-system", "kube-dns")];

impl State {
    /// Returns the state with one Service alone.
    pub fn of_service(&self, service: &ServiceName) -> Self {
        let ports = self.service_ports.iter().filter(|(id, _)| id.name.service == *service);
        let health_check = self.health_checks.get(service).map(|check| (service.clone(), *check));
        Self {
            service_ports: ports.map(|(id, port)| (id.clone(), Arc::clone(port))).collect(),
            node: self.node.clone(),
            health_checks: health_check.into_iter().collect(),
        }
    }

    /// Returns the Service ports that a backend which cannot program everything at once should
    /// program first, in any order: those of `default/kubernetes` and `kube-system/kube-dns`.
    pub fn urgent_ports(&self) -> impl Iterator<Item = &Arc<ResolvedServicePort>> {
        let is_urgent = |service: &ServiceName| URGENT_SERVICES.contains(&service.parts());
        self.service_ports.values().filter(move |port| is_urgent(&port.id.name.service))
    }
}

/// The health check by which load balancers find out whether this node has endpoints of a Service
/// (`healthCheckNodePort`): for type `LoadBalancer` with `externalTrafficPolicy: Local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct HealthCheck {
    /// The port of the health check, 1 to 65535, on the addresses of
    /// [`NodeState::health_check_addresses`].
    pub port: u16,
    /// The number of ready endpoints of the Service on this node, counted by address: an endpoint
    /// with several ports counts once, and a terminating endpoint does not count even if it serves.
    /// `None` in a family that the Service has no address in.
    pub local_endpoints: PerFamily<Option<usize>>,
}

impl HealthCheck {
    /// Whether the Service has an address in this family, so that the health check is served in it.
    pub fn has_family(&self, family: IpFamily) -> bool {
        self.local_endpoints.get(family).is_some()
    }
}

/// The settings of the whole node, in each family.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct NodeState {
    /// The way to detect that a packet comes from a pod of this node; `None` if not configured.
    pub local_pods: PerFamily<Option<LocalPods>>,
    /// The networks of the node's pods, as the Node states them, however their packets are
    /// detected: for backends that
    /// [end connections of clients](crate::proxier::Capabilities::with_proxy_protocol); for others,
    /// none.
    pub pod_networks: Vec<IpNet>,
    /// The addresses of the node on which node ports are served. A list for backends that
    /// [have to know each](crate::proxier::Capabilities::with_listed_node_ports), without loopback
    /// addresses and link-local ones of IPv6.
    pub node_ports: PerFamily<NodePortAddresses>,
    /// The addresses of the node on which the health checks of Services are served: those that
    /// are configured for node ports, whatever the backend has to know, with loopback addresses
    /// that an entry includes, or [all](crate::config::NodeConfig::health_checks_everywhere).
    pub health_check_addresses: PerFamily<NodePortAddresses>,
    /// All addresses of the node's interfaces, for backends that
    /// [have to know each](crate::proxier::Capabilities::with_listed_node_ports); for others, none.
    pub addresses: BTreeSet<IpAddr>,
    /// Ranges that cluster IPs are allocated from: sorted, without overlaps, adjacent ones merged.
    /// Traffic to an address in them that no Service has is dropped.
    pub service_cidrs: PerFamily<Vec<IpNet>>,
}

/// The addresses of the node on which node ports are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum NodePortAddresses {
    /// Every local address, except loopback addresses.
    #[default]
    AllLocal,
    /// Every local address. Loopback addresses are served to the node itself only, in place of
    /// servers that listen there. Never in IPv6, whose loopback address the kernel does not route.
    AllWithLoopback,
    /// These addresses, among which there may be loopback addresses: of node ports, IPv4's.
    Only(BTreeSet<IpAddr>),
}

impl NodePortAddresses {
    /// Whether a loopback address is among the addresses.
    pub fn has_loopback(&self) -> bool {
        match self {
            Self::AllLocal => false,
            Self::AllWithLoopback => true,
            Self::Only(ips) => ips.iter().any(IpAddr::is_loopback),
        }
    }

    /// Whether node ports are served on `ip`, which is an address of the node.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match self {
            Self::AllLocal => !ip.is_loopback(),
            Self::AllWithLoopback => true,
            Self::Only(ips) => ips.contains(&ip),
        }
    }
}

/// A Service port in one family, as this node should program it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct ResolvedServicePort {
    /// The id of the Service port.
    pub id: ServicePortId,
    /// Where the Service port's traffic arrives, sorted, each (address, protocol, port) at most
    /// once in the whole [`State`]: if two Services have the same, one of them wins.
    pub frontends: Vec<Frontend>,
    /// Endpoints of the `Cluster` policy; empty if no frontend uses them.
    pub cluster: Pool,
    /// Endpoints of the `Local` policy, all on this node; empty if no frontend uses them.
    pub local: Pool,
    /// Endpoints outside both pools that still serve: terminating, or left out by a policy; with
    /// SCTP, all others of the slices as well, as associations do not outlive their entries, and
    /// with UDP while no endpoint serves, unless the backend
    /// [ends flows itself](crate::proxier::Capabilities::ends_flows). These endpoints get no new
    /// flows and keep the flows that they have. Known for UDP and SCTP, whose
    /// flows the proxy has to end; empty for TCP, whose connections end themselves, unless the
    /// backend [ends them](crate::proxier::Capabilities::with_draining_tcp).
    pub draining: Pool,
    /// For how long after its last new connection a client goes back to the same endpoint
    /// (`sessionAffinity: ClientIP`), whichever frontend the client uses.
    #[cfg_attr(feature = "serde", serde(rename = "affinitySeconds", with = "serialized::seconds"))]
    pub affinity: Option<Duration>,
    /// The way that new connections are shared out among the endpoints of a pool: one of the
    /// algorithms that the backend [can program](crate::proxier::Profile::capabilities). With
    /// affinity, the algorithm chooses the endpoint of clients that are not remembered.
    pub lb_algorithm: LbAlgorithm,
    /// The protocol by which endpoints are sent the client's address ahead of the client's bytes;
    /// for TCP alone, and only for backends that
    /// [end connections themselves](crate::proxier::Capabilities::with_proxy_protocol).
    pub proxy_protocol: Option<ProxyProtocol>,
}

impl ResolvedServicePort {
    /// Returns the pool of a kind.
    pub fn pool(&self, kind: PoolKind) -> &Pool {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }

    /// Whether the endpoint at `address` keeps the flows that it has. Meaningless where
    /// [`Self::draining`] is not known.
    pub fn serves(&self, address: SocketAddr) -> bool {
        [&self.cluster, &self.local, &self.draining].into_iter().any(|pool| is_in(pool, address))
    }

    /// Returns the endpoints of both pools, each address once, in order. An endpoint of both pools
    /// has its weight in the `Cluster` pool.
    pub fn reachable(&self) -> impl Iterator<Item = &Endpoint> {
        let both = self.local.iter().chain(self.cluster.iter());
        let both: BTreeMap<SocketAddr, &Endpoint> = both.map(|e| (e.address, e)).collect();
        both.into_values()
    }
}

/// Endpoints that traffic is spread over in proportion to their weights: sorted by address, each
/// once. The greatest common divisor of the weights is 1, so that all weights are 1 unless they
/// differ, except while endpoints get growing shares; but with [`LbAlgorithm::WeightedOverflow`],
/// weights are numbers of connections, and as they were configured.
pub type Pool = Arc<[Endpoint]>;

/// Whether there is an endpoint at `address` in the pool.
pub(crate) fn is_in(pool: &Pool, address: SocketAddr) -> bool {
    pool.binary_search_by_key(&address, |endpoint| endpoint.address).is_ok()
}

/// An endpoint of a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Endpoint {
    /// The address and port at which the endpoint listens.
    pub address: SocketAddr,
    /// Whether the endpoint runs on this node.
    pub is_local: bool,
    /// Whether the endpoint may run on this node: it does, or its slice names no node. A connection
    /// from such an endpoint may come back to it (hairpin) without leaving the node.
    pub may_be_local: bool,
    /// The endpoint's share of new connections, relative to those of the other endpoints in the
    /// pool; at least 1. An endpoint that gets no new connections is in no pool, but may be in
    /// [`ResolvedServicePort::draining`], where weights mean nothing and are 1.
    pub weight: u32,
}

/// A kind of a Service port's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum PoolKind {
    /// [`ResolvedServicePort::cluster`]
    Cluster,
    /// [`ResolvedServicePort::local`]
    Local,
}

/// An address and port where a Service port's traffic arrives.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub struct Frontend {
    /// The address.
    pub at: FrontendAddress,
    /// The port, 1 to 65535. The protocol is the Service port's.
    pub port: u16,
    /// The handling of a new connection or flow.
    pub action: Action,
    /// If present, new connections from any other source are dropped, whatever the route
    /// (`loadBalancerSourceRanges`). Sorted, without overlaps.
    pub allowed_sources: Option<Arc<[IpNet]>>,
}

/// The address of a [`Frontend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum FrontendAddress {
    /// `spec.clusterIPs`; in a [derived state](crate::transition::DerivedState), any address whose
    /// other ports are to be refused.
    ClusterIp(IpAddr),
    /// `status.loadBalancer.ingress[].ip`
    LoadBalancerIp(IpAddr),
    /// `spec.externalIPs`
    ExternalIp(IpAddr),
    /// The node's own addresses in [`NodeState::node_ports`].
    NodePort,
}

impl FrontendAddress {
    /// Returns the address, or `None` for the node's addresses.
    pub fn ip(&self) -> Option<IpAddr> {
        match *self {
            Self::ClusterIp(ip) | Self::LoadBalancerIp(ip) | Self::ExternalIp(ip) => Some(ip),
            Self::NodePort => None,
        }
    }
}

/// The handling of a new connection or flow at a [`Frontend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Action {
    /// The traffic goes to an endpoint of this pool, which is not empty.
    Pool {
        /// The pool.
        pool: PoolKind,
        /// The clients whose source addresses are replaced with the node's. (Hairpin connections
        /// are masqueraded in any case.)
        masquerade: Masquerade,
    },
    /// `externalTrafficPolicy: Local`. Clients on this node have the `Cluster` pool, which is not
    /// empty: pods ([`NodeState::local_pods`]) unmasqueraded, the node itself masqueraded. All
    /// others have the `Local` pool, unmasqueraded; if that is empty, their packets are dropped.
    ExternalLocal,
    /// Another backend delivers the traffic to a pool: rules masquerade and limit sources, and
    /// translate nothing. Only [derived states](crate::transition::DerivedState) have this.
    Delivered {
        /// The clients whose source addresses are replaced with the node's. Hairpin connections,
        /// and those whose source is an address of a Service, are masqueraded in any case.
        masquerade: Masquerade,
    },
    /// The same as [`Action::ExternalLocal`], but another backend delivers to the `Local` pool,
    /// which is not empty. Only [derived states](crate::transition::DerivedState) have this.
    DeliveredLocal,
    /// No endpoint serves the port: refused (ICMP port unreachable).
    Reject,
    /// No endpoint may serve the port for this node, but others exist: dropped silently, so that a
    /// load balancer tries another node.
    Drop,
}

/// The clients whose source addresses are replaced with the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "camelCase"))]
pub enum Masquerade {
    /// No clients.
    Never,
    /// All clients but pods of this node ([`NodeState::local_pods`], which is present).
    ExceptLocalPods,
    /// All clients.
    Always,
}
