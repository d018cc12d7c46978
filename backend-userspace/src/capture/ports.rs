//! The ports of the proxy's sockets at addresses of its own.
//!
//! A Service port has the same port number at every start, unless another program or Service port
//! has taken it: a hash of its name chooses.

use std::{
    collections::HashSet,
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

/// The addresses of the sockets of all Service ports.
#[derive(Default)]
pub(super) struct Ports {
    taken: HashSet<(Protocol, SocketAddr)>,
    /// The ports that the system has reserved, once a sync has asked.
    reserved: Option<Vec<RangeInclusive<u16>>>,
    /// The addresses at which no port of the range is left.
    full: HashSet<(Protocol, IpAddr)>,
}

impl Ports {
    /// Begins a sync. Other programs may have changed what is reserved or free.
    pub(super) fn begin(&mut self) {
        self.reserved = None;
        self.full.clear();
    }

    pub(super) fn take(&mut self, protocol: Protocol, address: SocketAddr) {
        self.taken.insert((protocol, address));
    }

    pub(super) fn free(&mut self, protocol: Protocol, address: SocketAddr) {
        self.taken.remove(&(protocol, address));
        self.full.remove(&(protocol, address.ip()));
    }

    /// Listens for a Service port: at the known address, else at the first that is not taken, that
    /// is not among the `reserved` ports, and that `listen` can open, else at one that the system
    /// chooses. Returns the error with an address that could not be opened.
    pub(super) fn listen(
        &mut self,
        id: &ServicePortId,
        ip: IpAddr,
        known: Option<SocketAddr>,
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
        let (start, protocol) = (preferred(id), id.name.protocol);
        if !self.full.contains(&(protocol, ip)) {
            let reserved = self.reserved.get_or_insert_with(reserved);
            let is_free = |port: &u16| {
                !self.taken.contains(&(protocol, SocketAddr::new(ip, *port)))
                    && !reserved.iter().any(|ports| ports.contains(port))
            };
            let ports = (0..PORTS).map(|offset| FIRST + (start + offset) % PORTS).filter(is_free);
            let mut ours = ports.map(|port| SocketAddr::new(ip, port));
            if let Some(done) = ours.by_ref().take(TRIES).find_map(listen_unless_taken) {
                return done;
            }
            if ours.next().is_none() {
                self.full.insert((protocol, ip));
            }
        }
        let any = SocketAddr::new(ip, 0);
        listen(any).map_or_else(|error| (any, Some(error)), |address| (address, None))
    }
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
        let mut ports = Ports::default();
        (20_000..25_000).for_each(|port| ports.take(Protocol::Tcp, at(port)));
        let reserved = || vec![25_000..=29_997, 29_999..=29_999];
        assert_eq!(ports.listen(&id, ip, None, reserved, Ok).0, at(29_998));
        assert_eq!(ports.listen(&id, ip, Some(at(80)), reserved, Ok).0, at(80));
        ports.take(Protocol::Tcp, at(29_998));
        let asked = || panic!("known since the sync began");
        assert_eq!(ports.listen(&id, ip, None, asked, Ok).0, at(0));
        ports.taken.remove(&(Protocol::Tcp, at(29_998)));
        assert_eq!(ports.listen(&id, ip, None, asked, Ok).0, at(0), "no search in vain again");
        ports.free(Protocol::Tcp, at(29_998));
        assert_eq!(ports.listen(&id, ip, None, asked, Ok).0, at(29_998));
    }
}
