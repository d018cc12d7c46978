//! A typed ruleset: what Switchyard may put into its two nftables tables, and nothing else.
//!
//! Nothing here talks to the kernel. A [`Transaction`] is a list of operations on typed objects;
//! [`crate::netlink`] and [`crate::json`] carry it to the kernel, [`crate::text`] prints it, and a
//! [`TableDump`] is what the kernel had when it was read.

mod dump;
mod element;
mod fingerprint;
mod names;
mod rule;
mod set;
mod transaction;

pub use self::{
    dump::{ChainBase, ChainDump, ElementDump, RuleDump, SetDump, TableDump},
    element::{Bytes, Element, ElementData, Key, Value},
    names::{ChainName, Family, SetName, TABLE, TABLE_COMMENT},
    rule::{InterfaceMatch, Rule, Selector, Side, Statement, Verdict},
    set::{Field, SetData, SetDef},
    transaction::{BaseChain, ChainKind, Hook, Operation, OperationKind, Transaction},
};
