//! The sync runner: turns a stream of inputs into syncs of a backend.
//!
//! A change that comes while nothing is going on is synced at once, together with whatever else
//! has arrived by then. After a sync the next one waits as [`Pace`] says, and takes along all that
//! came in the meantime. A sync that failed is repeated with a growing delay, is full, and loses
//! nothing: the tracker's delta covers everything since the last success. Panics of a backend end
//! the runner, since nobody knows what it has done by then.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, sleep_until},
};

use crate::{
    config::NodeConfig,
    model::PerFamily,
    objects::{Event, Kind},
    proxier::{Proxier, ProxierError, SyncReport},
    state::{Delta, State},
    track::{NoLocalEndpoints, Problem, Tracker},
};

/// Inputs that are applied before a sync is considered: a burst becomes one sync.
const BATCH: usize = 4096;
/// The delay after the first of several failures; it doubles with each.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// How long a failed sync waits at most once something new has come, which may be its remedy.
const HASTENED_RETRY: Duration = Duration::from_secs(1);

/// What a runner is told.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "moved a few times, never kept")]
pub enum Input {
    /// Something about an object.
    Event(Event),
    /// All addresses of the node's interfaces.
    InterfaceAddresses(Vec<IpAddr>),
    /// Another configuration of the same node, as [`Tracker::set_config`] takes it.
    Node(NodeConfig),
    /// When to sync from now on.
    Timing(RunnerConfig),
    /// The kernel may not hold what it should: compare everything.
    Resync,
}

/// How much time passes between two syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At least this, from the end of one to the start of the next (`minSyncPeriod`).
    Fixed(Duration),
    /// Twenty times what the last sync took, so that syncing takes at most a twentieth of the
    /// time, but never more than this.
    Adaptive {
        /// The longest wait.
        longest: Duration,
    },
}

impl Pace {
    fn longest(self) -> Duration {
        match self {
            Self::Fixed(wait) | Self::Adaptive { longest: wait } => wait,
        }
    }

    fn wait_after(self, sync: Duration) -> Duration {
        match self {
            Self::Fixed(wait) => wait,
            Self::Adaptive { longest } => longest.min(sync.saturating_mul(20)),
        }
    }
}

/// When to sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerConfig {
    /// Between two syncs.
    pub pace: Pace,
    /// The longest delay before a failed sync is repeated (`syncPeriod`).
    pub longest_retry: Duration,
    /// After how long without one a full sync is made.
    pub full_period: Duration,
}

impl Default for RunnerConfig {
    /// kube-proxy's periods.
    fn default() -> Self {
        Self {
            pace: Pace::Adaptive { longest: Duration::from_secs(1) },
            longest_retry: Duration::from_secs(30),
            full_period: Duration::from_secs(3600),
        }
    }
}

/// A sync that succeeded.
#[derive(Debug)]
pub struct SyncOutcome<'a> {
    /// What the kernel holds now.
    pub state: &'a State,
    /// What was asked of the backend.
    pub delta: &'a Delta,
    /// What the backend did.
    pub report: &'a SyncReport,
    /// How long it took, rendering and commit together.
    pub duration: Duration,
    /// From the arrival of the oldest change in it to its commit; `None` if nothing asked for it
    /// but a period.
    pub latency: Option<Duration>,
    /// The trigger times (RFC 3339) of the EndpointSlice changes in it.
    pub trigger_times: &'a [String],
    /// Service ports that lack local endpoints.
    pub no_local_endpoints: PerFamily<NoLocalEndpoints>,
}

/// Is told what a runner does: for metrics, health and logs. Called on the runner's task; must not
/// block.
pub trait Observer: Send + Sync {
    /// An object, or part of one, cannot be used. Each problem is reported once.
    fn rejected(&self, _problem: &Problem) {}
    /// Something was said about an object. Called before it is taken in.
    fn received(&self, _event: &Event) {}
    /// An object of the kind was added, changed or removed.
    fn changed(&self, _kind: Kind) {}
    /// There is something to sync now.
    fn sync_requested(&self) {}
    /// A sync begins, to make the kernel hold this.
    fn sync_started(&self, _state: &State, _delta: &Delta) {}
    /// Somebody else may have changed what was programmed: [`Input::Resync`] came.
    fn disturbed(&self) {}
    /// A sync succeeded.
    fn synced(&self, _outcome: &SyncOutcome<'_>) {}
    /// A sync failed after this time, and will be repeated.
    fn sync_failed(&self, _error: &ProxierError, _delta: &Delta, _duration: Duration) {}
    /// Whether the Node is there to stay.
    fn node_eligible(&self, _is_eligible: bool) {}
}

/// Observes nothing.
impl Observer for () {}

/// See the [module's documentation](self).
pub struct Runner {
    tracker: Tracker,
    proxier: Box<dyn Proxier>,
    config: RunnerConfig,
    observer: Arc<dyn Observer>,
    /// When the oldest change that is not synced arrived.
    oldest_change: Option<Instant>,
    /// No sync before this.
    not_before: Instant,
    /// When a failed sync is due again.
    retry_at: Option<Instant>,
    failures: u32,
    last_full: Option<Instant>,
    node_eligible: Option<bool>,
}

impl Runner {
    /// A runner that syncs `proxier` with what `tracker` resolves.
    pub fn new(
        tracker: Tracker,
        proxier: Box<dyn Proxier>,
        config: RunnerConfig,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self {
            tracker,
            proxier,
            config,
            observer,
            oldest_change: None,
            not_before: Instant::now(),
            retry_at: None,
            failures: 0,
            last_full: None,
            node_eligible: None,
        }
    }

    /// Runs until `inputs` ends, and gives the backend back. The kernel is left as it is.
    pub async fn run(mut self, mut inputs: Receiver<Input>) -> Box<dyn Proxier> {
        let mut batch = Vec::new();
        // The tracker may know a cluster already.
        self.look_for_changes(Instant::now());
        if self.is_due() {
            self.sync().await;
        }
        loop {
            tokio::select! {
                biased;
                received = inputs.recv_many(&mut batch, BATCH) => {
                    if received == 0 {
                        break;
                    }
                    self.take_in(&mut batch);
                }
                () = wait_until(self.due()) => {}
            }
            if self.is_due() {
                self.sync().await;
            }
        }
        self.proxier
    }

    fn take_in(&mut self, batch: &mut Vec<Input>) {
        let arrived = Instant::now();
        if let Some(retry) = &mut self.retry_at {
            *retry = (*retry).min(after(arrived, HASTENED_RETRY));
        }
        for input in batch.drain(..) {
            let problems = match input {
                Input::Event(event) => {
                    self.observer.received(&event);
                    self.tell_changed(&event);
                    self.tracker.apply(event)
                }
                Input::InterfaceAddresses(addresses) => {
                    self.tracker.set_interface_addresses(addresses);
                    Vec::new()
                }
                Input::Node(config) => {
                    self.tracker.set_config(config);
                    Vec::new()
                }
                Input::Timing(config) => {
                    self.set_timing(config, arrived);
                    Vec::new()
                }
                Input::Resync => {
                    self.tracker.request_full();
                    self.observer.disturbed();
                    Vec::new()
                }
            };
            self.tell_problems(&problems);
        }
        let eligible = self.tracker.is_node_eligible();
        if self.node_eligible != Some(eligible) {
            self.node_eligible = Some(eligible);
            self.observer.node_eligible(eligible);
        }
        self.look_for_changes(arrived);
    }

    /// What already waits must not wait longer than it would have to now.
    fn set_timing(&mut self, config: RunnerConfig, now: Instant) {
        self.config = config;
        self.not_before = self.not_before.min(after(now, config.pace.longest()));
        if let Some(retry) = &mut self.retry_at {
            *retry = (*retry).min(after(now, config.longest_retry));
        }
    }

    /// Resolves what came in at `arrived`.
    fn look_for_changes(&mut self, arrived: Instant) {
        if !self.tracker.is_synced() {
            return;
        }
        let problems = self.tracker.resolve();
        self.tell_problems(&problems);
        if !self.tracker.delta().is_empty() {
            self.oldest_change.get_or_insert(arrived);
            self.observer.sync_requested();
        }
    }

    /// When the next sync is due; `None` before there is anything to program.
    fn due(&self) -> Option<Instant> {
        if !self.tracker.is_synced() {
            return None;
        }
        // The period may be over, but that must not make the runner fail faster.
        if let Some(retry) = self.retry_at {
            return Some(retry.max(self.not_before));
        }
        let periodic = self.last_full.map(|last| after(last, self.config.full_period));
        let due = match (self.oldest_change, periodic) {
            (Some(_), _) => self.not_before,
            (None, periodic) => periodic?.max(self.not_before),
        };
        Some(due)
    }

    fn is_due(&self) -> bool {
        self.due().is_some_and(|due| due <= Instant::now())
    }

    async fn sync(&mut self) {
        let start = Instant::now();
        if self.last_full.is_none_or(|last| start >= after(last, self.config.full_period)) {
            self.tracker.request_full();
        }
        let delta = self.tracker.delta().clone();
        self.observer.sync_started(self.tracker.state(), &delta);
        let result = self.proxier.sync(self.tracker.state(), &delta).await;
        let duration = start.elapsed();
        self.not_before = after(Instant::now(), self.config.pace.wait_after(duration));
        match result {
            Ok(report) => {
                let trigger_times = self.tracker.mark_synced();
                self.failures = 0;
                self.retry_at = None;
                if delta.full {
                    self.last_full = Some(start);
                }
                self.observer.synced(&SyncOutcome {
                    state: self.tracker.state(),
                    delta: &delta,
                    report: &report,
                    duration,
                    latency: self.oldest_change.take().map(|arrived| arrived.elapsed()),
                    trigger_times: &trigger_times,
                    no_local_endpoints: self.tracker.no_local_endpoints(),
                });
            }
            Err(error) => {
                self.tracker.request_full();
                let delay = FIRST_RETRY
                    .saturating_mul(2u32.saturating_pow(self.failures))
                    .min(self.config.longest_retry);
                self.failures = self.failures.saturating_add(1);
                self.retry_at = Some(after(Instant::now(), delay));
                self.observer.sync_failed(&error, &delta, duration);
            }
        }
    }

    fn tell_problems(&self, problems: &[Problem]) {
        for problem in problems {
            self.observer.rejected(problem);
        }
    }

    fn tell_changed(&self, event: &Event) {
        match event {
            Event::Apply(object) => self.observer.changed(object.key().kind),
            Event::Delete(key) => self.observer.changed(key.kind),
            Event::Replace { kind, objects, .. } => {
                for _ in objects {
                    self.observer.changed(*kind);
                }
            }
            Event::Malformed { .. } => {}
        }
    }
}

/// `start + wait`; waits that the clock cannot express, such as [`Duration::MAX`], end far off.
fn after(start: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
