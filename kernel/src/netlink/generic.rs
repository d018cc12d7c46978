//! Generic netlink: protocols whose message type the kernel assigns when their module is loaded
//! (`linux/genetlink.h`).

use crate::netlink::{Error, Socket, Writer};

/// The length of `struct genlmsghdr`: command, version, two reserved bytes.
pub const HEADER: usize = 4;

/// The message type of the controller, which knows all families (`GENL_ID_CTRL`).
const CONTROLLER: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`
const GET_FAMILY: u8 = 3;
/// The version of the controller's messages.
const CONTROLLER_VERSION: u8 = 2;
/// `CTRL_ATTR_FAMILY_ID`
const FAMILY_ID: u16 = 1;
/// `CTRL_ATTR_FAMILY_NAME`
const FAMILY_NAME: u16 = 2;

/// Appends the header that follows netlink's.
pub fn header(writer: &mut Writer, command: u8, version: u8) {
    writer.raw(&[command, version, 0, 0]);
}

/// Returns the message type of the family `name`; `None` if the kernel has no such family. The
/// kernel may load the family's module to answer.
///
/// # Errors
/// If the kernel refuses for another reason, or does not answer. The socket must be one of
/// `NETLINK_GENERIC`.
pub fn family(socket: &mut Socket, name: &str) -> Result<Option<u16>, Error> {
    let fill = |w: &mut Writer| {
        header(w, GET_FAMILY, CONTROLLER_VERSION);
        w.string(FAMILY_NAME, name);
    };
    socket.find(CONTROLLER, fill, libc::ENOENT, |message| {
        let id = message.attributes(HEADER).find_kind(FAMILY_ID).and_then(|found| found.ne16());
        id.ok_or(Error::Malformed("a family without a message type"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_message_types() {
        let mut socket = Socket::open(libc::NETLINK_GENERIC).unwrap();
        assert_eq!(family(&mut socket, "nlctrl").unwrap(), Some(CONTROLLER));
        assert_eq!(family(&mut socket, "no such family").unwrap(), None);
    }
}
