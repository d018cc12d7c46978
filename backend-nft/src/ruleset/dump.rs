//! What the kernel had when a table was read.

use std::{collections::BTreeMap, time::Duration};

use super::{BaseChain, ChainName, Element, Family, SetDef, SetName};

/// A table as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct TableDump {
    /// The family.
    pub family: Family,
    /// The generation of the ruleset, for [`super::Transaction::expect_generation`]; `None` if the
    /// transport cannot tell.
    pub generation: Option<u32>,
    /// The chains.
    pub chains: BTreeMap<ChainName, ChainDump>,
    /// The sets and maps that have a name (those inside rules are left out).
    pub sets: BTreeMap<SetName, SetDump>,
}

/// A chain as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainDump {
    /// The kernel's handle.
    pub handle: u64,
    /// How packets enter it.
    pub base: ChainBase,
    /// Its rules, in order.
    pub rules: Vec<RuleDump>,
}

/// How packets enter a chain that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ChainBase {
    /// From other chains only.
    #[default]
    Regular,
    /// From a hook, with the policy to accept.
    Base(BaseChain),
    /// From a hook, in a way that is never ours: in words.
    Foreign(String),
}

/// A rule as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleDump {
    /// The kernel's handle.
    pub handle: u64,
    /// What [`super::Rule::fingerprint`] was when we wrote it; `None` if somebody else did.
    pub fingerprint: Option<u64>,
}

/// A set or map as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct SetDump {
    /// The kernel's handle.
    pub handle: u64,
    /// Its definition; if it is none that we could have written, why in words.
    pub definition: Result<SetDef, String>,
    /// Its elements; `None` if they were not asked for or the definition is not ours.
    pub elements: Option<Vec<ElementDump>>,
}

/// An element as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ElementDump {
    /// The element.
    pub element: Element,
    /// When it will disappear, in a set with a timeout.
    pub expires: Option<Duration>,
}
