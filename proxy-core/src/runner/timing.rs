//! Timing: the pace of syncs, and the periods of retries and resyncs.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// The time that passes between two syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At least this long, from the end of one sync to the start of the next (`minSyncPeriod`).
    Fixed(Duration),
    /// Twenty times as long as the last sync, so that syncs take at most a twentieth of the time.
    Adaptive {
        /// The longest wait.
        longest: Duration,
    },
}

impl Pace {
    pub(super) fn longest(self) -> Duration {
        match self {
            Self::Fixed(wait) | Self::Adaptive { longest: wait } => wait,
        }
    }

    pub(super) fn wait_after(self, sync: Duration) -> Duration {
        match self {
            Self::Fixed(wait) => wait,
            Self::Adaptive { longest } => longest.min(sync.saturating_mul(20)),
        }
    }
}

/// The periods of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunnerConfig {
    /// The pause between two syncs.
    pub pace: Pace,
    /// The longest delay before a failed sync is repeated (`syncPeriod`).
    pub longest_retry: Duration,
    /// The time without a resync after which everything is compared with the kernel.
    pub full_period: Duration,
    /// The shortest time between two repairs because another program has changed what was
    /// programmed: such a program may do so all the time. Repairs that take longer than this are as
    /// far apart as they take.
    pub resync_at_most_every: Duration,
    /// The shortest time between two resyncs because another program may have changed what was
    /// programmed. Resyncs take at most a fiftieth of the time.
    pub suspect_at_most_every: Duration,
}

impl Default for RunnerConfig {
    /// kube-proxy's periods.
    fn default() -> Self {
        Self {
            pace: Pace::Adaptive { longest: Duration::from_secs(1) },
            longest_retry: Duration::from_secs(30),
            full_period: Duration::from_secs(3600),
            resync_at_most_every: Duration::from_secs(1),
            suspect_at_most_every: Duration::from_secs(10),
        }
    }
}

/// Returns a random time from 20 to 28 hours.
pub(super) fn about_a_day() -> Duration {
    let (least, spread) = (20 * 3600, 8 * 3600);
    Duration::from_secs(least + RandomState::new().hash_one(()) % spread)
}

/// Returns `start + wait`; waits that the clock cannot express, such as [`Duration::MAX`], end in
/// thirty years.
pub(super) fn after(start: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}

/// Waits until `due`, or for ever if `due` is `None`.
pub(super) async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
