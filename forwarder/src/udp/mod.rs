//! UDP flows.

use std::sync::Arc;

use tokio::net::UdpSocket;

use crate::forwarder::Open;

/// Serves a listener. The future does not end; when it is dropped, flows end.
pub(crate) async fn serve(_open: Arc<Open>, _socket: UdpSocket) {}
