//! Where traffic arrives, and what happens to it.

use std::{io, net::SocketAddr, sync::Arc};

use ipnet::IpNet;
use switchyard_core::{
    model::{Protocol, ServicePortId},
    state::Route,
};
use tokio::net::{TcpListener, UdpSocket};

use crate::platform::Platform;

/// An address at which the traffic of a Service port arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The Service port, whose protocol and family are the socket's.
    pub port: ServicePortId,
    /// The address; with port 0, the system chooses a port.
    pub address: SocketAddr,
    /// What happens to connections: [`Route::Pool`] or [`Route::ExternalLocal`]. With any other route, they
    /// are closed at once, and datagrams are dropped.
    pub route: Route,
    /// If present, connections from any other source are closed at once.
    pub allowed_sources: Option<Arc<[IpNet]>>,
}

/// Why a [`Listener`] could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({protocol}) for {port}", protocol = .port.name.protocol, port = .port.name)]
pub struct ListenError {
    /// The Service port.
    pub port: ServicePortId,
    /// The address.
    pub address: SocketAddr,
    /// What the system answered. `AddrInUse`: another program listens there. `Unsupported`: the system
    /// has no such protocol. `Other`: listeners have half of the file descriptors that may be open.
    #[source]
    pub source: io::Error,
}

/// Listeners leave no file descriptors for connections.
#[derive(Debug, thiserror::Error)]
#[error("listeners have half of the file descriptors already: raise the limit (RLIMIT_NOFILE)")]
pub(crate) struct TooManyListeners;

/// How many connections the system completes ahead of the forwarder. The system has a limit of its own.
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
        platform: &dyn Platform,
        protocol: Protocol,
        address: SocketAddr,
    ) -> io::Result<Self> {
        let socket = platform.socket(protocol, address)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        if protocol == Protocol::Udp {
            socket.bind(&address.into())?;
            return Ok(Self::Datagram(UdpSocket::from_std(socket.into())?));
        }
        platform.reuse_address(&socket)?;
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
