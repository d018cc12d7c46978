//! The ports of the proxy's sockets at addresses of its own.
//!
//! A Service port has the same port number at every start, unless another program or Service port
//! has taken it: a hash of its name chooses.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
};

use switchyard_core::model::{Protocol, ServicePortId};

use crate::forwarder::ListenError;

/// The first port for Services. The range ends before that of node ports, and before the ports that
/// systems give to clients.
const FIRST: u16 = 20_000;
/// The number of ports for Services.
const PORTS: u16 = 10_000;
/// The number of ports that are tried, one after the other, before the system chooses.
const TRIES: usize = 64;

/// Listens for a Service port: at the known address, else at the first that no other has, that is
/// not among the `reserved` ports, and that `listen` can open, else at one that the system chooses.
/// Returns the error with an address that could not be opened.
pub(super) fn listen(
    id: &ServicePortId,
    ip: IpAddr,
    known: Option<SocketAddr>,
    taken: &BTreeSet<(Protocol, SocketAddr)>,
    reserved: impl FnOnce() -> Vec<RangeInclusive<u16>>,
    mut listen: impl FnMut(SocketAddr) -> Result<SocketAddr, Box<ListenError>>,
) -> (SocketAddr, Option<Box<ListenError>>) {
    let mut listen_unless_taken = |address| match listen(address) {
        Ok(address) => Some((address, None)),
        Err(error) if error.source.kind() == io::ErrorKind::AddrInUse => None,
        Err(error) => Some((address, Some(error))),
    };
    if let Some(done) = known.and_then(&mut listen_unless_taken) {
        return done;
    }
    let (start, reserved) = (preferred(id), reserved());
    let is_free = |port: &u16| {
        !taken.contains(&(id.name.protocol, SocketAddr::new(ip, *port)))
            && !reserved.iter().any(|ports| ports.contains(port))
    };
    let ports = (0..PORTS).map(|offset| FIRST + (start + offset) % PORTS).filter(is_free);
    let mut ours = ports.map(|port| SocketAddr::new(ip, port)).take(TRIES);
    if let Some(done) = ours.find_map(listen_unless_taken) {
        return done;
    }
    let any = SocketAddr::new(ip, 0);
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

#[cfg(test)]
mod tests {
    use switchyard_core::testing::port_id;

    use super::*;

    #[test]
    fn a_port_of_the_range_is_found_as_long_as_there_is_one() {
        let id = port_id("web", Protocol::Tcp);
        let ip = IpAddr::from([192, 0, 0, 83]);
        let at = |port| SocketAddr::new(ip, port);
        let taken = (20_000..25_000).map(|port| (Protocol::Tcp, at(port))).collect();
        let reserved = || vec![25_000..=29_997, 29_999..=29_999];
        assert_eq!(listen(&id, ip, None, &taken, reserved, Ok).0, at(29_998));
        assert_eq!(listen(&id, ip, Some(at(80)), &taken, reserved, Ok).0, at(80));
    }
}
