//! The addresses of the node's interfaces.

use std::{collections::HashSet, net::IpAddr};

use crate::{
    conntrack::flow,
    netlink::{Error, Message, Socket, Writer, flags},
};

const RTM_GETADDR: u16 = 22;
/// The length of `struct ifaddrmsg`.
const HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Lists all present addresses of the node's interfaces, the loopback interface included.
pub(crate) fn list(socket: &mut Socket) -> Result<HashSet<IpAddr>, Error> {
    let request = |sequence| {
        let mut writer = Writer::new();
        // Of every family, of every interface.
        writer.message(RTM_GETADDR, flags::DUMP, sequence, |w| w.raw(&[0; HEADER]));
        writer.as_slice().to_vec()
    };
    socket.dump(request, |found: &mut HashSet<IpAddr>, message| {
        found.extend(own_address(&message));
        Ok(())
    })
}

/// Returns the interface's own address. On a point-to-point link, `IFA_ADDRESS` is the address of
/// the other end; on other links, IPv6 has no `IFA_LOCAL`.
fn own_address(message: &Message<'_>) -> Option<IpAddr> {
    let attributes = message.attributes(HEADER);
    let own = attributes.find_kind(IFA_LOCAL).or_else(|| attributes.find_kind(IFA_ADDRESS))?;
    flow::ip(own.payload)
}
