#![doc = include_str!("../README.md")]
//!
//! - `layout`: how Services become chains, rules and elements.
//! - `proxier`: compares them with what the kernel holds: [`NftProxier`], the backend.
//! - `monitor`: notices when other programs change the tables.
//! - [`probe`]: whether the kernel can do what the backend needs.
//! - [`NftBackend`]: the backend as a value in a program's table of backends.
//!
//! Typed chains, rules, sets and elements, and the transports that commit them, are the crate
//! [`switchyard_kernel::nftables`].

#![forbid(unsafe_code)]

mod backend;
mod clean_up;
mod dump;
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
