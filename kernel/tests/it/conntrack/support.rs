//! Namespaces, a small cluster, and a reconciler that follows it.

use std::{
    sync::mpsc::{self, Receiver},
    time::{Duration, Instant},
};

use switchyard_core::{
    config::NodeConfig,
    model::PerFamily,
    proxier::{Mode, ProxierError, RefusedParts},
    testing::{Builder, NODE},
    track::Tracker,
};
use switchyard_kernel::conntrack::{Reconciler, Report};
use test_netns::run;
pub use test_netns::wait::PATIENCE;

use super::table::{Flow, add, assert_entries};

/// Runs `test` in a thread with its own network namespace, which ends with the thread. Its
/// loopback interface also has the addresses 192.0.2.1 and 2001:db8::1.
pub fn in_namespace<T: Send + Default>(test: impl FnOnce() -> T + Send) -> T {
    let body = || {
        run("ip link set lo up");
        run("ip addr add 192.0.2.1/32 dev lo");
        run("ip addr add 2001:db8::1/128 dev lo");
        test()
    };
    test_netns::in_namespace(body)
}

/// A cluster as one node sees it, and a reconciler that is told of every change.
pub struct Cluster {
    tracker: Tracker,
    reconciler: Reconciler,
    reports: Receiver<Report>,
}

impl Cluster {
    /// Starts the reconciler in this thread's namespace. Nothing was synced yet.
    pub fn new() -> Self {
        Self::of(NodeConfig::new(NODE))
    }

    /// The same on a node with this configuration.
    pub fn of(config: NodeConfig) -> Self {
        let (sender, reports) = mpsc::channel();
        let report = move |report| {
            // No one listens any more when a test is over.
            let _ = sender.send(report);
        };
        let reconciler = Reconciler::start(report).unwrap();
        Self { tracker: Tracker::new(config), reconciler, reports }
    }

    /// With these objects, synced when there was no entry yet.
    pub fn with<'b>(builders: impl IntoIterator<Item = &'b Builder>) -> Self {
        let mut cluster = Self::new();
        cluster.apply(builders);
        cluster
    }

    /// The same cluster, but the reconciler starts anew and knows nothing.
    pub fn restart(&mut self) {
        let Self { reconciler, reports, .. } = Self::new();
        (self.reconciler, self.reports) = (reconciler, reports);
        self.tracker.forget_synced();
    }

    /// Changes objects, syncs, and waits for the reconciler. Returns its reports.
    pub fn apply<'b>(&mut self, builders: impl IntoIterator<Item = &'b Builder>) -> Vec<Report> {
        self.change(builders, []);
        self.wait()
    }

    /// Adds entries, and asserts that a change of objects ends the stale ones and no others.
    #[track_caller]
    pub fn assert_ends<'b>(
        &mut self,
        kept: &[Flow],
        stale: &[Flow],
        change: impl IntoIterator<Item = &'b Builder>,
    ) {
        add(kept);
        add(stale);
        assert_eq!(deleted(&self.apply(change)), stale.len());
        assert_entries(kept);
    }

    /// Deletes objects, syncs, and waits for the reconciler. Returns its reports.
    pub fn delete<'b>(&mut self, builders: impl IntoIterator<Item = &'b Builder>) -> Vec<Report> {
        self.change([], builders);
        self.wait()
    }

    /// Changes and deletes objects in one sync, without waiting for the reconciler.
    pub fn change<'b>(
        &mut self,
        applied: impl IntoIterator<Item = &'b Builder>,
        deleted: impl IntoIterator<Item = &'b Builder>,
    ) {
        for event in deleted.into_iter().map(Builder::delete) {
            self.tracker.apply(event);
        }
        self.resolve(applied);
        self.sync();
    }

    pub fn resolve<'b>(&mut self, applied: impl IntoIterator<Item = &'b Builder>) {
        for event in applied.into_iter().map(Builder::apply) {
            assert_eq!(self.tracker.apply(event), []);
        }
        self.tracker.resolve();
    }

    /// Says that what was resolved is synced.
    pub fn sync(&mut self) {
        self.reconciler.synced(&self.tracker.transition());
        self.tracker.mark_synced();
    }

    /// Leaves IPv6 out of the syncs, or, once the kernel takes it, no more.
    pub fn leave_v6_out(&mut self, is_left_out: bool) {
        if is_left_out {
            let v6 = Some("refused".to_owned());
            let parts = RefusedParts { families: PerFamily { v4: None, v6 }, ..Default::default() };
            let error = ProxierError::backend(Mode::NFTABLES, "no", "refused").of_parts(parts);
            assert!(self.tracker.withhold(&error, Instant::now()).is_some());
        } else {
            self.tracker.advance(Instant::now() + PATIENCE);
        }
    }

    /// Reports a sync after one that failed, or that found a difference.
    pub fn repair(&mut self) -> Vec<Report> {
        self.reconciler.doubt();
        self.sync();
        self.wait()
    }

    /// Waits for the reconciler's next report.
    pub fn report(&self) -> Report {
        self.reports.recv_timeout(PATIENCE).expect("there is no report")
    }

    /// Whether the reconciler has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.reconciler.wait_idle(Duration::ZERO)
    }

    /// Waits for the reconciler. Returns its reports since the last time.
    pub fn wait(&self) -> Vec<Report> {
        assert!(self.reconciler.wait_idle(PATIENCE), "the reconciler does not become idle");
        self.reports.try_iter().collect()
    }
}

/// The number of entries that were deleted.
pub fn deleted(reports: &[Report]) -> usize {
    assert!(reports.iter().all(|report| report.complete), "{reports:?}");
    reports.iter().map(|report| report.deleted).sum()
}

pub fn slice6(service: &str, suffix: &str) -> Builder {
    switchyard_core::testing::slice(service, suffix).set("addressType", "IPv6")
}

/// A Service with a UDP port.
pub fn dns() -> Builder {
    switchyard_core::testing::service("dns", "10.0.0.10").port("", "UDP", 53)
}
