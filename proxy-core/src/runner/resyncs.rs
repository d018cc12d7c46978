//! Resyncs and repairs because of an [`ExternalChange`].

use std::{mem, time::Duration};

use tokio::time::Instant;

use super::timing::{RunnerConfig, after};
use crate::proxier::ExternalChange;

/// Resyncs on suspicion take at most this part of the time.
const SHARE: u32 = 50;

/// Resyncs: the last one, and the next that a change has asked for.
#[derive(Debug, Default)]
pub(super) struct Resyncs {
    /// The time at which the last resync ended, and how long it took.
    last: Option<(Instant, Duration)>,
    due: Option<Instant>,
    /// Whether a change is to be repaired, and not only a suspicion to be looked into.
    is_changed: bool,
}

/// The reason of a resync that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Changes made by another program: a repair.
    Changed,
    /// Possible changes by another program: everything is compared.
    Suspected,
}

impl Resyncs {
    /// Plans a resync, which after a quiet time is due at once.
    pub(super) fn plan(&mut self, change: &ExternalChange, config: &RunnerConfig, now: Instant) {
        let due = match (self.last, change) {
            (None, _) => now,
            (Some((ended, took)), ExternalChange::Changed { .. }) => {
                after(ended, config.resync_at_most_every.max(took))
            }
            (Some((ended, took)), ExternalChange::Suspected) => {
                after(ended, config.suspect_at_most_every.max(took.saturating_mul(SHARE)))
            }
        };
        let due = due.max(now);
        self.due = Some(self.due.map_or(due, |planned| planned.min(due)));
        self.is_changed |= matches!(change, ExternalChange::Changed { .. });
    }

    /// The time at which the next resync is due, if one is planned.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns why a resync is due, and removes the plan; `None` if none is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Reason> {
        self.due.take_if(|due| *due <= now)?;
        Some(if mem::take(&mut self.is_changed) { Reason::Changed } else { Reason::Suspected })
    }

    /// Notes that a resync or repair has ended, for whatever reason.
    pub(super) fn finished(&mut self, now: Instant, took: Duration) {
        self.last = Some((now, took));
        self.due = None;
        self.is_changed = false;
    }
}
