//! How Services become chains, rules and elements.
//!
//! The whole ruleset is fixed ([`fixed`]) but for three things that vary:
//!
//! - elements of maps: every Service port has some ([`service_port`]);
//! - chains that spread traffic over N slots, shared by all Service ports with N endpoints
//!   ([`shared`]);
//! - chains of single Service ports, only for those with ClientIP affinity or source ranges
//!   ([`own`]).
//!
//! Nothing here talks to a kernel or remembers anything.

pub(crate) mod fixed;
pub(crate) mod names;
pub(crate) mod own;
pub(crate) mod service_port;
pub(crate) mod shared;
pub(crate) mod slots;

use proxy_core::{
    model::PerFamily,
    state::{LocalPods, NodeState},
};

use crate::ruleset::{ChainName, Family, InterfaceMatch, Rule, Side, Statement};

/// What is fixed for the lifetime of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NftConfig {
    /// Which bit of the packet mark says that a packet is to be masqueraded, 0 to 31. It must
    /// differ from those that the CNI and the kubelet use.
    pub masquerade_bit: u8,
    /// Which families are programmed.
    pub families: PerFamily<bool>,
}

impl Default for NftConfig {
    /// kube-proxy's bit, and both families.
    fn default() -> Self {
        Self { masquerade_bit: 14, families: PerFamily { v4: true, v6: true } }
    }
}

impl NftConfig {
    /// The mask of the masquerade bit.
    pub(crate) fn mark(&self) -> u32 {
        1 << self.masquerade_bit
    }

    /// The families that are programmed.
    pub(crate) fn families(&self) -> impl Iterator<Item = Family> + '_ {
        Family::ALL.into_iter().filter(|&family| *self.families.of(family.into()))
    }
}

/// What rules depend on besides Services: the same for all of a family's.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) family: Family,
    pub(crate) mark: u32,
    pub(crate) node: &'a NodeState,
}

/// A chain's rules, as they should be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChainRules {
    pub(crate) name: ChainName,
    pub(crate) rules: Vec<Rule>,
}

impl ChainRules {
    fn new(name: impl Into<ChainName>, rules: Vec<Rule>) -> Self {
        Self { name: name.into(), rules }
    }
}

impl Context<'_> {
    /// Matches packets that come from a pod of this node, or that do not; `None` if that cannot be
    /// told.
    fn local_pod_match(&self, is_local: bool) -> Option<Statement> {
        let negated = !is_local;
        Some(match self.node.local_pods.of(self.family.into()).as_ref()? {
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
