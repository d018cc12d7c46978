//! Where traffic arrives, and what happens to it.

use std::{io, net::SocketAddr, sync::Arc};

use ipnet::IpNet;
use switchyard_core::{model::ServicePortId, state::Route};

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
    /// has no such protocol.
    #[source]
    pub source: io::Error,
}
