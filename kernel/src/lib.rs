#![doc = include_str!("../README.md")]
//!
//! # Modules and features
//!
//! - [`netlink`]: sockets, messages and attributes.
//! - [`nftables`]: rulesets, what other programs' rules do with a flow, and traces of packets.
//! - [`xtables`]: the programs of iptables, and their tables.
//! - [`ipvs`]: virtual servers and their real servers; [`ipset`]: the names of IP sets, and their
//!   removal.
//! - [`route`]: interfaces and their addresses.
//! - [`sysctl`] and [`families`], without netlink: the kernel's parameters and IP families.
//! - [`program`]: programs that run within a time limit.
//! - `conntrack` (feature `conntrack`): removal of entries that contradict what an engine synced.
//! - Feature `json`: a transport of nftables that runs `nft -j`.
//! - Feature `testing`: other answers than the kernel's, and models of it, for tests.
//!
//! Calls that are not `async` block for as long as the kernel takes to answer, which is microseconds
//! for most requests and the commit itself for a batch, or as long as a program runs.

#[cfg(feature = "conntrack")]
pub mod conntrack;
mod families;
pub mod ipset;
pub mod ipvs;
pub mod netlink;
pub mod nftables;
pub mod program;
pub mod route;
pub mod sysctl;
mod version;
pub mod xtables;

pub use self::{families::families, version::KernelVersion};
