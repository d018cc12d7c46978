//! The typed ruleset: tables, chains, rules, sets and elements, transactions of them, and dumps.
//!
//! Nothing here talks to the kernel. A [`Transaction`] is a list of operations on typed objects,
//! and a [`TableDump`] is what the kernel held when a table was read.

mod dump;
mod element;
mod fingerprint;
pub(crate) mod interval;
mod names;
mod rule;
mod set;
mod transaction;

pub(crate) use self::set::concat_len;
pub use self::{
    dump::{ChainBase, ChainDump, ElementDump, RuleDump, SetDump, TableDump},
    element::{Bytes, Element, ElementData, Key, Value},
    names::{ChainName, Family, SetName, Table, TableName},
    rule::{InterfaceMatch, Rule, Selector, Side, SlotChoice, Statement, Verdict},
    set::{Field, SetData, SetDef},
    transaction::{BaseChain, ChainKind, Hook, Operation, OperationKind, Transaction},
};
