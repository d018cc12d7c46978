//! The names of interfaces.

use crate::netlink::{Error, Socket, Writer, flags};

/// `RTM_GETLINK`
const GET_LINK: u16 = 18;
/// The length of `struct ifinfomsg`.
const HEADER: usize = 16;
/// The place of the index in it.
const INDEX: usize = 4;
/// `IFLA_IFNAME`
const NAME: u16 = 3;

/// Returns the name of the interface with this index in the calling thread's network namespace;
/// `None` if there is none.
///
/// # Errors
/// If the kernel refuses or does not answer.
pub fn interface_name(index: u32) -> Result<Option<String>, Error> {
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let sequence = socket.sequences(1);
    let mut request = Writer::new();
    request.message(GET_LINK, flags::ACK, sequence, |w| {
        let mut link = [0; HEADER];
        link[INDEX..INDEX + 4].copy_from_slice(&index.to_ne_bytes());
        w.raw(&link);
    });
    let mut name = None;
    let result = socket.request(request.as_slice(), sequence, |message| {
        let found = message.attributes(HEADER).find_kind(NAME);
        name = found.and_then(|found| found.str().map(str::to_owned));
        Ok(())
    });
    match result {
        Ok(()) => Ok(name),
        Err(Error::Kernel(error)) if error.errno == libc::ENODEV => Ok(None),
        Err(error) => Err(error),
    }
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
