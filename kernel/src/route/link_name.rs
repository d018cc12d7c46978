//! The names of interfaces.

use super::list::abi::link::{HEADER, NAME};
use crate::netlink::{Error, Socket, Writer};

/// Returns the name of the interface with this index in the calling thread's network namespace;
/// `None` if there is none.
///
/// # Errors
/// If the kernel refuses or does not answer.
pub fn interface_name(index: u32) -> Result<Option<String>, Error> {
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let fill = |w: &mut Writer| {
        let mut link = [0; HEADER];
        link[4..8].copy_from_slice(&index.to_ne_bytes());
        w.raw(&link);
    };
    let name = socket.find(libc::RTM_GETLINK, fill, libc::ENODEV, |message| {
        Ok(message.attributes(HEADER).text(NAME).map(str::to_owned))
    })?;
    Ok(name.flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_the_first_index() {
        assert_eq!(interface_name(1).unwrap().as_deref(), Some("lo"));
        assert_eq!(interface_name(i32::MAX.cast_unsigned()).unwrap(), None);
    }
}
