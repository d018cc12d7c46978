//! Rendering of Services as chains and rules.
//!
//! - [`fixed`]: the chains that are always there, and the jumps that lead to them.
//! - [`service_port`]: the chains of a Service port, and its rules in shared chains.
//! - [`names`]: the names of all chains.
//!
//! All functions are pure.

pub(crate) mod fixed;
pub(crate) mod names;
pub(crate) mod service_port;

use std::net::IpAddr;

use switchyard_core::{
    model::{IpFamily, PerFamily},
    state::NodeState,
};
use switchyard_kernel::xtables::Table;

use self::names::ChainNames;

/// A chain with rules of many Service ports, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SharedChain {
    /// Leads from cluster IPs, load balancer IPs and external IPs to Service ports.
    NatServices,
    /// Leads from node ports to Service ports.
    NatNodePorts,
    /// Refuses packets from or through the node to an address without endpoints.
    FilterServices,
    /// Refuses packets to the node for an address or node port without endpoints.
    FilterExternal,
    /// Drops packets from outside the source ranges.
    FilterFirewall,
    /// Accepts health checks of Services.
    FilterNodePorts,
    /// Masquerades connections of endpoints to themselves that IPVS has translated.
    NatHairpins,
    /// Finds packets to the node for what IPVS delivers at addresses of Services.
    FilterDelivered,
    /// Refuses all other packets to these addresses.
    FilterOtherPorts,
}

impl SharedChain {
    const ALL: [Self; 9] = [
        Self::NatServices,
        Self::NatNodePorts,
        Self::FilterServices,
        Self::FilterExternal,
        Self::FilterFirewall,
        Self::FilterNodePorts,
        Self::NatHairpins,
        Self::FilterDelivered,
        Self::FilterOtherPorts,
    ];

    /// The chains that rules need with these settings.
    pub(crate) fn all(settings: &Settings) -> impl Iterator<Item = Self> + use<> {
        let is_of_ipvs = |which: &Self| {
            matches!(which, Self::NatHairpins | Self::FilterDelivered | Self::FilterOtherPorts)
        };
        let beneath_ipvs = settings.beneath_ipvs;
        Self::ALL.into_iter().filter(move |which| beneath_ipvs || !is_of_ipvs(which))
    }

    pub(crate) fn table(self) -> Table {
        match self {
            Self::NatServices | Self::NatNodePorts | Self::NatHairpins => Table::Nat,
            _ => Table::Filter,
        }
    }

    pub(crate) fn name(self, names: &ChainNames) -> &'static str {
        match self {
            Self::NatServices | Self::FilterServices => names.services,
            Self::NatNodePorts | Self::FilterNodePorts => names.node_ports,
            Self::FilterExternal => names.external_services,
            Self::FilterFirewall => names.proxy_firewall,
            Self::NatHairpins => names.ipvs_hairpins,
            Self::FilterDelivered => names.ipvs_filter,
            Self::FilterOtherPorts => names.ipvs_others,
        }
    }
}

/// The loopback addresses of IPv4 (RFC 1122).
pub(crate) const LOOPBACK_V4: &str = "127.0.0.0/8";

/// Settings of all rules, which are fixed for the lifetime of a backend, but for
/// [`Self::drops_invalid`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The bit of the packet mark that has a packet masqueraded.
    pub(crate) mark: u32,
    pub(crate) names: &'static ChainNames,
    /// Whether packets that conntrack calls invalid are dropped instead of forwarded, which each
    /// full sync reads from the kernel's setting.
    pub(crate) drops_invalid: bool,
    /// [`IptablesConfig::beneath_ipvs`](crate::IptablesConfig::beneath_ipvs)
    pub(crate) beneath_ipvs: bool,
    /// [`IptablesConfig::exempt_mark`](crate::IptablesConfig::exempt_mark)
    pub(crate) exempt_mark: Option<u32>,
    /// [`IptablesConfig::only_translated`](crate::IptablesConfig::only_translated)
    pub(crate) only_translated: PerFamily<Option<IpAddr>>,
}

/// The input of rules besides Services: the same for all rules of a family.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) family: IpFamily,
    pub(crate) settings: &'a Settings,
    pub(crate) node: &'a NodeState,
}

impl Context<'_> {
    /// Whether node ports are served on loopback addresses.
    pub(crate) fn serves_localhost(&self) -> bool {
        self.node.node_ports.get(self.family).has_loopback()
    }

    /// The target that refuses packets with an answer.
    pub(crate) fn reject(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => "REJECT --reject-with icmp-port-unreachable",
            IpFamily::V6 => "REJECT --reject-with icmp6-port-unreachable",
        }
    }

    pub(crate) fn loopback(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => LOOPBACK_V4,
            IpFamily::V6 => "::1/128",
        }
    }
}
