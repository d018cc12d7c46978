//! Removal of rules that ipvs mode had before, or that it does not use.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use switchyard_core::{error::ErrorChain, proxier::SyncReport};

use super::{IpvsProxier, warn_of_new};

/// The time after which removal is tried again. It may take seconds: the system's lock is waited
/// for, and sets that another program's rules use. Doubles with each failure.
const RETRY: Duration = Duration::from_secs(60);
/// The longest that it may become.
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// The rules that are to be removed.
#[derive(Debug)]
pub(super) struct Removal {
    /// The time of the next attempt; `None` if nothing is left.
    pub(super) due: Option<Instant>,
    retry: Duration,
    /// The reason that they could not be removed, as it was logged.
    failures: BTreeSet<String>,
}

impl Default for Removal {
    fn default() -> Self {
        Self { due: Some(Instant::now()), retry: RETRY, failures: BTreeSet::new() }
    }
}

impl IpvsProxier {
    /// Removes the rules of other kinds, once all traffic is masqueraded by those in use. Returns
    /// the time until another attempt, which may wait for locks and sets for seconds.
    pub(super) fn remove_other_rules(&mut self, report: &mut SyncReport) -> Option<Duration> {
        let due = self.removal.due?;
        let now = Instant::now();
        if due <= now {
            let removed = self.kernel.remove_other_rules(self.rules.mode());
            if matches!(removed, Ok(true)) {
                report.warnings.push(
                    "the rules of ipvs mode are those of nftables now, in place of those of \
                     iptables: what other rules of the host drop, they cannot accept, neither forwarded \
                     traffic nor requests at a healthCheckNodePort"
                        .to_owned(),
                );
            }
            let failure = removed.err();
            self.removal.due = failure.is_some().then_some(now + self.removal.retry);
            self.removal.retry = (2 * self.removal.retry).min(LONGEST_RETRY);
            let failure = failure.map(|error| ErrorChain(&error).to_string());
            warn_of_new(
                &mut self.removal.failures,
                failure.into_iter().collect(),
                "Failed to remove rules that ipvs mode does not use; retrying",
            );
        }
        report.cleanup_failed |= self.removal.due.is_some();
        self.removal.due.map(|due| due.saturating_duration_since(now))
    }
}
