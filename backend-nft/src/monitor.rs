//! Notices that another program changes our tables: another proxy, a firewall that is reloaded,
//! `nft flush ruleset`.
//!
//! The kernel notifies its listeners of what each commit changes, and of the program that made it.
//! It leaves out our own commits, so that listening costs nothing until another program touches a
//! table of ours.

use async_trait::async_trait;
use switchyard_core::proxier::{self, ExternalChange, Mode, ProxierError};
use switchyard_netlink::Error;
use switchyard_nft_ruleset::netlink::Listener;
use tokio::io::{Interest, unix::AsyncFd};

/// A monitor of our tables. It belongs to the runtime that first polls it.
pub(crate) enum Monitor {
    /// Listens; not polled yet.
    Listening(Listener),
    /// Registered with a runtime.
    Registered(AsyncFd<Listener>),
    /// Could not be registered.
    Closed,
}

impl Monitor {
    pub(crate) fn new(listener: Listener) -> Self {
        Self::Listening(listener)
    }

    /// The listener, registered with the runtime of the calling task.
    fn registered(&mut self) -> Result<&mut AsyncFd<Listener>, Error> {
        if let Self::Listening(_) = self
            && let Self::Listening(listener) = std::mem::replace(self, Self::Closed)
        {
            // SAFETY: the listener owns its socket, and so keeps the same one open until it is
            // dropped.
            let registered =
                unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) };
            *self = Self::Registered(registered.map_err(|error| cannot_wait(error.into()))?);
        }
        match self {
            Self::Registered(listener) => Ok(listener),
            Self::Listening(_) | Self::Closed => {
                Err(cannot_wait(std::io::ErrorKind::NotConnected.into()))
            }
        }
    }

    async fn changed(&mut self) -> Result<ExternalChange, Error> {
        let listener = self.registered()?;
        loop {
            let mut ready = listener.readable_mut().await.map_err(cannot_wait)?;
            let author = ready.get_inner_mut().read_changes()?;
            ready.clear_ready();
            if let Some(author) = author {
                return Ok(ExternalChange::Changed { by: Some(author.to_string()) });
            }
        }
    }
}

fn cannot_wait(source: std::io::Error) -> Error {
    Error::Io { action: "wait for the kernel", source }
}

#[async_trait]
impl proxier::Monitor for Monitor {
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        self.changed().await.map_err(|error| {
            ProxierError::backend(Mode::NFTABLES, "cannot watch the tables", error)
        })
    }

    /// The kernel reports all commits, or that reports were lost.
    fn misses_nothing(&self) -> bool {
        true
    }
}
