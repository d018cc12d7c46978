//! The addresses of the node's interfaces, as an engine asks for them.

use std::{error::Error, net::IpAddr};

use async_trait::async_trait;

/// Follows the addresses of the node's interfaces, on which node ports are served.
#[async_trait]
pub trait InterfaceAddresses: Send {
    /// Waits until the addresses differ from those returned last, and returns all addresses. The
    /// first call returns as soon as the addresses are known. The engine polls the future on its
    /// own thread, and may drop the future and ask again: the next call
    /// returns what the dropped future has learned.
    ///
    /// # Errors
    /// If the addresses cannot be listed. The engine asks again after a while.
    async fn changed(&mut self) -> Result<Vec<IpAddr>, Box<dyn Error + Send + Sync>>;
}
