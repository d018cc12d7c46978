//! The device that holds the addresses of Services.

use switchyard_netlink::{Error, Socket, Writer, flags};

/// The name of the device, which is kube-proxy's.
const NAME: &str = "kube-ipvs0";

/// `RTM_DELLINK`
const DELETE_LINK: u16 = 17;
/// `RTM_GETLINK`
const GET_LINK: u16 = 18;
/// `struct ifinfomsg`, in which index 0 means that the name selects the link.
const NO_INDEX: [u8; 16] = [0; 16];
/// `IFLA_IFNAME`
const LINK_NAME: u16 = 3;

/// Whether the device exists.
pub(crate) fn exists() -> Result<bool, Error> {
    request(GET_LINK)
}

/// Deletes the device with its addresses, whatever its type. Returns whether the device existed.
pub(crate) fn delete() -> Result<bool, Error> {
    request(DELETE_LINK)
}

/// Sends a request about the device. Returns whether the device existed.
fn request(kind: u16) -> Result<bool, Error> {
    let mut socket = Socket::open(libc::NETLINK_ROUTE)?;
    let sequence = socket.sequences(1);
    let mut writer = Writer::new();
    writer.message(kind, flags::ACK, sequence, |w| {
        w.raw(&NO_INDEX);
        w.string(LINK_NAME, NAME);
    });
    match socket.request(writer.as_slice(), sequence, |_| Ok(())) {
        Ok(()) => Ok(true),
        Err(Error::Kernel(error)) if error.errno == libc::ENODEV => Ok(false),
        Err(error) => Err(error),
    }
}
