//! Transactions: operations that the kernel commits together or not at all.

use std::sync::Arc;

use super::{ChainName, Element, Family, Key, Rule, SetDef, SetName, TABLE};

/// The hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// `prerouting`
    Prerouting,
    /// `input`
    Input,
    /// `forward`
    Forward,
    /// `output`
    Output,
    /// `postrouting`
    Postrouting,
}

impl Hook {
    /// All hooks.
    pub const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// `filter`
    Filter,
    /// `nat`: sees only the first packet of a connection.
    Nat,
}

impl ChainKind {
    /// All types.
    pub const ALL: [Self; 2] = [Self::Filter, Self::Nat];
}

/// A chain that packets enter from a hook. Its policy is to accept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// The name.
    pub name: ChainName,
    /// The type.
    pub kind: ChainKind,
    /// The hook.
    pub hook: Hook,
    /// The priority: smaller ones come first.
    pub priority: i32,
}

/// What an operation does. Chains and sets must exist, and the like, when it is its turn.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationKind {
    /// Makes the table; nothing if it exists.
    AddTable,
    /// Deletes the table with all that is in it; it must exist.
    DeleteTable,
    /// Makes a base chain; nothing if it exists.
    AddBaseChain(BaseChain),
    /// Makes a chain; nothing if it exists.
    AddChain(ChainName),
    /// Removes all rules from a chain.
    FlushChain(ChainName),
    /// Deletes an empty chain to which nothing leads.
    DeleteChain(ChainName),
    /// Makes a set or map; nothing if it exists with the same shape.
    AddSet(Arc<SetDef>),
    /// Removes all elements.
    FlushSet(Arc<SetDef>),
    /// Deletes a set or map that no rule uses.
    DeleteSet(SetName),
    /// Appends a rule to a chain.
    AddRule(ChainName, Rule),
    /// Adds elements. One that exists with the same data is left alone; with other data it fails.
    AddElements(Arc<SetDef>, Vec<Element>),
    /// Deletes elements; they must exist.
    DeleteElements(Arc<SetDef>, Vec<Key>),
}

/// An operation on the table of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Which table.
    pub family: Family,
    /// What is done.
    pub kind: OperationKind,
}

impl Operation {
    /// How many elements it adds or deletes.
    pub fn elements(&self) -> usize {
        match &self.kind {
            OperationKind::AddElements(_, elements) => elements.len(),
            OperationKind::DeleteElements(_, keys) => keys.len(),
            _ => 0,
        }
    }

    /// What it does to which object, in words: `add chain ip kube-proxy services`. Elements are
    /// left out.
    pub fn subject(&self) -> String {
        let set = |set: &SetDef| if set.is_map() { "map" } else { "set" };
        let (verb, object, name) = match &self.kind {
            OperationKind::AddTable => ("add", "table", ""),
            OperationKind::DeleteTable => ("delete", "table", ""),
            OperationKind::AddBaseChain(chain) => ("add", "chain", chain.name.as_str()),
            OperationKind::AddChain(chain) => ("add", "chain", chain.as_str()),
            OperationKind::FlushChain(chain) => ("flush", "chain", chain.as_str()),
            OperationKind::DeleteChain(chain) => ("delete", "chain", chain.as_str()),
            OperationKind::AddSet(def) => ("add", set(def), def.name.as_str()),
            OperationKind::FlushSet(def) => ("flush", set(def), def.name.as_str()),
            OperationKind::DeleteSet(name) => ("delete", "set", name.as_str()),
            OperationKind::AddRule(chain, _) => ("add", "rule to chain", chain.as_str()),
            OperationKind::AddElements(def, _) => match def.is_map() {
                true => ("add", "element to map", def.name.as_str()),
                false => ("add", "element to set", def.name.as_str()),
            },
            OperationKind::DeleteElements(def, _) => match def.is_map() {
                true => ("delete", "element from map", def.name.as_str()),
                false => ("delete", "element from set", def.name.as_str()),
            },
        };
        let space = if name.is_empty() { "" } else { " " };
        format!("{verb} {object} {} {TABLE}{space}{name}", self.family)
    }
}

/// Operations that the kernel commits together, or not at all, in this order; for both families.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transaction {
    operations: Vec<Operation>,
    generation: Option<u32>,
}

impl Transaction {
    /// Nothing to do yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Commits only if nobody changed the ruleset since this generation, which a
    /// [`super::TableDump`] tells. Transports without generations ignore it.
    pub fn expect_generation(&mut self, generation: u32) {
        self.generation = Some(generation);
    }

    /// The generation that the caller expects.
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// The operations, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Appends an operation.
    pub fn push(&mut self, family: Family, kind: OperationKind) {
        self.operations.push(Operation { family, kind });
    }

    /// Appends [`OperationKind::AddTable`].
    pub fn add_table(&mut self, family: Family) {
        self.push(family, OperationKind::AddTable);
    }

    /// Appends [`OperationKind::DeleteTable`].
    pub fn delete_table(&mut self, family: Family) {
        self.push(family, OperationKind::DeleteTable);
    }

    /// Appends [`OperationKind::AddBaseChain`].
    pub fn add_base_chain(&mut self, family: Family, chain: BaseChain) {
        self.push(family, OperationKind::AddBaseChain(chain));
    }

    /// Appends [`OperationKind::AddChain`].
    pub fn add_chain(&mut self, family: Family, chain: impl Into<ChainName>) {
        self.push(family, OperationKind::AddChain(chain.into()));
    }

    /// Appends [`OperationKind::FlushChain`].
    pub fn flush_chain(&mut self, family: Family, chain: impl Into<ChainName>) {
        self.push(family, OperationKind::FlushChain(chain.into()));
    }

    /// Appends [`OperationKind::DeleteChain`].
    pub fn delete_chain(&mut self, family: Family, chain: impl Into<ChainName>) {
        self.push(family, OperationKind::DeleteChain(chain.into()));
    }

    /// Appends [`OperationKind::AddSet`].
    pub fn add_set(&mut self, family: Family, set: Arc<SetDef>) {
        self.push(family, OperationKind::AddSet(set));
    }

    /// Appends [`OperationKind::FlushSet`].
    pub fn flush_set(&mut self, family: Family, set: &Arc<SetDef>) {
        self.push(family, OperationKind::FlushSet(set.clone()));
    }

    /// Appends [`OperationKind::DeleteSet`].
    pub fn delete_set(&mut self, family: Family, set: impl Into<SetName>) {
        self.push(family, OperationKind::DeleteSet(set.into()));
    }

    /// Appends [`OperationKind::AddRule`].
    pub fn add_rule(&mut self, family: Family, chain: impl Into<ChainName>, rule: Rule) {
        self.push(family, OperationKind::AddRule(chain.into(), rule));
    }

    /// Appends [`OperationKind::AddElements`], unless there is none.
    pub fn add_elements(&mut self, family: Family, set: &Arc<SetDef>, elements: Vec<Element>) {
        if !elements.is_empty() {
            self.push(family, OperationKind::AddElements(set.clone(), elements));
        }
    }

    /// Appends [`OperationKind::DeleteElements`], unless there is none.
    pub fn delete_elements(&mut self, family: Family, set: &Arc<SetDef>, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.push(family, OperationKind::DeleteElements(set.clone(), keys));
        }
    }
}
