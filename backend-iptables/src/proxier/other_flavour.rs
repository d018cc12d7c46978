//! The removal of the chains of the flavour that is not in use, which nobody would change any more.

use std::time::{Duration, Instant};

use switchyard_core::{
    error::ErrorChain,
    model::{Backoff, PerFamily},
    proxier::SyncReport,
};
use switchyard_kernel::xtables::LeftoverError;

/// The time after which a failed removal is tried again, which may wait for a lock for seconds.
const RETRY: Backoff =
    Backoff { first: Duration::from_secs(60), longest: Duration::from_secs(3600) };
/// The time that the chains may serve a family that is left out here.
const GRACE: Duration = Duration::from_secs(60);

/// The chains that are to be removed.
#[derive(Debug)]
pub(super) struct OtherFlavour {
    /// The families that may have some.
    left: PerFamily<bool>,
    /// The time at which those go of a family that is left out; `None` before the first sync.
    grace: Option<Instant>,
    /// The time of the next attempt, after a failure.
    due: Option<Instant>,
    /// The failures in a row.
    failures: u32,
    /// The reason of the last failure, as it was reported.
    failure: Option<String>,
}

impl Default for OtherFlavour {
    fn default() -> Self {
        let left = PerFamily { v4: true, v6: true };
        Self { left, grace: None, due: None, failures: 0, failure: None }
    }
}

impl OtherFlavour {
    /// Has `remove` called for the families whose chains are due after a sync of these families:
    /// once, or again after a failure. Returns whether there were any.
    pub(super) fn remove(
        &mut self,
        now: Instant,
        synced: PerFamily<bool>,
        report: &mut SyncReport,
        remove: impl FnOnce(PerFamily<bool>) -> Result<bool, LeftoverError>,
    ) -> bool {
        let grace = *self.grace.get_or_insert(now + GRACE);
        let is_due = |family| *self.left.get(family) && (*synced.get(family) || grace <= now);
        let families = PerFamily::from_fn(is_due);
        let mut found = false;
        if families != PerFamily::default() && self.due.is_none_or(|due| due <= now) {
            match remove(families) {
                Ok(removed) => {
                    found = removed;
                    let is_left = |family| *self.left.get(family) && !families.get(family);
                    self.left = PerFamily::from_fn(is_left);
                    (self.due, self.failures, self.failure) = (None, 0, None);
                }
                Err(error) => self.fail(now, &error, report),
            }
        }
        if self.left != PerFamily::default() {
            let due = self.due.unwrap_or(grace);
            report.requeue_after = Some(due.saturating_duration_since(now));
        }
        found
    }

    fn fail(&mut self, now: Instant, error: &LeftoverError, report: &mut SyncReport) {
        self.due = Some(now + RETRY.delay(self.failures));
        self.failures = self.failures.saturating_add(1);
        let error = ErrorChain(error);
        let failure = format!("cannot remove the chains of the other flavour of iptables: {error}");
        if self.failure.as_ref() != Some(&failure) {
            report.warnings.push(failure.clone());
            self.failure = Some(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: PerFamily<bool> = PerFamily { v4: true, v6: false };
    const V6: PerFamily<bool> = PerFamily { v4: false, v6: true };
    const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

    /// Syncs after so many seconds. Returns the families whose chains were to be removed, the
    /// seconds until the next sync, and the number of warnings.
    fn sync(
        chains: &mut OtherFlavour,
        start: Instant,
        seconds: u64,
        synced: PerFamily<bool>,
        result: Result<bool, LeftoverError>,
    ) -> (Option<PerFamily<bool>>, Option<u64>, usize) {
        let (mut report, mut asked) = (SyncReport::default(), None);
        let was_found = matches!(result, Ok(true));
        let found =
            chains.remove(start + Duration::from_secs(seconds), synced, &mut report, |families| {
                asked = Some(families);
                result
            });
        assert_eq!(found, was_found && asked.is_some());
        let wait = report.requeue_after.map(|wait| wait.as_secs());
        (asked, wait, report.warnings.len())
    }

    #[test]
    fn a_family_that_is_left_out_keeps_its_chains_for_a_while() {
        let (start, mut chains) = (Instant::now(), OtherFlavour::default());
        let mut at = |seconds, synced| sync(&mut chains, start, seconds, synced, Ok(true));
        assert_eq!(at(0, V4), (Some(V4), Some(60), 0));
        assert_eq!(at(59, V4), (None, Some(1), 0));
        assert_eq!(at(60, V4), (Some(V6), None, 0));
        assert_eq!(at(61, BOTH), (None, None, 0));
        // One that is synced then has rules of its own.
        let mut chains = OtherFlavour::default();
        let mut at = |seconds, synced| sync(&mut chains, start, seconds, synced, Ok(true));
        assert_eq!(at(0, V4), (Some(V4), Some(60), 0));
        assert_eq!(at(1, BOTH), (Some(V6), None, 0));
    }

    #[test]
    fn a_failed_removal_is_reported_once_and_repeated_more_and_more_rarely() {
        let (start, mut chains) = (Instant::now(), OtherFlavour::default());
        let mut now = 0;
        for (warnings, wait) in [(1, 60), (0, 120), (0, 240), (0, 480), (0, 960), (0, 1920)] {
            let failed = sync(&mut chains, start, now, BOTH, Err(LeftoverError::Locked));
            assert_eq!(failed, (Some(BOTH), Some(wait), warnings));
            assert_eq!(
                sync(&mut chains, start, now + 1, BOTH, Ok(true)),
                (None, Some(wait - 1), 0)
            );
            now += wait;
        }
        for _ in 0..2 {
            let failed = sync(&mut chains, start, now, BOTH, Err(LeftoverError::Locked));
            assert_eq!(failed, (Some(BOTH), Some(3600), 0));
            now += 3600;
        }
        let failed = sync(&mut chains, start, now, BOTH, Err(LeftoverError::Busy));
        assert_eq!(failed, (Some(BOTH), Some(3600), 1));
        assert_eq!(sync(&mut chains, start, now + 3600, BOTH, Ok(true)), (Some(BOTH), None, 0));
    }
}
