//! The reports of a runner: for metrics, health and logs.

use std::{ops::ControlFlow, time::Duration};

use crate::{
    model::{PerFamily, Spread},
    objects::Event,
    proxier::{Disturbance, Mode, ProxierError, Skipped, SyncReport},
    track::{Missing, NoLocalEndpoints, NodeFacts, Problem},
    transition::Transition,
};

/// A sync that succeeded.
#[derive(Debug)]
pub struct SyncOutcome<'a> {
    /// The step that was synced: the kernel holds [`Transition::after`] now.
    pub change: Transition<'a>,
    /// The backend's report. [`SyncReport::skipped`] ends with the Service ports of the sync that are
    /// served otherwise than they ask because the backend has not the [abilities]; each was reported as
    /// a [`Problem`].
    ///
    /// [abilities]: crate::proxier::Proxier::abilities
    pub report: &'a SyncReport,
    /// The Service ports at the beginning of [`SyncReport::skipped`], which the backend reported itself.
    pub skipped_by_backend: &'a [Skipped],
    /// How long the sync took, rendering and commit together.
    pub duration: Duration,
    /// The time from the arrival of the oldest change to its commit; `None` if the sync was due by a
    /// period alone.
    pub latency: Option<Duration>,
    /// The trigger times (RFC 3339) of the EndpointSlice changes in the sync.
    pub trigger_times: &'a [String],
    /// Service ports that lack local endpoints.
    pub no_local_endpoints: PerFamily<NoLocalEndpoints>,
    /// Service ports that are served otherwise than they ask because the backend has not the abilities,
    /// whether or not the sync changed them.
    pub unsupported: PerFamily<usize>,
    /// Service ports that are left out because the kernel refuses them.
    pub refused: PerFamily<usize>,
}

/// Receives the reports of a runner. All methods are called on the runner's thread and must not
/// block; by default they do nothing. A pair of observers is an observer: both receive each report.
pub trait Observer: Send + Sync {
    /// An object, or part of one, cannot be used. Each problem is reported once.
    fn rejected(&self, _problem: &Problem) {}
    /// An event has arrived, and is about to be applied.
    fn received(&self, _event: &Event) {}
    /// There is something to sync now.
    fn sync_requested(&self) {}
    /// A sync begins.
    fn sync_started(&self, _change: &Transition<'_>) {}
    /// Another program has changed, or may have changed, what was programmed. Called for every
    /// report of the backend's monitor; the comparison may follow later.
    fn disturbed(&self, _disturbance: &Disturbance) {}
    /// Everything will be compared with the kernel at the next sync, because another program has changed
    /// what was programmed. A comparison on suspicion is requested like any sync.
    fn comparison_requested(&self) {}
    /// The kernel refused parts of a sync, which are left out from now on; the sync is tried again at once.
    fn left_out(&self, _error: &ProxierError) {}
    /// A sync succeeded.
    fn synced(&self, _outcome: &SyncOutcome<'_>) {}
    /// A sync failed after this time, and will be repeated.
    fn sync_failed(&self, _error: &ProxierError, _change: &Transition<'_>, _duration: Duration) {}
    /// What another mode left behind could not be removed; the runner will try again.
    fn predecessor_stays(&self, _mode: Mode, _error: &ProxierError) {}
    /// The first sync waits for this now.
    fn waiting_for(&self, _missing: Missing) {}
    /// The runner's [patience](super::NodePatience) with the Node is over: for the Node or its addresses,
    /// the runner goes on without; for its pod networks, the runner still waits.
    fn gave_up(&self, _missing: Missing, _node: Option<&NodeFacts>) {}
    /// What the Node states has changed, or the Nodes were listed for the first time. `None`: there
    /// is no Node.
    fn node_changed(&self, _node: Option<&NodeFacts>) {}
    /// The Node states everything that the runner waits for, or the runner has given up to wait.
    /// Called once, before the first sync if the configuration takes anything from the Node. After
    /// `Break` the runner makes no sync any more: the configuration cannot work on this node.
    fn node_known(&self, _node: Option<&NodeFacts>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// Whether the node may have traffic from load balancers has changed.
    fn node_eligible(&self, _is_eligible: bool) {}
    /// The backend of this mode cannot program the node's default spread for any Service; `used` takes its
    /// place. Called at the start, and when the configuration of the node changes.
    fn default_spread_replaced(&self, _mode: Mode, _asked: Spread, _used: Spread) {}
}

/// Observes nothing.
impl Observer for () {}

/// Sends each report to both observers, in order.
impl<A: Observer, B: Observer> Observer for (A, B) {
    fn rejected(&self, problem: &Problem) {
        self.0.rejected(problem);
        self.1.rejected(problem);
    }

    fn received(&self, event: &Event) {
        self.0.received(event);
        self.1.received(event);
    }

    fn sync_requested(&self) {
        self.0.sync_requested();
        self.1.sync_requested();
    }

    fn sync_started(&self, change: &Transition<'_>) {
        self.0.sync_started(change);
        self.1.sync_started(change);
    }

    fn disturbed(&self, disturbance: &Disturbance) {
        self.0.disturbed(disturbance);
        self.1.disturbed(disturbance);
    }

    fn comparison_requested(&self) {
        self.0.comparison_requested();
        self.1.comparison_requested();
    }

    fn synced(&self, outcome: &SyncOutcome<'_>) {
        self.0.synced(outcome);
        self.1.synced(outcome);
    }

    fn left_out(&self, error: &ProxierError) {
        self.0.left_out(error);
        self.1.left_out(error);
    }

    fn sync_failed(&self, error: &ProxierError, change: &Transition<'_>, duration: Duration) {
        self.0.sync_failed(error, change, duration);
        self.1.sync_failed(error, change, duration);
    }

    fn predecessor_stays(&self, mode: Mode, error: &ProxierError) {
        self.0.predecessor_stays(mode, error);
        self.1.predecessor_stays(mode, error);
    }

    fn waiting_for(&self, missing: Missing) {
        self.0.waiting_for(missing);
        self.1.waiting_for(missing);
    }

    fn gave_up(&self, missing: Missing, node: Option<&NodeFacts>) {
        self.0.gave_up(missing, node);
        self.1.gave_up(missing, node);
    }

    fn node_changed(&self, node: Option<&NodeFacts>) {
        self.0.node_changed(node);
        self.1.node_changed(node);
    }

    fn node_known(&self, node: Option<&NodeFacts>) -> ControlFlow<()> {
        let verdicts = [self.0.node_known(node), self.1.node_known(node)];
        if verdicts.iter().any(ControlFlow::is_break) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn node_eligible(&self, is_eligible: bool) {
        self.0.node_eligible(is_eligible);
        self.1.node_eligible(is_eligible);
    }

    fn default_spread_replaced(&self, mode: Mode, asked: Spread, used: Spread) {
        self.0.default_spread_replaced(mode, asked, used);
        self.1.default_spread_replaced(mode, asked, used);
    }
}
