//! The two ends of what a client has made.

use std::net::SocketAddr;

/// The two ends of a connection that a client has made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// The client's address and port.
    pub(crate) client: SocketAddr,
    /// The address and port that the client has connected to.
    pub(crate) destination: SocketAddr,
    /// Whether endpoints are to see the client's address, as far as possible.
    pub(crate) is_shown: bool,
}
