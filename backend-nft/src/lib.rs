//! Kubernetes Services programmed with nftables.
//!
//! A Service is data here, not code: a fixed number of chains and rules whatever the size of the
//! cluster, and elements of maps for everything that varies.
//!
//! - `layout`: how Services become chains, rules and elements.
//! - `proxier`: compares them with what the kernel holds: [`NftProxier`], the backend.
//! - `monitor`: notices when other programs change the tables.
//! - [`probe`]: whether the kernel can do what the backend needs.
//! - [`NftBackend`]: the backend as a value in a program's table of backends.
//!
//! Typed chains, rules, sets and elements, and the transports that commit them, are the crate
//! [`switchyard_nft_ruleset`].
//!
//! Feature `json`: the transport that runs the program `nft`.

mod backend;
mod clean_up;
mod layout;
mod monitor;
mod probe;
mod proxier;

pub use self::{
    backend::NftBackend,
    layout::NftConfig,
    probe::{ProbeError, probe},
    proxier::{NftProxier, PROFILE, render},
};
