//! TCP and SCTP connections.

mod connect;
mod connection;
mod copy;
mod delivery;
mod header;
mod ready_io;

use std::{io, sync::Arc, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use switchyard_core::{error::ErrorChain, model::Protocol};
use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::forwarder::{
    rate_limit::RateLimit,
    shared::{OpenListener, Shared},
};

/// The time to wait for descriptors or memory to become free.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a listener. The future does not end; when it is dropped, connections go on.
pub(crate) async fn serve(open: Arc<OpenListener>, socket: &TcpListener) {
    let mut warned = RateLimit::default();
    loop {
        match socket.accept().await {
            Ok((client, address)) => connection::admit(&open, client, address),
            Err(error) if is_of_client(&error) => {}
            Err(error) => {
                if warned.is_due() {
                    let port = Arc::clone(&open.serving().port);
                    tracing::warn!(
                        service = %port.id().name, address = %open.address, err = %ErrorChain(&error),
                        "Accept failed; retrying"
                    );
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whether an error of `accept` is about the one connection: accept(2).
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionReset
            | Interrupted
            | HostUnreachable
            | NetworkUnreachable
            | NetworkDown
    )
}

/// Sets the options of a connection's socket, or of a listener whose connections inherit the
/// options. A socket without them works, too.
pub(crate) fn tune(shared: &Shared, protocol: Protocol, socket: &SockRef<'_>) {
    // A connection ends by RST, so that nothing cut off looks complete, until it is released.
    let _ = socket.set_linger(Some(Duration::ZERO));
    let _ = match protocol {
        Protocol::Sctp => shared.platform.tune_sctp(socket),
        _ => socket.set_tcp_nodelay(true),
    };
}

/// Sets the options that only a connection needs that lasts. SCTP has heartbeats of its own.
pub(crate) fn tune_lasting(shared: &Shared, protocol: Protocol, socket: &SockRef<'_>) {
    if protocol == Protocol::Tcp {
        let dead_after = shared.config.dead_after;
        let keepalive = TcpKeepalive::new()
            .with_time(dead_after / 3)
            .with_interval((dead_after / 12).max(Duration::from_secs(1)));
        let _ = socket.set_tcp_keepalive(&keepalive);
        let _ = shared.platform.limit_unsent(socket);
    }
}

/// Has a connection end by FIN when it is closed, after all that was sent.
fn release(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(None);
}
