//! Netlink sockets, messages and attributes.
//!
//! - [`Writer`] appends messages with nested attributes to one buffer, so a batch is one `send`.
//! - [`Messages`] and [`Attributes`] walk over what the kernel answers, without copying and without
//!   trusting any length.
//! - [`Socket`] sends, and receives acknowledgements, errors, dumps, and what the kernel tells
//!   groups of listeners.
//! - [`nfnetlink`] has the header that netfilter's protocols share, and batches.
//! - `testing` (feature `testing`): other answers than the kernel's, for tests.

mod attribute;
mod awaited;
mod error;
pub(crate) mod generic;
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
    error::{Error, KernelError},
    message::{Message, Messages, Reply},
    multicast::Membership,
    socket::Socket,
    writer::{Writer, flags},
};
pub(crate) use self::{awaited::Awaited, pipeline::Pipeline};
