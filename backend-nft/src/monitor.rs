//! Notices that another program changes our tables: another proxy, a firewall that is reloaded,
//! `nft flush ruleset`.
//!
//! The kernel notifies its listeners of what each commit changes, and of the program that made it.
//! It leaves out our own commits, so that listening costs nothing until another program touches a
//! table of ours.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use switchyard_core::proxier::{self, ExternalChange, Mode, ProxierError};
use switchyard_kernel::nftables::netlink::{Listener, Touched};

/// The objects that other programs have changed, which the monitor notes and a resync takes.
#[derive(Clone, Default)]
pub(crate) struct Noted(Arc<Mutex<Touched>>);

impl Noted {
    pub(crate) fn add(&self, touched: Touched) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(touched);
    }

    /// Takes everything that was noted. Without a monitor, that is never all.
    pub(crate) fn take(&self) -> Touched {
        let noted = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let is_watched = Arc::strong_count(&self.0) > 1;
        Touched { anything: noted.anything || !is_watched, ..noted }
    }
}

/// A monitor of our tables.
pub(crate) struct Monitor {
    pub(crate) listener: Listener,
    pub(crate) noted: Noted,
}

#[async_trait]
impl proxier::Monitor for Monitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let (author, touched) = self.listener.changed().await.map_err(|error| {
            // What was read before the error is lost.
            self.noted.add(Touched::anything());
            ProxierError::backend(Mode::NFTABLES, "cannot watch the tables", error)
        })?;
        self.noted.add(touched);
        Ok(ExternalChange::Changed { by: Some(author.into_process().to_string()) })
    }

    /// The kernel reports all commits, or that reports were lost.
    fn misses_nothing(&self) -> bool {
        true
    }
}
