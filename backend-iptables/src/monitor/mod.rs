//! Notices when somebody flushes our chains (a firewall that is reloaded, or `iptables -F`), or
//! changes rules in them.
//!
//! Looking for our chains takes a program, and with the legacy flavour, which reads whole tables,
//! half a second in large clusters. So the kernel is asked, three times a second, for something
//! that differs when anything has changed ([`fingerprint`]); only if it does, and we did not change
//! it ourselves, are the programs asked whether our chains and the jumps to them are still there.
//! If they are, somebody may still have changed a rule in one of them, so that everything is
//! compared; but since most changes are of other programs' own rules, not all the time.

mod fingerprint;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use proxy_core::{
    model::{IpFamily, PerFamily},
    proxier,
    runner::Input,
};
use tokio::sync::mpsc::Sender;

pub(crate) use self::fingerprint::Fingerprint;
use crate::{
    ToolError,
    layout::{Table, fixed, names::chain, text::Words},
    tool::{Programs, run},
};

/// How often the kernel is asked.
const PERIOD: Duration = Duration::from_millis(300);
/// After how long a repair is asked for again, and how often, at most, everything is compared
/// because somebody has changed something.
const PATIENCE: Duration = Duration::from_secs(10);
/// Comparing takes at most this part of the time.
const COMPARE_SHARE: u32 = 50;

/// What a family's tables looked like when everything was last known to be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    /// Nothing has been programmed, so that nothing can be missed.
    #[default]
    Nothing,
    /// Somebody else has changed something, perhaps.
    Unsure,
    Intact(Fingerprint),
}

/// What the tables looked like when everything was last known to be there: told by the backend,
/// which changes them, and by the monitor, which looks.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Sight>);

#[derive(Debug, Default)]
struct Sight {
    known: PerFamily<Known>,
    /// When everything was last compared, and how long that took.
    compared: Option<(Instant, Duration)>,
    /// Somebody has changed something since, and our chains and jumps are there all the same.
    altered: bool,
}

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Sight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything is there.
    pub(crate) fn set(&self, family: IpFamily, fingerprint: Option<Fingerprint>) {
        *self.lock().known.of_mut(family) = fingerprint.map_or(Known::Unsure, Known::Intact);
    }

    /// Everything in all families was compared, which began at `start`.
    pub(crate) fn compared(&self, start: Instant) {
        let mut seen = self.lock();
        seen.compared = Some((Instant::now(), start.elapsed()));
        seen.altered = false;
    }

    /// Whether everything should be compared, because somebody has changed something.
    fn is_compare_due(&self) -> bool {
        let seen = self.lock();
        let is_long_ago = |(at, took): (Instant, Duration)| {
            at.elapsed() >= PATIENCE.max(took.saturating_mul(COMPARE_SHARE))
        };
        seen.altered && seen.compared.is_none_or(is_long_ago)
    }

    /// The backend has changed something; everything is there if it was before.
    pub(crate) fn follow(
        &self,
        family: IpFamily,
        before: Option<Fingerprint>,
        after: Option<Fingerprint>,
    ) {
        let mut seen = self.lock();
        let was_intact = before.map(Known::Intact) == Some(*seen.known.of(family));
        *seen.known.of_mut(family) = match after {
            Some(after) if was_intact => Known::Intact(after),
            _ => Known::Unsure,
        };
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        *self.lock() = Sight::default();
    }

    fn get(&self, family: IpFamily) -> Known {
        *self.lock().known.of(family)
    }

    /// Our chains and jumps are there, unless something has happened since it looked like `known`.
    /// What is in the chains may have changed.
    fn confirm(&self, family: IpFamily, known: Known, fingerprint: Option<Fingerprint>) {
        let mut seen = self.lock();
        if *seen.known.of(family) == known
            && let Some(fingerprint) = fingerprint
        {
            *seen.known.of_mut(family) = Known::Intact(fingerprint);
            seen.altered = true;
        }
    }
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub(crate) struct Monitor {
    programs: Vec<Programs>,
    seen: Arc<Seen>,
    /// When a repair was asked for, if it has not happened yet.
    repair_asked: Option<Instant>,
    compare_asked: Option<Instant>,
}

impl Monitor {
    pub(crate) fn new(programs: Vec<Programs>, seen: Arc<Seen>) -> Self {
        Self { programs, seen, repair_asked: None, compare_asked: None }
    }

    /// Whether everything should be compared now. Blocks for as long as the programs take, if any
    /// are needed.
    fn is_sync_due(&mut self) -> bool {
        self.is_repair_due() || self.is_compare_due()
    }

    /// Whether our chains are gone, and nobody has been told lately.
    fn is_repair_due(&mut self) -> bool {
        if !self.flushed() {
            self.repair_asked = None;
            return false;
        }
        let is_due = is_long_ago(self.repair_asked);
        if is_due {
            tracing::warn!("Somebody has flushed our chains; they are made again");
            self.repair_asked = Some(Instant::now());
        }
        is_due
    }

    /// Whether something else has changed that may be in our chains, and nobody has been told
    /// lately.
    fn is_compare_due(&mut self) -> bool {
        let is_due = self.seen.is_compare_due() && is_long_ago(self.compare_asked);
        if is_due {
            tracing::debug!("Somebody has changed rules; ours are compared");
            self.compare_asked = Some(Instant::now());
        }
        is_due
    }

    /// Whether what the backend has programmed is gone, in any family. Blocks for as long as the
    /// programs take, if any are needed.
    fn flushed(&self) -> bool {
        let mut flushed = false;
        for programs in &self.programs {
            let known = self.seen.get(programs.family);
            let now = Fingerprint::read(programs);
            if known == Known::Nothing || now.map(Known::Intact) == Some(known) {
                continue;
            }
            match is_intact(programs) {
                Ok(Some(true)) => self.seen.confirm(programs.family, known, now),
                Ok(Some(false)) => flushed = true,
                // The lock is taken: later.
                Ok(None) => {}
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::debug!(error, "Cannot look for our chains");
                }
            }
        }
        flushed
    }
}

#[async_trait]
impl proxier::Monitor for Monitor {
    async fn run(self: Box<Self>, inputs: Sender<Input>) {
        let mut this = self;
        loop {
            tokio::select! {
                () = inputs.closed() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            // Programs take their time.
            let look = tokio::task::spawn_blocking(move || {
                let is_due = this.is_sync_due();
                (this, is_due)
            });
            let Ok((back, is_due)) = look.await else { return };
            this = back;
            if is_due && inputs.send(Input::Resync).await.is_err() {
                return;
            }
        }
    }
}

fn is_long_ago(asked: Option<Instant>) -> bool {
    asked.is_none_or(|asked| asked.elapsed() >= PATIENCE)
}

/// Whether a family's chains, and the jumps to them, are there; `None` if that cannot be told now.
fn is_intact(programs: &Programs) -> Result<Option<bool>, ToolError> {
    for table in Table::ALL {
        let canary = ["-t", table.name(), "-S", chain::CANARY];
        match run::check(programs, &canary)? {
            Some(true) => {}
            other => return Ok(other),
        }
    }
    for jump in fixed::jumps() {
        let mut arguments = vec!["-t", jump.table.name(), "-C", jump.from];
        let mut words = Words(&jump.rule);
        arguments.extend(&mut words);
        match run::check(programs, &arguments)? {
            Some(true) => {}
            other => return Ok(other),
        }
    }
    Ok(Some(true))
}
