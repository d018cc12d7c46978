//! Tables as they were read from the kernel.

use std::{collections::BTreeMap, time::Duration};

use super::{BaseChain, ChainName, Element, SetDef, SetName, Table};

/// A table as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct TableDump {
    /// The table.
    pub table: Table,
    /// The generation of the ruleset, for [`super::Transaction::expect_generation`]; `None` if the
    /// transport does not know generations.
    pub generation: Option<u32>,
    /// Whether the table is dormant (`NFT_TABLE_F_DORMANT`): no packet enters its base chains.
    pub dormant: bool,
    /// The chains.
    pub chains: BTreeMap<ChainName, ChainDump>,
    /// The sets and maps that have a name. Sets inside rules are left out.
    pub sets: BTreeMap<SetName, SetDump>,
}

/// A chain as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainDump {
    /// The kernel's handle.
    pub handle: u64,
    /// The way that packets enter the chain.
    pub base: ChainBase,
    /// The rules, in order.
    pub rules: Vec<RuleDump>,
}

/// The way that packets enter a chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ChainBase {
    /// From other chains only.
    #[default]
    Regular,
    /// From a hook, with the policy to accept.
    Base(BaseChain),
    /// From a hook, in a way that [`BaseChain`] cannot express, and why not.
    Foreign(String),
}

/// A rule as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDump {
    /// The kernel's handle.
    pub handle: u64,
    /// The [`super::Rule::fingerprint`] of the rule, if this crate wrote it; `None` for a rule of
    /// another program.
    pub fingerprint: Option<u64>,
    /// The present name of the [chain that the rule leads to](super::Rule::leads_to): another
    /// program may have renamed the chain, which the fingerprint does not show.
    pub leads_to: Option<ChainName>,
}

/// A set or map as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct SetDump {
    /// The kernel's handle.
    pub handle: u64,
    /// The definition, or why [`SetDef`] cannot express it.
    pub definition: Result<SetDef, String>,
    /// The elements, sorted by key; `None` if they were not asked for, or if there is no
    /// definition.
    pub elements: Option<Vec<ElementDump>>,
}

/// An element as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ElementDump {
    /// The element.
    pub element: Element,
    /// The time until the element disappears, in a set with a timeout.
    pub expires: Option<Duration>,
}
