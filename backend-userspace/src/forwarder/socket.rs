//! The sockets of listeners.

use std::{io, net::SocketAddr, sync::Arc};

use socket2::SockRef;
use switchyard_core::model::Protocol;
use tokio::net::{TcpListener, UdpSocket};

use crate::forwarder::{shared::Shared, tcp};

/// The number of connections the system completes ahead of the forwarder. The system has a limit of
/// its own.
const BACKLOG: i32 = 4096;

/// Whom a socket has its address with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    /// No other socket.
    Own,
    /// No other one yet, as programs notice that listen there, but [`Address::Shared`] ones from
    /// now on.
    Shareable,
    /// Others that are shareable or shared: the system spreads clients over all.
    Shared,
}

pub(crate) enum Socket {
    /// TCP, or SCTP one-to-one, which has the same calls.
    Stream(TcpListener),
    /// UDP, whose flows send answers by it.
    Datagram(Arc<UdpSocket>),
}

impl Socket {
    /// Binds a socket, on the runtime of the calling thread.
    pub(crate) fn bind(
        shared: &Shared,
        protocol: Protocol,
        address: SocketAddr,
        how: Address,
    ) -> io::Result<Self> {
        let socket = shared.platform.socket(protocol, address)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if protocol != Protocol::Udp {
            shared.platform.reuse_address(&socket)?;
            tcp::tune(shared, protocol, &SockRef::from(&socket));
            tcp::tune_lasting(shared, protocol, &SockRef::from(&socket));
        }
        if how == Address::Shared {
            shared.platform.share_port(&socket)?;
        }
        socket.bind(&address.into())?;
        if how == Address::Shareable {
            // Where the system does not allow that, the next socket cannot be bound.
            let _ = shared.platform.share_port(&socket);
        }
        if protocol == Protocol::Udp {
            return Ok(Self::Datagram(Arc::new(UdpSocket::from_std(socket.into())?)));
        }
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
