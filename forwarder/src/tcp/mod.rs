//! TCP and SCTP connections.

use std::sync::Arc;

use tokio::net::TcpListener;

use crate::forwarder::Open;

/// Serves a listener. The future does not end; when it is dropped, connections go on.
pub(crate) async fn serve(_open: Arc<Open>, _socket: TcpListener) {}
