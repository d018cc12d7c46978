//! Kubernetes Services programmed with nftables.
//!
//! A Service is data here, not code: a fixed number of chains and rules whatever the size of the
//! cluster, and elements of maps for everything that varies.
//!
//! - `layout`: how Services become chains, rules and elements.
//! - `proxier`: compares that with what the kernel holds: [`NftProxier`], the backend.
//! - `monitor`: notices that somebody else changes the tables.
//! - [`ruleset`]: typed chains, rules, sets and elements, and transactions of them.
//! - [`text`]: the same in nft's syntax.
//! - [`transport`]: how it gets to the kernel and back; [`netlink`] is the usual way, [`json`] the
//!   other.

pub mod json;
mod layout;
mod monitor;
pub mod netlink;
mod proxier;
pub mod ruleset;
pub mod text;
pub mod transport;

pub use self::{
    layout::NftConfig,
    proxier::{NftProxier, render},
};
