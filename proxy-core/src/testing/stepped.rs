//! A tracker and a backend, synced one step at a time.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use tokio::runtime::{Builder, Runtime};

use crate::{
    config::NodeConfig,
    objects::Event,
    proxier::{Proxier, ProxierError, SyncReport},
    state::State,
    track::Tracker,
    transition::{Transition, Unsynced},
};

/// Longer than what was refused waits.
const LATER: Duration = Duration::from_secs(3600);

/// Syncs a state as an engine that has just started does: nothing was synced before, and everything
/// is compared.
pub fn sync_first(proxier: &mut impl Proxier, state: &State) -> Result<SyncReport, ProxierError> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut unsynced = Unsynced::default();
    for id in state.service_ports.keys() {
        unsynced.note_port(id.clone(), None);
    }
    runtime.block_on(proxier.sync(&Transition::new(state, &unsynced)))
}

/// A node whose backend syncs when the test says so. It panics where a test should.
pub struct Stepped<P> {
    /// The known objects.
    pub tracker: Tracker,
    /// Its backend.
    pub proxier: P,
    /// Where its futures run, in this thread.
    pub runtime: Runtime,
}

impl<P: Proxier> Stepped<P> {
    /// A node that knows nothing yet.
    pub fn new(config: NodeConfig, proxier: P) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut tracker = Tracker::new(config);
        tracker.set_capabilities(proxier.profile().capabilities, proxier.profile().mode);
        Self { tracker, proxier, runtime }
    }

    /// Takes events in, none of which may be a problem.
    pub fn apply(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            assert_eq!(self.tracker.apply(event), []);
        }
        assert_eq!(self.tracker.resolve(), []);
    }

    /// Syncs what has been taken in, without what is refused now. What was refused before is tried
    /// again. After a failure the next sync is full.
    pub fn try_sync(&mut self) -> Result<SyncReport, ProxierError> {
        self.tracker.try_withheld(Instant::now() + LATER);
        let compares = self.tracker.transition().is_resync();
        loop {
            let error = match self.runtime.block_on(self.proxier.sync(&self.tracker.transition())) {
                Ok(mut report) => {
                    report.degraded.extend(self.tracker.degraded());
                    self.tracker.mark_synced();
                    return Ok(report);
                }
                Err(error) => error,
            };
            let is_withheld = self.tracker.withhold(&error, Instant::now()).is_some();
            if compares || !is_withheld {
                self.tracker.request_resync();
            }
            if !is_withheld {
                return Err(error);
            }
        }
    }

    /// Takes events in and syncs them.
    pub fn sync(&mut self, events: impl IntoIterator<Item = Event>) -> SyncReport {
        self.apply(events);
        self.try_sync().expect("a sync")
    }

    /// Syncs everything that is known.
    pub fn full(&mut self) -> SyncReport {
        self.tracker.request_resync();
        self.try_sync().expect("a full sync")
    }

    /// Compares what the kernel holds of each Service with what was synced, and returns what
    /// differs; `None` if the backend does not compare.
    pub fn compare(&mut self) -> Option<Vec<String>> {
        let transition = self.tracker.transition();
        let state = transition.after();
        let services: BTreeSet<_> = state.service_ports.keys().map(|id| &id.name.service).collect();
        let mut found = Vec::new();
        for service in services {
            let drift = self.proxier.compare(state, service).expect("a comparison")?;
            found.extend(drift.examples);
        }
        Some(found)
    }

    /// Puts another backend in place of the one that has synced, as if the proxy had been killed
    /// and started again.
    pub fn restart(&mut self, proxier: P) -> SyncReport {
        self.proxier = proxier;
        self.tracker.forget_synced();
        self.try_sync().expect("a first sync")
    }

    /// Removes everything.
    pub fn clean_up(&mut self) {
        self.runtime.block_on(self.proxier.clean_up()).expect("a clean-up");
    }
}
