//! What a backend can program: the ways in which connections are shared out, and where node ports are
//! served.

use crate::model::Spread;

/// The spreads that a backend can program, whether it can program weights, and whether it has to know
/// every address of the node. A Service port that asks for more is resolved to the nearest thing that the
/// backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The largest number of endpoints for each spread; 0 for spreads that the backend cannot program.
    most_endpoints: [usize; Spread::ALL.len()],
    default_spread: Spread,
    weights: bool,
    listed_node_ports: bool,
    proxy_protocol: bool,
}

impl Default for Abilities {
    /// Returns [`Abilities::PARITY`].
    fn default() -> Self {
        Self::PARITY
    }
}

impl Abilities {
    /// The abilities of kube-proxy's iptables and nftables modes: connections are spread at random,
    /// and evenly; node ports can be served on any local address.
    pub const PARITY: Self = Self {
        most_endpoints: [0; Spread::ALL.len()],
        default_spread: Spread::Random,
        weights: false,
        listed_node_ports: false,
        proxy_protocol: false,
    }
    .with(Spread::Random);

    /// Adds a spread, for pools of any size.
    pub const fn with(self, spread: Spread) -> Self {
        self.with_at_most(spread, usize::MAX)
    }

    /// Adds a spread for pools of at most so many endpoints.
    pub const fn with_at_most(mut self, spread: Spread, endpoints: usize) -> Self {
        self.most_endpoints[spread as usize] = endpoints;
        self
    }

    /// Adds weights, with every spread.
    pub const fn with_weights(mut self) -> Self {
        self.weights = true;
        self
    }

    /// Sets the spread of Services that ask for nothing, on nodes whose configuration names none
    /// ([`NodeConfig::spread`](crate::config::NodeConfig::spread)).
    pub const fn with_default_spread(mut self, spread: Spread) -> Self {
        self.default_spread = spread;
        self
    }

    /// Notes that the backend cannot match any local address of the node, but only addresses that it
    /// knows. [`NodeState::node_ports`](crate::state::NodeState::node_ports) is then a list in any case.
    pub const fn with_listed_node_ports(mut self) -> Self {
        self.listed_node_ports = true;
        self
    }

    /// Adds the PROXY protocol: the backend ends the clients' TCP connections, and can send endpoints the
    /// client's address.
    pub const fn with_proxy_protocol(mut self) -> Self {
        self.proxy_protocol = true;
        self
    }

    /// The largest number of endpoints that the backend can spread connections over in this way; 0 if
    /// the backend cannot at all.
    pub const fn most_endpoints(&self, spread: Spread) -> usize {
        self.most_endpoints[spread as usize]
    }

    /// Whether the backend gives endpoints shares of connections in proportion to their weights.
    pub const fn has_weights(&self) -> bool {
        self.weights
    }

    /// The spread of Services that ask for nothing, on nodes whose configuration names none.
    pub const fn default_spread(&self) -> Spread {
        self.default_spread
    }

    /// Whether the backend can send endpoints the client's address by the PROXY protocol.
    pub const fn has_proxy_protocol(&self) -> bool {
        self.proxy_protocol
    }

    /// Whether the backend serves node ports on addresses that it knows, and on no others.
    pub const fn lists_node_ports(&self) -> bool {
        self.listed_node_ports
    }
}
