//! TCP and SCTP connections.

mod connect;
mod connection;
mod copy;
mod header;

use std::{io, sync::Arc, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use switchyard_core::{error::ErrorChain, model::Protocol};
use tokio::{
    net::{TcpListener, TcpStream},
    time::sleep,
};

use crate::{platform::Platform, rate_limit::RateLimit, shared::OpenListener};

/// The time to wait for descriptors or memory to become free.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a listener. The future does not end; when it is dropped, connections go on.
pub(crate) async fn serve(open: Arc<OpenListener>, socket: TcpListener) {
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
            | PermissionDenied
            | HostUnreachable
            | NetworkUnreachable
            | NetworkDown
    )
}

/// Sets the options of a connection's socket. A socket without them works, too.
fn tune(platform: &dyn Platform, protocol: Protocol, socket: &SockRef<'_>) {
    // SCTP has heartbeats of its own.
    if protocol == Protocol::Tcp {
        let _ = socket.set_tcp_nodelay(true);
        let keepalive = TcpKeepalive::new()
            .with_time(Duration::from_secs(60))
            .with_interval(Duration::from_secs(15));
        let _ = socket.set_tcp_keepalive(&keepalive);
    }
    let _ = platform.tune(protocol, socket);
}

/// Closes a connection with RST, so that the other end knows that it has failed.
fn reset(socket: TcpStream) {
    let _ = socket.set_zero_linger();
}
