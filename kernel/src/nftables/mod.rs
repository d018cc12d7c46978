//! nftables: typed rulesets, committed in one transaction, read back and compared; and what is
//! asked about the rules of others.
//!
//! A [`Table`] is a value, so that several programs, or several parts of one, can have a table each.
//!
//! # What to know before use
//!
//! - **One transaction is one commit.** The kernel does all of a transaction or nothing, but a
//!   packet that is on its way during the commit may follow the old rules and find the new
//!   elements. What must happen in an order takes several transactions.
//! - **Operations are not idempotent, except for those that add tables, chains, sets and
//!   elements.** Each [`OperationKind::AddRule`] appends another rule: flush the chain in the same
//!   transaction, or compare [`Rule::fingerprint`] with what was read.
//! - **Reads and commits are two steps.** [`Transaction::expect_generation`] makes a commit fail
//!   with [`TransportError::Conflict`] if another program changes the tables in between. Commits to
//!   other tables do no harm, however many. [`Transport::release`] ends such a step.
//! - **Calls block** until the kernel is done, and belong to the network namespace in which the
//!   transport was opened.
//! - **nft can print every rule**, which is why [`Statement`] is a closed list: other bytecode
//!   makes some versions of nft abort when they list any table. Tests compare the listings of 1.0.6
//!   and 1.1.3. nft before 1.1.0 cannot load maps with concatenated data from JSON; the JSON
//!   transport checks this when it is opened.
//! - **Kernel 5.13 is the oldest that is supported.** Kernels before 6.2 refuse for a moment to
//!   delete a chain after the last map element that led to it was deleted: wait a second, and try
//!   again.
//!
//! # Modules and features
//!
//! - [`gates`]: base chains of others that let nothing pass.
//! - [`trace`]: the way of packets through the rules.
//! - [`netlink`]: the kernel's own interface, and [`netlink::Listener`], which reports the changes
//!   of other programs.
//! - [`text`]: nft's syntax.
//! - [`bytecode`]: what the kernel does with packets, found out from what it holds.
//! - `json` (feature `json`): the program `nft` with JSON, as another transport and as a format.
//! - `testing` (feature `testing`): a transport that intercepts commits, and a model of the kernel.

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
