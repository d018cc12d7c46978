//! Rendering of Services as chains, rules and elements, by pure functions: objects of the table,
//! which are there once for all Services ([`table`], [`lb_chains`], [`slots`]), and those of a
//! Service port ([`service_port`], [`affinity`], [`source_ranges`]).

pub(crate) mod affinity;
mod config;
pub(crate) mod lb_chains;
pub(crate) mod names;
pub(crate) mod service_port;
pub(crate) mod slots;
pub(crate) mod source_ranges;
pub(crate) mod table;

use std::net::IpAddr;

use switchyard_core::{
    model::HashSet,
    state::{LocalPods, NodeState},
};
use switchyard_kernel::nftables::{
    ChainName, Family, InterfaceMatch, Rule, SetName, Side, Statement,
};

pub use self::config::NftConfig;

/// The inputs of a family's rules besides Services.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) family: Family,
    pub(crate) mark: u32,
    /// [`NftConfig::beneath_ipvs`]
    pub(crate) beneath_ipvs: bool,
    /// [`NftConfig::exempt_mark`]
    pub(crate) exempt_mark: Option<u32>,
    /// [`NftConfig::only_translated`]
    pub(crate) only_translated: Option<IpAddr>,
    pub(crate) node: &'a NodeState,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChainRules {
    pub(crate) name: ChainName,
    pub(crate) rules: Vec<Rule>,
}

impl ChainRules {
    fn new(name: impl Into<ChainName>, rules: Vec<Rule>) -> Self {
        Self { name: name.into(), rules }
    }

    /// Whether a rule uses one of these sets.
    pub(crate) fn uses(&self, sets: &HashSet<SetName>) -> bool {
        !sets.is_empty() && self.rules.iter().flat_map(Rule::sets).any(|set| sets.contains(set))
    }
}

impl<'a> Context<'a> {
    /// The context of a family, on a node.
    pub(crate) fn new(config: &NftConfig, family: Family, node: &'a NodeState) -> Self {
        Self {
            family,
            mark: config.mark(),
            beneath_ipvs: config.beneath_ipvs,
            exempt_mark: config.exempt_mark,
            only_translated: *config.only_translated.get(family.into()),
            node,
        }
    }

    /// Matches packets from pods of this node if `is_local`, otherwise all other packets. Returns
    /// `None` if the node has no way to recognise its pods.
    fn local_pod_match(&self, is_local: bool) -> Option<Statement> {
        let negated = !is_local;
        Some(match self.node.local_pods.get(self.family.into()).as_ref()? {
            LocalPods::Source(net) => Statement::Address { side: Side::Source, negated, net: *net },
            LocalPods::Interface(name) => Statement::InputInterface {
                negated,
                name: InterfaceMatch::Exact(name.as_str().into()),
            },
            LocalPods::InterfacePrefix(prefix) => Statement::InputInterface {
                negated,
                name: InterfaceMatch::Prefix(prefix.as_str().into()),
            },
        })
    }
}
