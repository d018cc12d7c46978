//! The choice of a transport.

#[cfg(feature = "json")]
use crate::nftables::json::JsonTransport;
use crate::nftables::{
    netlink::NetlinkTransport,
    transport::{Transport, TransportError},
};

/// A kind of transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportKind {
    /// The kernel's own interface.
    #[default]
    Netlink,
    /// The program `nft`, with JSON. Feature `json`.
    #[cfg(feature = "json")]
    Json,
}

impl TransportKind {
    /// Opens the transport. A netlink transport stays in the network namespace of the thread that
    /// opens it; `nft` is run in the namespace of the thread that commits or reads.
    ///
    /// # Errors
    ///
    /// [`TransportError::Netlink`] if no socket can be opened. For `Json`: if the program `nft`
    /// cannot be run or is too old.
    pub fn open(self) -> Result<Box<dyn Transport>, TransportError> {
        Ok(match self {
            Self::Netlink => Box::new(NetlinkTransport::open()?),
            #[cfg(feature = "json")]
            Self::Json => Box::new(JsonTransport::open()?),
        })
    }
}
