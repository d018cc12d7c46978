//! UDP flows.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::task::AbortHandle;

use crate::{forwarder::Shared, listener::Listener, port::Port};

/// Opens a listener, on the runtime of the calling thread.
pub(crate) fn open(
    _shared: &Arc<Shared>,
    _port: Arc<Port>,
    _listener: &Listener,
) -> io::Result<(SocketAddr, AbortHandle)> {
    Err(io::ErrorKind::Unsupported.into())
}
