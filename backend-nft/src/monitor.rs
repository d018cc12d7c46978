//! Notices that another program changes our tables: another proxy, a firewall that is reloaded,
//! `nft flush ruleset`.
//!
//! The kernel notifies its listeners of what each commit changes, and of the program that made it.
//! It leaves out our own commits, so that listening costs nothing until another program touches a
//! table of ours.

use async_trait::async_trait;
use switchyard_core::proxier::{self, ExternalChange, Mode, ProxierError};
use switchyard_kernel::nftables::netlink::Listener;

/// A monitor of our tables.
pub(crate) struct Monitor(pub(crate) Listener);

#[async_trait]
impl proxier::Monitor for Monitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let author = self.0.changed().await.map_err(|error| {
            ProxierError::backend(Mode::NFTABLES, "cannot watch the tables", error)
        })?;
        Ok(ExternalChange::Changed { by: Some(author.to_string()) })
    }

    /// The kernel reports all commits, or that reports were lost.
    fn misses_nothing(&self) -> bool {
        true
    }
}
