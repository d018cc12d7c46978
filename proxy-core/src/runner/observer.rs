//! The events of an engine: for metrics, health and logs.

use std::{sync::Arc, time::Duration};

use crate::{
    model::{LbAlgorithm, PerFamily},
    objects::Event,
    proxier::{DegradedPort, ExternalChange, Mode, ProxierError, SyncReport},
    track::{Missing, NoLocalEndpoints, NodeFacts, Problem, TriggerTime},
    transition::Transition,
};

/// A sync that succeeded.
#[derive(Debug)]
pub struct SyncOutcome<'a> {
    /// The step that was synced: the kernel holds [`Transition::after`] now.
    pub change: Transition<'a>,
    /// The backend's report. [`SyncReport::degraded`] ends with the Service ports of the sync that
    /// are served otherwise than they ask because the backend has not the [capabilities]; each was
    /// reported as a [`Problem`].
    ///
    /// [capabilities]: crate::proxier::Profile::capabilities
    pub report: &'a SyncReport,
    /// The Service ports at the beginning of [`SyncReport::degraded`], which the backend reported
    /// itself.
    pub degraded_by_backend: &'a [DegradedPort],
    /// The time that the sync took, rendering and commit together.
    pub duration: Duration,
    /// The time from the arrival of the oldest change to its commit; `None` if the sync was due by
    /// a period alone.
    pub latency: Option<Duration>,
    /// The trigger times of the EndpointSlice changes in the sync.
    pub trigger_times: &'a [TriggerTime],
    /// Service ports that lack local endpoints.
    pub no_local_endpoints: PerFamily<NoLocalEndpoints>,
    /// Service ports that are served otherwise than they ask because the backend has not the
    /// capabilities, whether or not the sync changed them.
    pub unsupported: PerFamily<usize>,
    /// Service ports that are left out because the kernel refuses them.
    pub refused: PerFamily<usize>,
    /// Whether objects of a list that has arrived are still to be applied, and synced.
    pub is_part: bool,
}

/// An event of an engine.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineEvent<'a> {
    /// An object, or part of one, cannot be used. Each problem is reported once.
    Rejected(&'a Problem),
    /// An event has arrived, and is about to be applied.
    Received(&'a Event),
    /// There is something to sync now.
    SyncRequested,
    /// A sync begins.
    SyncStarted(Transition<'a>),
    /// Another program has changed, or may have changed, what was programmed. Sent for every report
    /// of the backend's monitor; the resync may follow later.
    ExternallyChanged(&'a ExternalChange),
    /// The next sync will repair what another program has changed, by a comparison of everything
    /// unless the backend knows what that is. A resync on suspicion is requested like any sync.
    ResyncRequested,
    /// The kernel refused parts of a sync, which are left out from now on; the sync is tried again
    /// at once.
    LeftOut(&'a ProxierError),
    /// A sync succeeded.
    Synced(SyncOutcome<'a>),
    /// A sync failed, and will be repeated.
    SyncFailed {
        /// Why.
        error: &'a ProxierError,
        /// The step that was to be synced, of which a part may be in the kernel.
        change: Transition<'a>,
        /// The time that the sync took.
        duration: Duration,
    },
    /// Leftovers of another mode could not be removed; the removal will be tried again.
    LeftoversStay {
        /// The other mode.
        mode: Mode,
        /// Why.
        error: &'a ProxierError,
    },
    /// The first sync waits for this now.
    WaitingFor(Missing),
    /// The [patience](super::NodePatience) with the Node is over: for the Node or its addresses,
    /// the engine goes on without; for its pod networks, the engine still waits.
    GaveUp {
        /// The facts that the Node lacks.
        missing: Missing,
        /// The facts that the Node states; `None` if there is no Node.
        node: Option<&'a NodeFacts>,
    },
    /// The check of the node ([`NodeCheck`](super::NodeCheck)) has refused the Node, which states
    /// these facts. There are no further syncs.
    NodeRefused(Option<&'a NodeFacts>),
    /// The facts that the Node states have changed, or the Nodes were listed for the first time.
    /// `None`: there is no Node.
    NodeChanged(Option<&'a NodeFacts>),
    /// Whether the node may have traffic from load balancers has changed.
    NodeEligible(bool),
    /// The backend cannot program the node's default algorithm for any Service. Sent at the start,
    /// and when the configuration of the node changes.
    DefaultAlgorithmReplaced {
        /// The backend's mode.
        mode: Mode,
        /// The algorithm of the configuration.
        asked: LbAlgorithm,
        /// The algorithm that takes its place.
        used: LbAlgorithm,
    },
}

/// Receives what an engine reports. A function is an observer, and so is a pair of observers, which
/// both receive each event, in order.
pub trait Observer: Send + Sync {
    /// Receives an event, on the engine's thread: the method must not block.
    fn on_event(&self, event: &EngineEvent<'_>);
}

/// Observes nothing.
impl Observer for () {
    fn on_event(&self, _: &EngineEvent<'_>) {}
}

impl<F: Fn(&EngineEvent<'_>) + Send + Sync> Observer for F {
    fn on_event(&self, event: &EngineEvent<'_>) {
        self(event);
    }
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn on_event(&self, event: &EngineEvent<'_>) {
        (**self).on_event(event);
    }
}

impl<O: Observer> Observer for Option<O> {
    fn on_event(&self, event: &EngineEvent<'_>) {
        if let Some(observer) = self {
            observer.on_event(event);
        }
    }
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn on_event(&self, event: &EngineEvent<'_>) {
        self.0.on_event(event);
        self.1.on_event(event);
    }
}
