//! Limits for warnings that would fill the log.

use std::time::{Duration, Instant};

/// Allows something once a minute.
#[derive(Default)]
pub(crate) struct RateLimit {
    last: Option<Instant>,
}

impl RateLimit {
    /// Whether the last time is a minute ago. If so, this is the last time.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.last.is_none_or(|last| now - last >= Duration::from_secs(60));
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}
