//! Transactions: operations that the kernel commits together or not at all.

use std::{borrow::Cow, sync::Arc};

use switchyard_model::words;

use super::{ChainName, Element, ElementDump, Key, Rule, SetDef, SetName, Table};

/// The hook of a base chain, by its number in the kernel (`enum nf_inet_hooks`).
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

// The words that nft has, as those of `ChainKind`.
words! {
    Hook: FromStr {
        Prerouting = "prerouting",
        Input = "input",
        Forward = "forward",
        Output = "output",
        Postrouting = "postrouting",
    }
}

impl Hook {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| *hook as u32 == number)
    }
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// `filter`
    Filter,
    /// `nat`: only the first packet of a connection enters the chain.
    Nat,
}

words! { ChainKind: FromStr { Filter = "filter", Nat = "nat" } }

/// A chain that packets enter from a hook. Its policy is `accept`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// The name.
    pub name: ChainName,
    /// The type.
    pub kind: ChainKind,
    /// The hook.
    pub hook: Hook,
    /// The priority: chains with smaller ones come first.
    pub priority: i32,
}

/// The action of an operation. An object that the action is about must exist when its turn comes,
/// unless the action creates it.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationKind {
    /// Creates the table; does nothing if it exists.
    AddTable {
        /// A comment for people, cut to 128 bytes when written. It is not changed if the table
        /// exists.
        comment: Option<Cow<'static, str>>,
    },
    /// Has packets enter the base chains of a table that is dormant. Newer kernels refuse that in a
    /// transaction that adds or deletes base chains of the table as well (`EINVAL`).
    WakeTable,
    /// Deletes the table with everything in it.
    DeleteTable,
    /// Creates a base chain; does nothing if it exists.
    AddBaseChain(BaseChain),
    /// Creates a regular chain; does nothing if it exists.
    AddChain(ChainName),
    /// Deletes all rules of a chain.
    FlushChain(ChainName),
    /// Deletes a chain, which must be empty and which nothing may lead to.
    DeleteChain(ChainName),
    /// Creates a set or map; does nothing if it exists with the same shape.
    AddSet(Arc<SetDef>),
    /// Deletes a set or map, which no rule may use.
    DeleteSet(SetName),
    /// Appends a rule to a chain.
    AddRule(ChainName, Rule),
    /// Adds elements. An element that exists with the same data is left alone; with other data, the
    /// kernel refuses it.
    AddElements(Arc<SetDef>, Vec<Element>),
    /// Adds elements that disappear earlier than the timeout of their set has it: restores what was
    /// read. The remaining time must not be longer than the timeout.
    RestoreElements(Arc<SetDef>, Vec<ElementDump>),
    /// Deletes elements, which must exist.
    DeleteElements(Arc<SetDef>, Vec<Key>),
}

/// An operation on a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The table.
    pub table: Table,
    /// The action.
    pub kind: OperationKind,
}

impl Operation {
    /// Returns the number of elements that the operation adds or deletes.
    pub fn elements(&self) -> usize {
        match &self.kind {
            OperationKind::AddElements(_, elements) => elements.len(),
            OperationKind::RestoreElements(_, elements) => elements.len(),
            OperationKind::DeleteElements(_, keys) => keys.len(),
            _ => 0,
        }
    }

    /// Returns action and object in words: `add chain ip kube-proxy services`. Elements are left
    /// out.
    pub fn subject(&self) -> String {
        let set = |set: &SetDef| if set.is_map() { "map" } else { "set" };
        let (verb, object, name) = match &self.kind {
            OperationKind::AddTable { .. } => ("add", "table", ""),
            OperationKind::WakeTable => ("wake", "table", ""),
            OperationKind::DeleteTable => ("delete", "table", ""),
            OperationKind::AddBaseChain(chain) => ("add", "chain", chain.name.as_str()),
            OperationKind::AddChain(chain) => ("add", "chain", chain.as_str()),
            OperationKind::FlushChain(chain) => ("flush", "chain", chain.as_str()),
            OperationKind::DeleteChain(chain) => ("delete", "chain", chain.as_str()),
            OperationKind::AddSet(def) => ("add", set(def), def.name.as_str()),
            OperationKind::DeleteSet(name) => ("delete", "set", name.as_str()),
            OperationKind::AddRule(chain, _) => ("add", "rule to chain", chain.as_str()),
            OperationKind::AddElements(def, _) | OperationKind::RestoreElements(def, _) => {
                match def.is_map() {
                    true => ("add", "element to map", def.name.as_str()),
                    false => ("add", "element to set", def.name.as_str()),
                }
            }
            OperationKind::DeleteElements(def, _) => match def.is_map() {
                true => ("delete", "element from map", def.name.as_str()),
                false => ("delete", "element from set", def.name.as_str()),
            },
        };
        let space = if name.is_empty() { "" } else { " " };
        format!("{verb} {object} {}{space}{name}", self.table)
    }
}

/// Operations that the kernel commits in this order, all together or not at all. They may be on
/// several tables.
///
/// A transaction prints as a file that `nft -f` loads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transaction {
    operations: Vec<Operation>,
    generation: Option<u32>,
}

impl Transaction {
    /// Returns a transaction without operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the commit fail with a conflict if another program has changed a table since the table
    /// was read at this generation, which a [`super::TableDump`] has. This covers all tables that
    /// the transport has read since [`crate::nftables::Transport::release`]; commits to other tables, and
    /// those of the transport itself, do not matter. Transports without generations ignore this.
    pub fn expect_generation(&mut self, generation: u32) {
        self.generation = Some(generation);
    }

    /// The expected generation.
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// The operations, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The operations, for tests that alter them.
    #[cfg(feature = "testing")]
    pub fn operations_mut(&mut self) -> &mut [Operation] {
        &mut self.operations
    }

    /// Whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Appends an operation.
    pub fn push(&mut self, table: &Table, kind: OperationKind) {
        self.operations.push(Operation { table: table.clone(), kind });
    }

    /// Appends [`OperationKind::AddTable`], without a comment.
    pub fn add_table(&mut self, table: &Table) {
        self.push(table, OperationKind::AddTable { comment: None });
    }

    /// Appends [`OperationKind::AddTable`], with a comment.
    pub fn add_table_with_comment(&mut self, table: &Table, comment: impl Into<Cow<'static, str>>) {
        self.push(table, OperationKind::AddTable { comment: Some(comment.into()) });
    }

    /// Appends [`OperationKind::WakeTable`].
    pub fn wake_table(&mut self, table: &Table) {
        self.push(table, OperationKind::WakeTable);
    }

    /// Appends [`OperationKind::DeleteTable`].
    pub fn delete_table(&mut self, table: &Table) {
        self.push(table, OperationKind::DeleteTable);
    }

    /// Appends [`OperationKind::AddBaseChain`].
    pub fn add_base_chain(&mut self, table: &Table, chain: BaseChain) {
        self.push(table, OperationKind::AddBaseChain(chain));
    }

    /// Appends [`OperationKind::AddChain`].
    pub fn add_chain(&mut self, table: &Table, chain: impl Into<ChainName>) {
        self.push(table, OperationKind::AddChain(chain.into()));
    }

    /// Appends [`OperationKind::FlushChain`].
    pub fn flush_chain(&mut self, table: &Table, chain: impl Into<ChainName>) {
        self.push(table, OperationKind::FlushChain(chain.into()));
    }

    /// Appends [`OperationKind::DeleteChain`].
    pub fn delete_chain(&mut self, table: &Table, chain: impl Into<ChainName>) {
        self.push(table, OperationKind::DeleteChain(chain.into()));
    }

    /// Appends [`OperationKind::AddSet`].
    pub fn add_set(&mut self, table: &Table, set: Arc<SetDef>) {
        self.push(table, OperationKind::AddSet(set));
    }

    /// Appends [`OperationKind::DeleteSet`].
    pub fn delete_set(&mut self, table: &Table, set: impl Into<SetName>) {
        self.push(table, OperationKind::DeleteSet(set.into()));
    }

    /// Appends [`OperationKind::AddRule`].
    pub fn add_rule(&mut self, table: &Table, chain: impl Into<ChainName>, rule: Rule) {
        self.push(table, OperationKind::AddRule(chain.into(), rule));
    }

    /// Appends [`OperationKind::AddElements`], unless `elements` is empty.
    pub fn add_elements(&mut self, table: &Table, set: &Arc<SetDef>, elements: Vec<Element>) {
        if !elements.is_empty() {
            self.push(table, OperationKind::AddElements(set.clone(), elements));
        }
    }

    /// Appends [`OperationKind::RestoreElements`], unless `elements` is empty.
    pub fn restore_elements(
        &mut self,
        table: &Table,
        set: &Arc<SetDef>,
        elements: Vec<ElementDump>,
    ) {
        if !elements.is_empty() {
            self.push(table, OperationKind::RestoreElements(set.clone(), elements));
        }
    }

    /// Appends [`OperationKind::DeleteElements`], unless `keys` is empty.
    pub fn delete_elements(&mut self, table: &Table, set: &Arc<SetDef>, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.push(table, OperationKind::DeleteElements(set.clone(), keys));
        }
    }
}
