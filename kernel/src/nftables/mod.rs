//! nftables: typed rulesets, committed in one transaction, read back and compared; and what is
//! asked about the rules of others. A [`Table`] is a value: a program can have several.
//!
//! - **One transaction is one commit**, which the kernel does or refuses as a whole; but a packet
//!   on its way may follow the old rules and find the new elements. What must happen in an order
//!   takes several transactions.
//! - **[`OperationKind::AddRule`] appends another rule each time**: flush the chain in the same
//!   transaction, or compare [`Rule::fingerprint`] with what was read.
//! - **Reads and commits are two steps.** [`Transaction::expect_generation`] makes a commit fail
//!   with [`TransportError::Conflict`] if another program changes the tables in between.
//!   [`Transport::release`] ends such a step.
//! - **Calls block**, in the network namespace in which the transport was opened.
//! - **nft can print every rule**: [`Statement`] is a closed list, as other bytecode makes some
//!   versions of nft abort. nft before 1.1.0 cannot load maps with concatenated data from JSON.
//! - **Kernel 5.13 is the oldest that is supported.** Before 6.2, a chain cannot be deleted for a
//!   moment after the last map element that led to it: wait a second, and try again.
//!
//! The features `json` and `testing` have a transport that runs `nft -j` and a model of the kernel.

#![forbid(unsafe_code)]

pub(crate) mod abi;
pub mod bytecode;
mod flow_table;
pub mod gates;
mod generation;
#[cfg(feature = "json")]
pub mod json;
pub(crate) mod listing;
pub mod netlink;
mod open;
mod owned;
mod ruleset;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
pub mod trace;
mod transport;

pub(crate) use self::generation::is_generation;
pub use self::{
    flow_table::{FLOW_TABLE, FlowTable},
    generation::generation,
    open::TransportKind,
    ruleset::{
        BaseChain, Bytes, ChainBase, ChainDump, ChainKind, ChainName, Element, ElementData,
        ElementDump, Family, Field, Hook, InterfaceMatch, Key, Operation, OperationKind, Rule,
        RuleDump, Selector, SetData, SetDef, SetDump, SetName, Side, SlotChoice, Statement, Table,
        TableDump, TableName, Transaction, Value, Verdict,
    },
    transport::{CommitStats, Elements, Refusal, Transport, TransportError},
};
