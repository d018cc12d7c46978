//! The sockets of listeners.

use std::{io, net::SocketAddr};

use socket2::SockRef;
use switchyard_core::model::Protocol;
use tokio::net::{TcpListener, UdpSocket};

use crate::forwarder::{shared::Shared, tcp};

/// The number of connections the system completes ahead of the forwarder. The system has a limit of
/// its own.
const BACKLOG: i32 = 4096;

/// A socket that is bound.
pub(crate) enum Socket {
    /// TCP, or SCTP one-to-one, which has the same calls.
    Stream(TcpListener),
    Datagram(UdpSocket),
}

impl Socket {
    /// Binds a socket, on the runtime of the calling thread.
    pub(crate) fn bind(
        shared: &Shared,
        protocol: Protocol,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let socket = shared.platform.socket(protocol, address)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if protocol == Protocol::Udp {
            socket.bind(&address.into())?;
            return Ok(Self::Datagram(UdpSocket::from_std(socket.into())?));
        }
        shared.platform.reuse_address(&socket)?;
        tcp::tune(shared, protocol, &SockRef::from(&socket));
        tcp::tune_lasting(shared, protocol, &SockRef::from(&socket));
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self::Stream(TcpListener::from_std(socket.into())?))
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Stream(socket) => socket.local_addr(),
            Self::Datagram(socket) => socket.local_addr(),
        }
    }
}
