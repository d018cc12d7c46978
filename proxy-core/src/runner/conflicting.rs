//! The removal of what other modes left behind, once this mode serves.
//!
//! Until the first sync, the leftovers serve traffic; after that, a packet passes leftover rules
//! before the rules of this mode, or passes the same rules twice.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    observer::{EngineEvent, Observer},
    timing::after,
};
use crate::proxier::{Backend, Mode};

/// The time to wait before a failed removal is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// The time that what other modes left may serve a family that this mode has to leave out.
const GRACE: Duration = Duration::from_secs(60);

/// Backends of other modes that may have left something behind.
#[derive(Default)]
pub(super) struct Conflicting {
    backends: Vec<Arc<dyn Backend>>,
    due: Option<Instant>,
    has_failed: bool,
}

impl Conflicting {
    pub(super) fn new(backends: Vec<Arc<dyn Backend>>) -> Self {
        Self { backends, ..Self::default() }
    }

    /// The time at which the removal is due: once this mode serves, and again after a failure.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Notes that this mode serves: all families, or some. In the family that is left out, what
    /// other modes left still serves, but it is not changed any more, and in the others it precedes
    /// this mode's rules: after a while it is removed all the same.
    pub(super) fn serve(&mut self, now: Instant, all: bool) {
        if self.backends.is_empty() || self.has_failed {
            return;
        }
        let due = if all { now } else { after(now, GRACE) };
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Removes what every conflicting backend left, if that is due, except what the mode `active`
    /// shares with a conflicting backend. Failed removals are planned again.
    pub(super) fn remove(&mut self, now: Instant, active: Mode, observer: &dyn Observer) {
        if self.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        self.backends.retain(|backend| match backend.clean_up(Some(active)) {
            Ok(()) => false,
            Err(error) => {
                let mode = backend.profile().mode;
                observer.on_event(&EngineEvent::LeftoversStay { mode, error: &error });
                true
            }
        });
        self.has_failed = !self.backends.is_empty();
        if self.has_failed {
            self.due = Some(after(Instant::now(), RETRY));
        }
    }
}
