//! The reports of successful syncs.

use std::time::Duration;

use super::RefusedAttempt;
use crate::model::{IpFamily, ServicePortId};

/// The differences between the kernel and what had been programmed, which a sync found, or the
/// kernel reported, and which the sync repaired; or which a comparison alone found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// The number of objects (chains, sets, elements ...) that were missing, altered or too many.
    pub objects: usize,
    /// Descriptions of the first few of them.
    pub examples: Vec<String>,
}

impl Drift {
    /// The number of objects that are described.
    pub const EXAMPLES: usize = 5;

    /// Counts an object, and keeps the descriptions of the first few objects.
    pub fn found(&mut self, describe: impl FnOnce() -> String) {
        self.objects += 1;
        if self.examples.len() < Self::EXAMPLES {
            self.examples.push(describe());
        }
    }

    /// Whether the kernel held what it should.
    pub fn is_none(&self) -> bool {
        self.objects == 0
    }
}

/// The report of a successful [`Proxier::sync`](super::Proxier::sync).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SyncReport {
    /// The number of objects (chains, rules, sets, elements ...) that were added to the kernel.
    pub added: usize,
    /// The number of objects that were removed from the kernel.
    pub removed: usize,
    /// Bytes sent to the kernel or to a tool; 0 if nothing differed.
    pub bytes: usize,
    /// Messages, or lines, in the transactions.
    pub messages: usize,
    /// Time spent waiting for the kernel or the tool to commit.
    pub commit: Duration,
    /// Time spent waiting until another program released a lock; part of `commit`.
    pub waited: Duration,
    /// Service ports that this backend cannot program as configured. Everything else was
    /// programmed.
    pub degraded: Vec<DegradedPort>,
    /// Whether leftovers of earlier syncs could not be removed, which a later sync tries again.
    pub cleanup_failed: bool,
    /// Whether the rules could not be written that keep other hosts from loopback addresses of IPv4
    /// ([`Profile::guards_loopback`](super::Profile::guards_loopback)).
    pub loopback_unguarded: bool,
    /// Changes made by another program. Only a resync looks, or repairs what the monitor has
    /// reported; and only if the backend knows what the kernel should have held: not after a
    /// failure, and not when the program has just started.
    pub drift: Drift,
    /// The rules of each table, in backends whose rules grow with the number of Services.
    pub rules: Vec<RuleCount>,
    /// Attempts that were refused before the sync succeeded.
    pub refused: Vec<RefusedAttempt>,
    /// Problems of the node that the backend serves in spite of, each reported when it is new.
    pub warnings: Vec<String>,
    /// The time after which the backend has something to do although nothing may have changed by
    /// then, such as to remove endpoints whose connections have ended. The next sync comes by then,
    /// with whatever [`Transition`](crate::transition::Transition) there is, possibly an empty one.
    /// Each report replaces the one before.
    pub requeue_after: Option<Duration>,
}

impl SyncReport {
    /// Adds what another part of the same sync, or a backend beneath, has done. The time of the
    /// next sync stays.
    pub fn add(&mut self, done: Self) {
        self.added += done.added;
        self.removed += done.removed;
        self.bytes += done.bytes;
        self.messages += done.messages;
        self.commit += done.commit;
        self.waited += done.waited;
        self.degraded.extend(done.degraded);
        self.cleanup_failed |= done.cleanup_failed;
        self.loopback_unguarded |= done.loopback_unguarded;
        self.drift.objects += done.drift.objects;
        self.drift.examples.extend(done.drift.examples);
        self.drift.examples.truncate(Drift::EXAMPLES);
        self.rules.extend(done.rules);
        self.refused.extend(done.refused);
        self.warnings.extend(done.warnings);
    }
}

/// A Service port that a backend serves otherwise than configured, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DegradedPort {
    /// The Service port's id.
    pub port: ServicePortId,
    /// The difference from the configuration, and what the backend does instead.
    pub reason: String,
}

/// The rules of a table in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The family.
    pub family: IpFamily,
    /// The table's name, such as `filter` or `nat`.
    pub table: &'static str,
    /// The rules in the backend's own chains. Jumps from other chains do not count.
    pub owned: u64,
    /// The rules that the sync wrote.
    pub written: u64,
}
