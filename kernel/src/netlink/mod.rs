//! Netlink sockets, messages and attributes.
//!
//! - [`Writer`] appends messages with nested attributes to one buffer, so a batch is one `send`.
//! - [`Messages`] and [`Attributes`] walk over what the kernel answers, without copying and without
//!   trusting any length.
//! - [`Socket`] sends, and receives acknowledgements, errors, dumps, and what the kernel tells
//!   groups of listeners.
//! - [`Awaited`] is a socket that a task waits for.
//! - [`Pipeline`] collects requests that stand alone, which are sent many at a time.
//! - [`nfnetlink`] has the header that netfilter's protocols share, and batches.
//! - [`generic`] looks up the families of generic netlink, and has their header.
//! - `testing` (feature `testing`): other answers than the kernel's, for tests.

mod attribute;
mod awaited;
mod error;
pub mod generic;
mod message;
mod multicast;
pub mod nfnetlink;
mod pipeline;
mod socket;
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
