//! What differs between systems, behind one trait.

use std::{io, net::SocketAddr};

use socket2::{Domain, Socket, Type};
use switchyard_core::model::Protocol;

/// The system that the forwarder runs on.
pub(crate) trait Platform: Send + Sync {
    /// Makes a socket of a protocol, for the family of an address. The error is `Unsupported` where the
    /// system has no such protocol.
    fn socket(&self, protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
        let domain = Domain::for_address(address);
        match protocol {
            Protocol::Tcp => Socket::new(domain, Type::STREAM, Some(socket2::Protocol::TCP)),
            Protocol::Udp => Socket::new(domain, Type::DGRAM, Some(socket2::Protocol::UDP)),
            Protocol::Sctp => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Lets a listener be bound while connections of an earlier one at the address go on, but not beside
    /// another listener.
    fn reuse_address(&self, _socket: &Socket) -> io::Result<()> {
        Ok(())
    }
}

struct Portable;

impl Platform for Portable {}

/// Returns the system that the program was built for.
pub(crate) fn current() -> Box<dyn Platform> {
    Box::new(Portable)
}
