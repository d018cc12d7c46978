//! A tracker and a backend, synced one step at a time.

use tokio::runtime::{Builder, Runtime};

use crate::{
    config::NodeConfig,
    objects::Event,
    proxier::{Proxier, ProxierError, SyncReport},
    track::Tracker,
};

/// A node whose backend syncs when the test says so. It panics where a test should.
pub struct Stepped<P> {
    /// What it knows.
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
        Self { tracker: Tracker::new(config), proxier, runtime }
    }

    /// Takes events in, none of which may be a problem.
    pub fn apply(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            assert_eq!(self.tracker.apply(event), []);
        }
        assert_eq!(self.tracker.resolve(), []);
    }

    /// Syncs what has been taken in. After a failure the next sync is full.
    pub fn try_sync(&mut self) -> Result<SyncReport, ProxierError> {
        let sync = self.proxier.sync(self.tracker.state(), self.tracker.delta());
        let result = self.runtime.block_on(sync);
        match result {
            Ok(_) => drop(self.tracker.mark_synced()),
            Err(_) => self.tracker.request_full(),
        }
        result
    }

    /// Takes events in and syncs them.
    pub fn sync(&mut self, events: impl IntoIterator<Item = Event>) -> SyncReport {
        self.apply(events);
        self.try_sync().expect("a sync")
    }

    /// Syncs everything that is known.
    pub fn full(&mut self) -> SyncReport {
        self.tracker.request_full();
        self.try_sync().expect("a full sync")
    }

    /// The proxy is killed, and another one, with this backend, started that knows the same.
    pub fn restart(&mut self, proxier: P) -> SyncReport {
        self.proxier = proxier;
        self.full()
    }

    /// Removes everything.
    pub fn cleanup(&mut self) {
        self.runtime.block_on(self.proxier.cleanup()).expect("a clean-up");
    }
}
