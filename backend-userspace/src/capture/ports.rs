//! The ports of the proxy's sockets at addresses of its own.
//!
//! A Service port has the same port number at every start, unless another program or Service port
//! has taken it: a hash of its name chooses.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
};

use switchyard_core::model::{Protocol, ServicePortId};

use crate::forwarder::ListenError;

/// The first port for Services. The range ends before that of node ports, and before the ports that
/// systems give to clients.
const FIRST: u16 = 20_000;
/// The number of ports for Services.
const PORTS: u16 = 10_000;
/// The number of ports that are tried, one after the other, before the system chooses.
const TRIES: u16 = 64;

/// Listens for a Service port: at the known address, else at the first that no other has, and that
/// `listen` can open, else at one that the system chooses. Returns the error with an address that
/// could not be opened.
pub(super) fn listen(
    id: &ServicePortId,
    ip: IpAddr,
    known: Option<SocketAddr>,
    taken: &BTreeSet<(Protocol, SocketAddr)>,
    mut listen: impl FnMut(SocketAddr) -> Result<SocketAddr, Box<ListenError>>,
) -> (SocketAddr, Option<Box<ListenError>>) {
    let start = preferred(id);
    let ports = (0..TRIES).map(|offset| FIRST + (start + offset) % PORTS);
    let is_free = |address: &SocketAddr| !taken.contains(&(id.name.protocol, *address));
    let ours = ports.map(|port| SocketAddr::new(ip, port)).filter(is_free);
    let any = SocketAddr::new(ip, 0);
    for address in known.into_iter().chain(ours) {
        match listen(address) {
            Ok(address) => return (address, None),
            Err(error) if error.source.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return (address, Some(error)),
        }
    }
    listen(any).map_or_else(|error| (any, Some(error)), |address| (address, None))
}

/// The number within the range of ports that a Service port begins with, the same in both families:
/// the hash FNV-1a of its name.
fn preferred(id: &ServicePortId) -> u16 {
    let text = id.name.to_string();
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash % u64::from(PORTS)) as u16
}
