//! Watches the tables for changes that other programs make: a firewall that is reloaded,
//! `iptables -F`, or an altered rule.
//!
//! The [`Fingerprint`] is read three times a second; of a family that cannot be looked at, less and
//! less often, down to every ten seconds. After a look that ran programs, which hold the lock and
//! read whole tables, the next one waits, so that looks take a tenth of the time. If the tables
//! differ and the [`TableRecord`] has no own change that explains it, the monitor checks whether
//! the chains and jumps are still there. Their absence is reported at once. If they are there, a
//! rule in one of them may still have changed; but most changes are of other programs' own rules,
//! so that this is reported every ten seconds at most.
//!
//! nf_tables could notify the monitor of commits. But as soon as anybody listens, whatever the
//! filter of the socket, the kernel allocates a page for each rule and chain of a commit, and keeps
//! all until the commit ends: 400 MiB for a restore of 50,000.

mod check;
mod fingerprint;
mod record;

use std::{sync::Arc, time::Duration};

use switchyard_model::{ErrorChain, IpFamily, PerFamily};
use tokio::{
    task::{JoinError, JoinHandle, spawn_blocking},
    time::{Instant, sleep_until},
};

pub use self::{
    fingerprint::Fingerprint,
    record::{OwnChange, TableRecord},
};

use self::record::Known;
use crate::xtables::{Jump, programs::Tools};

/// The interval at which the tables are looked at.
const PERIOD: Duration = Duration::from_millis(300);
/// The pause after a look, in relation to the time that the look took.
const REST: u32 = 9;
/// The interval at which the same is reported, at most, if nothing comes of it; and the longest
/// pause after a look.
const REPEAT: Duration = Duration::from_secs(10);

/// The chains and jumps that a monitor looks for.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// A chain without rules that each of the tables has. It disappears with most ways to flush
    /// tables.
    pub canary: &'static str,
    /// The jumps that lead to owned chains.
    pub jumps: Vec<Jump>,
}

/// A change that another program has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// Chains or jumps are missing.
    Missing,
    /// The chains and jumps are there, but rules may have changed.
    Altered,
}

/// The monitor cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("the tables cannot be watched any longer")]
pub struct MonitorError(#[source] JoinError);

/// Watches the tables for changes that other programs make.
#[derive(Debug)]
pub struct TableMonitor {
    tools: Arc<Tools>,
    watched: Arc<Watched>,
    record: Arc<TableRecord>,
    /// The time of the next look.
    next: Option<Instant>,
    /// The families that could not be looked at.
    failed: PerFamily<Option<Failed>>,
    /// The look that goes on now.
    looking: Option<JoinHandle<Snapshot>>,
    /// Whether chains or jumps were missing then.
    is_missing: bool,
    /// The time when chains were last reported as missing, if they still are.
    reported_missing: Option<Instant>,
    reported_altered: Option<Instant>,
}

impl TableMonitor {
    /// Makes a monitor of the tables in the network namespace of this thread. Nothing is missed
    /// from this call on.
    pub fn new(tools: Tools, watched: Watched, record: Arc<TableRecord>) -> Self {
        Self {
            tools: Arc::new(tools),
            watched: Arc::new(watched),
            record,
            next: None,
            failed: PerFamily::default(),
            looking: None,
            is_missing: false,
            reported_missing: None,
            reported_altered: None,
        }
    }

    /// Waits until another program may have changed the owned chains or the jumps to them. Chains
    /// that stay missing, and changes that no resync follows ([`TableRecord::set_resynced`]),
    /// are reported again every ten seconds.
    ///
    /// The method is cancel-safe: the next call goes on where a dropped call was. It needs a tokio
    /// runtime with I/O and time, and threads in the namespace of the tables.
    ///
    /// # Errors
    ///
    /// If the runtime shuts down.
    pub async fn changed(&mut self) -> Result<Alteration, MonitorError> {
        loop {
            if self.looking.is_none()
                && let Some(next) = self.next
            {
                sleep_until(next).await;
            }
            self.look().await?;
            let (missing_due, altered_due) = (self.missing_due(), self.altered_due());
            let now = Instant::now();
            let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
            if is_due(missing_due) {
                self.reported_missing = Some(now);
                return Ok(Alteration::Missing);
            }
            if is_due(altered_due) {
                self.reported_altered = Some(now);
                return Ok(Alteration::Altered);
            }
        }
    }
}

impl TableMonitor {
    /// Looks at the tables, if they differ from the record.
    async fn look(&mut self) -> Result<(), MonitorError> {
        let looking = self.looking.get_or_insert_with(|| {
            let (tools, watched) = (Arc::clone(&self.tools), Arc::clone(&self.watched));
            let record = Arc::clone(&self.record);
            let now = Instant::now();
            let is_due = |family| self.failed.get(family).is_none_or(|failed| failed.due <= now);
            let due = PerFamily::from_fn(is_due);
            // Programs take their time.
            spawn_blocking(move || look(&tools, &watched, &record, due))
        });
        let seen = looking.await;
        self.looking = None;
        let seen = seen.map_err(MonitorError)?;
        let now = Instant::now();
        self.next = Some(now + pause(seen.took));
        for family in IpFamily::ALL {
            let failed = self.failed.get_mut(family);
            *failed = match seen.looks.get(family) {
                Look::Waits => *failed,
                Look::Failed => Some(Failed::again(*failed, now)),
                Look::Done => None,
            };
        }
        self.is_missing = seen.is_missing;
        if !seen.is_missing {
            self.reported_missing = None;
        }
        Ok(())
    }

    /// The time when missing chains are to be reported.
    fn missing_due(&self) -> Option<Instant> {
        let again =
            || self.reported_missing.map_or_else(Instant::now, |reported| reported + REPEAT);
        self.is_missing.then(again)
    }

    /// The time when other changes are to be reported.
    fn altered_due(&self) -> Option<Instant> {
        let due = Instant::from_std(self.record.resync_due()?);
        Some(self.reported_altered.map_or(due, |reported| due.max(reported + REPEAT)))
    }
}

/// The findings in all families.
#[derive(Debug, Default)]
struct Snapshot {
    is_missing: bool,
    looks: PerFamily<Look>,
    took: Duration,
}

/// The pause after a look that took so long.
fn pause(took: Duration) -> Duration {
    (REST * took).clamp(PERIOD, REPEAT)
}

/// The look at a family.
#[derive(Clone, Copy, Debug, Default)]
enum Look {
    #[default]
    Done,
    /// The look failed.
    Failed,
    /// The family is not looked at yet, after a look that failed.
    Waits,
}

/// The pause after looks at a family that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed {
    pause: Duration,
    /// The time of the next look.
    due: Instant,
}

impl Failed {
    /// Returns a pause that is longer than the last, as each look may run programs.
    fn again(last: Option<Self>, now: Instant) -> Self {
        let pause = (2 * last.map_or(PERIOD, |last| last.pause)).min(REPEAT);
        Self { pause, due: now + pause }
    }
}

/// Looks at the families that are `due` and whose tables differ from the record. Blocks for as long
/// as the programs take, if any are needed.
fn look(tools: &Tools, watched: &Watched, record: &TableRecord, due: PerFamily<bool>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let start = Instant::now();
    for programs in tools.iter() {
        let family = programs.family();
        if !due.get(family) {
            *snapshot.looks.get_mut(family) = Look::Waits;
            continue;
        }
        let known = record.get(family);
        let now = Fingerprint::read(programs);
        if known == Known::Nothing || now.map(Known::Intact) == Some(known) {
            continue;
        }
        match check::check(programs, watched) {
            Ok(true) => record.confirm(family, known, now),
            Ok(false) => snapshot.is_missing = true,
            Err(error) => {
                *snapshot.looks.get_mut(family) = Look::Failed;
                let err = ErrorChain(&error);
                tracing::debug!(%err, %family, "Failed to check the chains");
            }
        }
    }
    snapshot.took = start.elapsed();
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that changes its own rules all the time has the tables be looked at each time.
    #[test]
    fn looks_that_take_long_become_rare() {
        let pauses = [1, 100, 500, 5000].map(|took| pause(Duration::from_millis(took)).as_millis());
        assert_eq!(pauses, [300, 900, 4500, 10_000]);
    }

    #[test]
    fn looks_that_fail_become_rare() {
        let now = Instant::now();
        let pauses = (0..7).scan(None, |failed, _| {
            let next = *failed.insert(Failed::again(*failed, now));
            assert_eq!(next.due, now + next.pause);
            Some(next.pause.as_millis())
        });
        assert_eq!(pauses.collect::<Vec<_>>(), [600, 1200, 2400, 4800, 9600, 10_000, 10_000]);
    }
}
