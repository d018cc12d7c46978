#![doc = include_str!("../README.md")]
//!
//! Services become chains, rules and elements (`layout`), which [`NftProxier`] compares with what
//! the kernel holds. These types, and the transports that commit them, are in
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
    layout::{NftConfig, names::OF_NAMED_PROXY},
    probe::{ProbeError, probe},
    proxier::{NftProxier, PROFILE, render},
};
