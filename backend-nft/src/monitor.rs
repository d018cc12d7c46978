//! Notices that somebody else changes our tables: another proxy, a firewall that is reloaded,
//! `nft flush ruleset`.
//!
//! The kernel tells its listeners what each commit changes, and who made it. It is asked to leave
//! out our own commits, so that this costs nothing until somebody else touches a table of ours.

use std::time::Duration;

use ::netlink::Error;
use async_trait::async_trait;
use proxy_core::{proxier, runner::Input};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc::Sender,
    time::{Instant, sleep_until},
};

use crate::netlink::{Author, Listener};

/// How often, at most, a full sync is asked for: somebody may change our tables all the time.
const PERIOD: Duration = Duration::from_secs(1);
/// How often, at most, the same is logged as a warning.
const QUIET: Duration = Duration::from_secs(30);

/// See the [module's documentation](self).
pub(crate) struct Monitor {
    listener: Listener,
}

impl Monitor {
    pub(crate) fn new(listener: Listener) -> Self {
        Self { listener }
    }

    async fn watch(self, inputs: &Sender<Input>) -> Result<(), Error> {
        let cannot_wait = |source| Error::Io { action: "wait for the kernel", source };
        // SAFETY: the listener owns its socket, and so keeps the same one open until it is dropped.
        let registered =
            unsafe { AsyncFd::register_with_interest(self.listener, Interest::READABLE) };
        let mut listener = registered.map_err(|error| cannot_wait(error.into()))?;
        let mut not_before = Instant::now();
        let mut warned: Option<Instant> = None;
        let mut is_due = false;
        loop {
            tokio::select! {
                () = inputs.closed() => return Ok(()),
                () = sleep_until(not_before), if is_due => {
                    is_due = false;
                    not_before = Instant::now() + PERIOD;
                    if inputs.send(Input::Resync).await.is_err() {
                        return Ok(());
                    }
                }
                ready = listener.readable_mut() => {
                    let mut ready = ready.map_err(cannot_wait)?;
                    let author = ready.get_inner_mut().take_in()?;
                    ready.clear_ready();
                    if let Some(author) = author {
                        is_due = true;
                        warn(&mut warned, &author);
                    }
                }
            }
        }
    }
}

#[async_trait]
impl proxier::Monitor for Monitor {
    async fn run(self: Box<Self>, inputs: Sender<Input>) {
        if let Err(error) = self.watch(&inputs).await {
            tracing::error!(
                %error,
                "Changes of our tables by others are noticed only by the periodic full sync"
            );
        }
    }
}

fn warn(warned: &mut Option<Instant>, author: &Author) {
    if warned.is_none_or(|warned| warned.elapsed() >= QUIET) {
        *warned = Some(Instant::now());
        tracing::warn!(%author, "Another program has changed our tables; they are compared");
    } else {
        tracing::debug!(%author, "Another program has changed our tables again");
    }
}
