//! Kubernetes Services programmed with nftables.
//!
//! A Service is data here, not code: a fixed number of chains and rules whatever the size of the
//! cluster, and elements of maps for everything that varies.
//!
//! - [`ruleset`]: typed chains, rules, sets and elements, and transactions of them.
//! - [`text`]: the same in nft's syntax.

pub mod ruleset;
pub mod text;
