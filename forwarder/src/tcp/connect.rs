//! Connecting to an endpoint, or to the next one.

use std::{io, net::SocketAddr, time::Duration};

use socket2::SockRef;
use switchyard_core::{error::Chain, model::Protocol, state::PoolKind};
use tokio::{
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

use super::{PAUSE, tune};
use crate::{
    forwarder::Shared,
    platform::Platform,
    port::{Chosen, Ends, Port},
};

/// The most endpoints that are tried for a connection, if there are not more timeouts.
const TRIES: usize = 8;

/// Connects to an endpoint of a pool. Endpoints that do not take the connection are passed over; when all
/// have been tried and timeouts are left, the first is tried again. Returns `None` if none takes it.
pub(super) async fn connect(
    shared: &Shared,
    port: &Port,
    pool: PoolKind,
    ends: Ends,
) -> Option<(TcpStream, Chosen)> {
    let timeouts = &shared.config.connect_timeouts;
    let protocol = port.id().name.protocol;
    let mut tried = Vec::new();
    let mut tries = 0;
    while tries < timeouts.len().max(TRIES) {
        let Some(chosen) = port.choose(pool, ends, &tried) else {
            if tried.is_empty() || tries >= timeouts.len() {
                break;
            }
            tried.clear();
            continue;
        };
        let limit = timeouts.get(tries).or(timeouts.last()).copied().unwrap_or(Duration::MAX);
        let address = chosen.address;
        let attempt = timeout(limit, attempt(&*shared.platform, protocol, address)).await;
        tries += 1;
        match attempt.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => {
                port.succeeded(address);
                return Some((stream, chosen));
            }
            Err(error) => {
                tracing::debug!(
                    service = %port.id().name, endpoint = %address, err = %Chain(&error),
                    "Cannot connect to an endpoint"
                );
                if shared.platform.is_exhausted(&error) {
                    sleep(PAUSE).await;
                } else {
                    port.failed(address, ends.client.ip());
                    tried.push(address);
                }
            }
        }
    }
    None
}

async fn attempt(
    platform: &dyn Platform,
    protocol: Protocol,
    address: SocketAddr,
) -> io::Result<TcpStream> {
    let socket = platform.socket(protocol, address)?;
    socket.set_nonblocking(true)?;
    tune(platform, protocol, &SockRef::from(&socket));
    let stream = TcpSocket::from_std_stream(socket.into()).connect(address).await?;
    // Nobody listens at a port of this node from which the system lets sockets connect: then the socket
    // may have been connected to itself (RFC 9293, section 3.5, simultaneous open).
    if stream.local_addr()? == address {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}
