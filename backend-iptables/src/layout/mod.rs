//! How Services become chains and rules.
//!
//! - [`fixed`]: the chains that are always there, and the jumps that lead to them.
//! - [`service_port`]: what a Service port adds: chains of its own, and rules in chains that all
//!   share.
//! - [`text`]: rules, in exactly the words in which `iptables-save` prints them, so that what the
//!   kernel holds can be compared with what it should hold.
//!
//! Nothing here talks to a kernel or remembers anything.

pub(crate) mod fixed;
pub(crate) mod names;
pub(crate) mod service_port;
pub(crate) mod text;

use proxy_core::{
    model::IpFamily,
    state::{NodePortAddresses, NodeState},
};

use self::names::chain;

/// A table of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Table {
    Mangle,
    Filter,
    Nat,
}

impl Table {
    /// In the order in which they are written.
    pub(crate) const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }

    /// The table with that name, if it is one that we use.
    pub(crate) fn called(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

/// A chain that has rules of many Service ports, in no particular order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SharedChain {
    /// Leads from cluster IPs, load balancer IPs and external IPs to Service ports.
    NatServices,
    /// Leads from node ports to Service ports.
    NatNodePorts,
    /// Refuses what came, or goes, through the node to an address without endpoints.
    FilterServices,
    /// Refuses what came to the node for an address or node port without endpoints.
    FilterExternal,
    /// Drops what source ranges did not let through.
    FilterFirewall,
    /// Accepts what asks for the health of Services.
    FilterNodePorts,
}

impl SharedChain {
    pub(crate) const ALL: [Self; 6] = [
        Self::NatServices,
        Self::NatNodePorts,
        Self::FilterServices,
        Self::FilterExternal,
        Self::FilterFirewall,
        Self::FilterNodePorts,
    ];

    pub(crate) fn table(self) -> Table {
        match self {
            Self::NatServices | Self::NatNodePorts => Table::Nat,
            _ => Table::Filter,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NatServices | Self::FilterServices => chain::SERVICES,
            Self::NatNodePorts | Self::FilterNodePorts => chain::NODE_PORTS,
            Self::FilterExternal => chain::EXTERNAL_SERVICES,
            Self::FilterFirewall => chain::PROXY_FIREWALL,
        }
    }
}

/// A chain's rules, as they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) name: String,
    /// As in `-A name rule`.
    pub(crate) rules: Vec<String>,
}

/// What is fixed for the lifetime of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The bit of the packet mark that means "masquerade this".
    pub(crate) mark: u32,
    /// Whether node ports are served on IPv4's loopback addresses.
    pub(crate) localhost_node_ports: bool,
    /// Whether packets that conntrack calls invalid are dropped instead of forwarded.
    pub(crate) drops_invalid: bool,
}

/// What rules depend on besides Services: the same for all of a family's.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) family: IpFamily,
    pub(crate) settings: &'a Settings,
    pub(crate) node: &'a NodeState,
}

impl Context<'_> {
    /// Whether node ports are served on loopback addresses: those of IPv6 cannot be routed.
    pub(crate) fn serves_localhost(&self) -> bool {
        self.family == IpFamily::V4
            && self.settings.localhost_node_ports
            && *self.node.node_ports.of(self.family) == NodePortAddresses::AllLocal
    }

    pub(crate) fn loopback(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => "127.0.0.0/8",
            IpFamily::V6 => "::1/128",
        }
    }
}
