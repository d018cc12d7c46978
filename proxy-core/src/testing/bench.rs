//! Parts shared by benchmarks of syncs: a cluster, an engine whose syncs are timed, and the report.
//!
//! Times are of real engines: from the input to the end of the sync that commits it. They are shown
//! beside a floor, which is the time that the kernel or a program takes for the same change alone.

use std::{
    env,
    error::Error,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use super::ManyServices;
use crate::{
    engine::Engine,
    objects::Event,
    proxier::Proxier,
    runner::{EngineEvent, Pace, RunnerConfig},
    state::State,
    track::Tracker,
};

/// The cluster that the arguments of a benchmark ask for: `SERVICES ENDPOINTS`, 10,000 and 5 by
/// default.
pub fn cluster_from_arguments() -> ManyServices {
    // Cargo passes flags such as `--bench`.
    let numbers: Vec<usize> = env::args().filter_map(|arg| arg.parse().ok()).collect();
    ManyServices {
        services: numbers.first().copied().unwrap_or(10_000),
        endpoints: numbers.get(1).copied().unwrap_or(5),
    }
}

/// The state that a node resolves from the cluster.
pub fn resolved(many: &ManyServices) -> State {
    let mut tracker = Tracker::new(many.node());
    for list in many.lists() {
        tracker.apply(list);
    }
    tracker.resolve();
    tracker.state().clone()
}

/// Prints the median of `times` beside that of `floor`, and whether it is within `target`; times
/// have so many decimals of a millisecond.
pub fn report(
    what: &str,
    times: Vec<Duration>,
    floor: Vec<Duration>,
    target: Duration,
    decimals: usize,
) {
    let worst = times.iter().max().copied().unwrap_or_default();
    let (time, floor) = (median(times), median(floor));
    println!(
        "{what:<28}{:>12}   floor {:>12}   {:.2} x floor   worst {:>12}   target {} {}",
        show(time, decimals),
        show(floor, decimals),
        time.as_secs_f64() / floor.as_secs_f64(),
        show(worst, decimals),
        show(target, decimals),
        if time <= target { "met" } else { "MISSED" },
    );
}

/// The median; zero if there are no times.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A time in milliseconds with so many decimals.
pub fn show(time: Duration, decimals: usize) -> String {
    format!("{:.decimals$} ms", time.as_secs_f64() * 1e3)
}

/// The time that the work takes.
pub fn time<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

/// An engine that syncs at once, in the namespace of the thread that starts it.
pub struct TimedEngine {
    inner: Engine,
    /// The time that the kernel took for the commits of each sync.
    synced: mpsc::Receiver<Duration>,
}

impl TimedEngine {
    /// Starts an engine for the cluster's node, and sends the Services; nothing is programmed
    /// before [`TimedEngine::first`].
    pub fn start(many: &ManyServices, proxier: impl Proxier + 'static) -> Self {
        let (sender, synced) = mpsc::channel();
        let timing = RunnerConfig { pace: Pace::Fixed(Duration::ZERO), ..RunnerConfig::default() };
        let inner = Engine::builder(many.node())
            .timing(timing)
            .observer(Arc::new(move |event: &EngineEvent<'_>| match event {
                // The benchmark may have ended.
                EngineEvent::Synced(outcome) => _ = sender.send(outcome.report.commit),
                EngineEvent::SyncFailed { error, .. } => panic!("{error}: {:?}", error.source()),
                _ => {}
            }))
            .start(proxier)
            .expect("a thread");
        let engine = Self { inner, synced };
        let [services, _] = many.lists();
        engine.send(services);
        engine
    }

    /// Sends the slices; returns the time until everything is programmed.
    pub fn first(&self, many: &ManyServices) -> Duration {
        let [_, slices] = many.lists();
        self.time_parts(slices)[0]
    }

    /// Sends an event that changes something; returns the time until the kernel has it, and how
    /// much of that the commits took.
    pub fn time_parts(&self, event: Event) -> [Duration; 2] {
        let start = Instant::now();
        self.send(event);
        let commit = self.synced.recv().expect("the engine syncs");
        [start.elapsed(), commit]
    }

    fn send(&self, event: Event) {
        self.inner.inputs().blocking_send(event.into()).expect("the engine runs");
    }
}
