//! The time at which a sync that failed is repeated.

use std::time::Duration;

use tokio::time::Instant;

use super::timing::after;
use crate::model::Backoff;

/// The delay after the first of several failures.
const FIRST: Duration = Duration::from_millis(200);
/// The delays of retries after something to program has changed, which may be the remedy.
const HASTENED: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::MAX };

/// Failures in a row, and the next retry.
#[derive(Debug, Default)]
pub(super) struct Retries {
    failures: u32,
    due: Option<Instant>,
    is_hastened: bool,
    /// Hastened retries in a row that failed. They end with a retry after the full delay, so that
    /// constant changes do not keep up a fast pace.
    hastened: u32,
}

impl Retries {
    /// The time at which a failed sync is due again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Notes that a sync failed, and plans the next one.
    pub(super) fn failed(&mut self, now: Instant, longest: Duration) {
        self.due = Some(after(now, Backoff { first: FIRST, longest }.delay(self.failures)));
        self.failures = self.failures.saturating_add(1);
        self.hastened = if self.is_hastened { self.hastened.saturating_add(1) } else { 0 };
        self.is_hastened = false;
    }

    /// Brings a retry forward: something has changed that may be the remedy.
    pub(super) fn hasten(&mut self, now: Instant) {
        let hastened = after(now, HASTENED.delay(self.hastened));
        if let Some(due) = self.due.as_mut().filter(|due| hastened < **due) {
            *due = hastened;
            self.is_hastened = true;
        }
    }

    /// Sets another longest delay.
    pub(super) fn limit(&mut self, now: Instant, longest: Duration) {
        if let Some(due) = &mut self.due {
            *due = (*due).min(after(now, longest));
        }
    }
}
