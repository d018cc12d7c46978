//! The types of interfaces that the kernel can make.

use crate::netlink::{Error, Socket, Writer, flags};

/// `RTM_NEWLINK`
const NEW_LINK: u16 = 16;
/// `struct ifinfomsg`: no family, no index, no flags.
const LINK_HEADER: [u8; 16] = [0; 16];
/// `IFLA_IFNAME`
const NAME: u16 = 3;
/// `IFLA_LINKINFO`
const INFO: u16 = 18;
/// `IFLA_INFO_KIND`
const INFO_KIND: u16 = 1;

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
    let sequence = socket.sequences(1);
    let mut writer = Writer::new();
    let flags = flags::ACK | flags::CREATE | flags::EXCLUSIVE;
    writer.message(NEW_LINK, flags, sequence, |w| {
        w.raw(&LINK_HEADER);
        w.string(NAME, IMPOSSIBLE_NAME);
        w.nest(INFO, |w| w.string(INFO_KIND, kind));
    });
    match socket.request(writer.as_slice(), sequence, |_| Ok(())) {
        Ok(()) => Err(Error::Malformed("an interface with an impossible name was made")),
        Err(error) => match error.errno() {
            Some(libc::EINVAL) => Ok(true),
            Some(libc::EOPNOTSUPP) => Ok(false),
            _ => Err(error),
        },
    }
}
