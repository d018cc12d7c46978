//! Capabilities of a backend: the ways in which connections are shared out, and where node ports
//! are served.

use super::Mode;
use crate::{model::LbAlgorithm, state::Pool};

/// The algorithms that a backend can program, whether it can program weights, and whether it has to
/// know every address of the node. A Service port that asks for more is resolved to the nearest
/// thing that the backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Equal functions may be taken for others.
#[allow(unpredictable_function_pointer_comparisons)]
pub struct Capabilities {
    /// The largest number of endpoints for each algorithm; 0 for algorithms that the backend cannot
    /// program.
    most_endpoints: [usize; LbAlgorithm::ALL.len()],
    /// The number of slots of each frontend for a pool; 0 where numbers of slots do not matter.
    slots: fn(LbAlgorithm, &Pool) -> usize,
    default_algorithm: LbAlgorithm,
    weights: bool,
    affinity: bool,
    listed_node_ports: bool,
    endpoints_at_each_address: bool,
    proxy_protocol: bool,
    draining_tcp: bool,
    loopback_endpoints: bool,
    rules_of: Option<Mode>,
}

impl Default for Capabilities {
    /// Returns [`Capabilities::KUBE_PROXY`].
    fn default() -> Self {
        Self::KUBE_PROXY
    }
}

impl Capabilities {
    /// The capabilities of kube-proxy's iptables and nftables modes: connections are spread at
    /// random, and evenly; node ports can be served on any local address.
    pub const KUBE_PROXY: Self = Self {
        most_endpoints: [0; LbAlgorithm::ALL.len()],
        slots: |_, _| 0,
        default_algorithm: LbAlgorithm::Random,
        weights: false,
        affinity: true,
        listed_node_ports: false,
        endpoints_at_each_address: false,
        proxy_protocol: false,
        draining_tcp: false,
        loopback_endpoints: false,
        rules_of: None,
    }
    .with(LbAlgorithm::Random);

    /// Adds an algorithm, for pools of any size.
    pub const fn with(self, lb_algorithm: LbAlgorithm) -> Self {
        self.with_at_most(lb_algorithm, usize::MAX)
    }

    /// Adds an algorithm for pools of at most so many endpoints.
    pub const fn with_at_most(mut self, lb_algorithm: LbAlgorithm, endpoints: usize) -> Self {
        self.most_endpoints[lb_algorithm as usize] = endpoints;
        self
    }

    /// Notes that algorithms and weights take slots of each frontend, of which a Service has a
    /// limited number.
    pub const fn with_slots(mut self, slots: fn(LbAlgorithm, &Pool) -> usize) -> Self {
        self.slots = slots;
        self
    }

    /// Adds weights, with every algorithm.
    pub const fn with_weights(mut self) -> Self {
        self.weights = true;
        self
    }

    /// Notes that the node's kernel cannot remember clients.
    pub const fn without_affinity(mut self) -> Self {
        self.affinity = false;
        self
    }

    /// Sets the algorithm of Services that ask for nothing, on nodes whose configuration names none
    /// ([`NodeConfig::lb_algorithm`](crate::config::NodeConfig::lb_algorithm)).
    pub const fn with_default_algorithm(mut self, lb_algorithm: LbAlgorithm) -> Self {
        self.default_algorithm = lb_algorithm;
        self
    }

    /// Notes that the backend cannot match any local address of the node, but only addresses that
    /// it knows. [`NodeState::node_ports`](crate::state::NodeState::node_ports) is then a list in
    /// any case.
    pub const fn with_listed_node_ports(mut self) -> Self {
        self.listed_node_ports = true;
        self
    }

    /// Notes that the backend programs all endpoints of a Service port once more at each of its
    /// addresses, so that their number counts as many times.
    pub const fn with_endpoints_at_each_address(mut self) -> Self {
        self.endpoints_at_each_address = true;
        self
    }

    /// Adds the PROXY protocol: the backend ends the clients' TCP connections, and can send
    /// endpoints the client's address.
    pub const fn with_proxy_protocol(mut self) -> Self {
        self.proxy_protocol = true;
        self
    }

    /// Notes that the backend ends TCP connections of endpoints that serve no longer.
    /// [`ResolvedServicePort::draining`](crate::state::ResolvedServicePort::draining) is known for
    /// TCP then.
    pub const fn with_draining_tcp(mut self) -> Self {
        self.draining_tcp = true;
        self
    }

    /// Notes that the backend serves clients on this machine alone, so that endpoints may have
    /// loopback addresses
    /// ([`NodeConfig::loopback_endpoints`](crate::config::NodeConfig::loopback_endpoints)).
    pub const fn with_loopback_endpoints(mut self) -> Self {
        self.loopback_endpoints = true;
        self
    }

    /// Notes that a backend that forwards in user space has its traffic led there by the rules of
    /// this mode. Without that, addresses of Services are the node's.
    pub const fn with_rules_of(mut self, mode: Mode) -> Self {
        self.rules_of = Some(mode);
        self
    }

    /// The largest number of endpoints that the backend can spread connections over in this way; 0
    /// if the backend cannot at all.
    pub const fn most_endpoints(&self, lb_algorithm: LbAlgorithm) -> usize {
        self.most_endpoints[lb_algorithm as usize]
    }

    /// The number of slots of each frontend for a pool; 0 where numbers of slots do not matter.
    pub fn slots(&self, lb_algorithm: LbAlgorithm, pool: &Pool) -> usize {
        (self.slots)(lb_algorithm, pool)
    }

    /// Whether the backend gives endpoints shares of connections in proportion to their weights.
    pub const fn has_weights(&self) -> bool {
        self.weights
    }

    /// Whether clients can be remembered.
    pub const fn has_affinity(&self) -> bool {
        self.affinity
    }

    /// The algorithm of Services that ask for nothing, on nodes whose configuration names none.
    pub const fn default_algorithm(&self) -> LbAlgorithm {
        self.default_algorithm
    }

    /// Whether the backend can send endpoints the client's address by the PROXY protocol.
    pub const fn has_proxy_protocol(&self) -> bool {
        self.proxy_protocol
    }

    /// Whether the backend ends TCP connections of endpoints that serve no longer.
    pub const fn drains_tcp(&self) -> bool {
        self.draining_tcp
    }

    /// Whether the backend ends flows itself, so that entries of conntrack alone are not enough.
    pub const fn ends_flows(&self) -> bool {
        self.draining_tcp || self.proxy_protocol
    }

    /// The mode whose rules lead traffic to a backend that forwards in user space.
    pub const fn rules_of(&self) -> Option<Mode> {
        self.rules_of
    }

    /// Whether endpoints may have loopback addresses.
    pub const fn has_loopback_endpoints(&self) -> bool {
        self.loopback_endpoints
    }

    /// Whether the backend programs all endpoints of a Service port at each of its addresses.
    pub const fn has_endpoints_at_each_address(&self) -> bool {
        self.endpoints_at_each_address
    }

    /// Whether the backend serves node ports on addresses that it knows, and on no others.
    pub const fn lists_node_ports(&self) -> bool {
        self.listed_node_ports
    }
}
