//! Notices when somebody flushes our chains: a firewall that is reloaded, or `iptables -F`.
//!
//! Looking for our chains takes a program, and with the legacy flavour, which reads whole tables,
//! half a second in large clusters. So the kernel is asked, three times a second, for something
//! that differs when anything has changed ([`fingerprint`]); only if it does, and we did not change
//! it ourselves, are the programs asked whether our chains and the jumps to them are still there.

mod fingerprint;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use proxy_core::{
    model::{IpFamily, PerFamily},
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
/// After how long a repair is asked for again.
const PATIENCE: Duration = Duration::from_secs(10);

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
pub(crate) struct Seen(Mutex<PerFamily<Known>>);

impl Seen {
    fn lock(&self) -> MutexGuard<'_, PerFamily<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything is there.
    pub(crate) fn set(&self, family: IpFamily, fingerprint: Option<Fingerprint>) {
        *self.lock().of_mut(family) = fingerprint.map_or(Known::Unsure, Known::Intact);
    }

    /// The backend has changed something; everything is there if it was before.
    pub(crate) fn follow(
        &self,
        family: IpFamily,
        before: Option<Fingerprint>,
        after: Option<Fingerprint>,
    ) {
        let mut seen = self.lock();
        let was_intact = before.map(Known::Intact) == Some(*seen.of(family));
        *seen.of_mut(family) = match after {
            Some(after) if was_intact => Known::Intact(after),
            _ => Known::Unsure,
        };
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        *self.lock() = PerFamily::default();
    }

    fn get(&self, family: IpFamily) -> Known {
        *self.lock().of(family)
    }

    /// Everything is there, unless something has happened since it looked like `known`.
    fn confirm(&self, family: IpFamily, known: Known, fingerprint: Option<Fingerprint>) {
        let mut seen = self.lock();
        if *seen.of(family) == known
            && let Some(fingerprint) = fingerprint
        {
            *seen.of_mut(family) = Known::Intact(fingerprint);
        }
    }
}

/// See the [module's documentation](self).
#[derive(Debug)]
pub struct Monitor {
    programs: Vec<Programs>,
    seen: Arc<Seen>,
    asked: Option<Instant>,
}

impl Monitor {
    pub(crate) fn new(programs: Vec<Programs>, seen: Arc<Seen>) -> Self {
        Self { programs, seen, asked: None }
    }

    /// Asks for a full sync whenever our chains are gone; ends when nobody receives any more.
    pub async fn run(self, inputs: Sender<Input>) {
        let mut this = self;
        loop {
            tokio::select! {
                () = inputs.closed() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
            // Programs take their time.
            let look = tokio::task::spawn_blocking(move || {
                let flushed = this.is_repair_due();
                (this, flushed)
            });
            let Ok((back, is_due)) = look.await else { return };
            this = back;
            if is_due && inputs.send(Input::Resync).await.is_err() {
                return;
            }
        }
    }

    /// Whether our chains are gone, and nobody has been told lately.
    fn is_repair_due(&mut self) -> bool {
        if !self.flushed() {
            self.asked = None;
            return false;
        }
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= PATIENCE);
        if is_due {
            tracing::warn!("Somebody has flushed our chains; they are made again");
            self.asked = Some(Instant::now());
        }
        is_due
    }

    /// Whether what the backend has programmed is gone, in any family. Blocks for as long as the
    /// programs take, if any are needed.
    pub fn flushed(&self) -> bool {
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
