//! The types of interfaces that the kernel can make.

use super::list::abi::link;
use crate::netlink::{Error, Socket, flags};

/// A name that the kernel refuses for every interface.
const IMPOSSIBLE_NAME: &str = "/";

/// Whether the kernel can make interfaces of a type, such as `dummy`, in the calling thread's
/// network namespace. Makes none, but the kernel may load the type's module.
///
/// The kernel is asked for an interface with an impossible name: it looks for the type first, and
/// refuses the name only if there is such a type.
///
/// # Errors
/// If the kernel refuses for another reason, or does not answer. Without CAP_NET_ADMIN, the kernel
/// refuses.
pub fn has_link_type(kind: &str) -> Result<bool, Error> {
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let made = socket.carry_out(libc::RTM_NEWLINK, flags::CREATE | flags::EXCLUSIVE, |w| {
        w.raw(&link::NO_INDEX);
        w.string(link::NAME, IMPOSSIBLE_NAME);
        w.nest(link::INFO, |w| w.string(link::INFO_KIND, kind));
    });
    match made {
        Ok(()) => Err(Error::Malformed("an interface with an impossible name was made")),
        Err(error) => match error.errno() {
            Some(libc::EINVAL) => Ok(true),
            Some(libc::EOPNOTSUPP) => Ok(false),
            _ => Err(error),
        },
    }
}
