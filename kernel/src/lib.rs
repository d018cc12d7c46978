#![doc = include_str!("../README.md")]
//!
//! Feature `conntrack`: removal of entries that contradict what an engine synced; `json`: a
//! transport of nftables that runs `nft -j`; `testing`: other answers than the kernel's, and models
//! of it. Calls that are not `async` block until the kernel answers, or as long as a program runs.

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
