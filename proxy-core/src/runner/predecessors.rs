//! The removal of what other modes left behind, once this mode serves.
//!
//! Until the first sync, the leftovers serve traffic; after that, a packet passes leftover rules before
//! the rules of this mode, or passes the same rules twice.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{observer::Observer, timing::after};
use crate::proxier::{Backend, Mode, ProxierError};

/// How long to wait before a failed removal is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Backends of other modes that may have left something behind.
#[derive(Default)]
pub(super) struct Predecessors {
    backends: Vec<Arc<dyn Backend>>,
    due: Option<Instant>,
}

impl Predecessors {
    pub(super) fn new(backends: Vec<Arc<dyn Backend>>) -> Self {
        Self { backends, due: None }
    }

    /// When the removal is due: once this mode serves, and again after a failure.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Notes that this mode serves.
    pub(super) fn serve(&mut self, now: Instant) {
        if self.due.is_none() && !self.backends.is_empty() {
            self.due = Some(now);
        }
    }

    /// Removes what every predecessor left, if that is due, except what the mode `active` shares with
    /// a predecessor. Failed removals are planned again.
    pub(super) fn remove(&mut self, now: Instant, active: Mode, observer: &dyn Observer) {
        if self.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        self.backends.retain(|backend| match backend.clean_up_beside(active) {
            Ok(()) => false,
            Err(ProxierError::Unsupported { mode, reason, .. }) => {
                tracing::debug!(%mode, reason, "Nothing to clean up");
                false
            }
            Err(error) => {
                observer.predecessor_stays(backend.mode(), &error);
                true
            }
        });
        if !self.backends.is_empty() {
            self.due = Some(after(Instant::now(), RETRY));
        }
    }
}
