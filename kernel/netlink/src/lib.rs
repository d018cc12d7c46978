#![doc = include_str!("../README.md")]
//!
//! - [`Writer`] appends messages with nested attributes to one buffer, so a batch is one `send`.
//! - [`Messages`] and [`Attributes`] walk over what the kernel answers, without copying and without
//!   trusting any length.
//! - [`Socket`] sends, and receives acknowledgements, errors, dumps, and what the kernel tells
//!   groups of listeners.
//! - [`Awaited`] is a socket that a task waits for.
//! - [`Pipeline`] collects requests that stand alone, which are sent many at a time.
//! - [`nftables`] has what is asked of nf_tables by several.
//! - [`nfnetlink`] has the header that netfilter's protocols share, and batches.
//! - [`ipset`]: the names of IP sets, and their removal.
//! - [`ipvs`]: virtual servers of IPVS and their real servers.
//! - [`route`]: interfaces and their addresses.
//! - [`kernel`] and [`sysctl`], without netlink: the kernel's version, IP families and parameters.
//! - [`program`], without netlink: programs that run within a time limit.
//! - `testing` (feature `testing`): other answers than the kernel's, for tests.
//! - [`generic`] looks up the families of generic netlink, and has their header.
//!
//! All calls block, for as long as the kernel takes to answer: microseconds for most requests, and
//! the commit itself for a batch.

mod attribute;
mod awaited;
mod error;
pub mod generic;
pub mod ipset;
pub mod ipvs;
pub mod kernel;
mod message;
mod multicast;
pub mod nfnetlink;
pub mod nftables;
mod pipeline;
pub mod program;
pub mod route;
mod socket;
pub mod sysctl;
#[cfg(feature = "testing")]
pub mod testing;
mod writer;

pub use self::{
    attribute::{Attribute, Attributes},
    awaited::Awaited,
    error::{Error, KernelError},
    message::{Message, Messages, Reply},
    pipeline::Pipeline,
    socket::Socket,
    writer::{Writer, flags},
};
