//! The wait for this node's Node, and the report of its facts.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    observer::{EngineEvent, Observer},
    timing::after,
};
use crate::track::{Missing, NodeFacts, RequiredFacts, Tracker};

/// The time to wait for facts of the Node once the Nodes are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePatience {
    /// The time to wait for the Node and an address in it. Afterwards the runner goes on without.
    pub addresses: Duration,
    /// The time to wait, after that, for `spec.podCIDRs` if the configuration uses them. Afterwards
    /// the runner reports that and still waits: without pod networks, local traffic cannot be
    /// detected.
    pub pod_cidrs: Duration,
}

impl NodePatience {
    /// kube-proxy's: 30 s and 300 s.
    pub const KUBE_PROXY: Self =
        Self { addresses: Duration::from_secs(30), pod_cidrs: Duration::from_secs(300) };
}

/// The objects that the runner waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The list of Nodes.
    #[default]
    List,
    /// All facts, until a time.
    AllFacts(Instant),
    /// The pod networks, until a time.
    PodCidrs(Instant),
    /// The pod networks, which are late.
    LatePodCidrs,
    /// Nothing.
    Over,
}

/// Decides whether the configuration can work on a node, of whose Node these facts are known.
pub type NodeCheck = Box<dyn Fn(Option<&NodeFacts>) -> bool + Send>;

#[derive(Default)]
pub(super) struct NodeWait {
    /// `None`: a listed Node may lack anything.
    patience: Option<NodePatience>,
    check: Option<NodeCheck>,
    phase: Phase,
    /// The last report; `None` before the first report.
    reported: Option<Option<NodeFacts>>,
    is_refused: bool,
}

impl NodeWait {
    /// Starts to wait.
    pub(super) fn new(
        patience: Option<NodePatience>,
        check: Option<NodeCheck>,
        tracker: &mut Tracker,
    ) -> Self {
        let is_required = patience.is_some();
        tracker.require(RequiredFacts { addresses: is_required, pod_cidrs: is_required });
        Self { patience, check, ..Self::default() }
    }

    /// Whether the check has refused the Node: nothing may be programmed.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// The time when patience is over next.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::AllFacts(until) | Phase::PodCidrs(until) => Some(until),
            Phase::List | Phase::LatePodCidrs | Phase::Over => None,
        }
    }

    /// Reports what the Node states, if that has changed. To be called after each event of a Node,
    /// so that changes in a row are all reported.
    pub(super) fn report(&mut self, tracker: &Tracker, observer: &dyn Observer) {
        if tracker.node_lacks() == Some(Missing::Nodes) {
            return;
        }
        let facts = tracker.node();
        if self.reported.as_ref().is_none_or(|reported| reported.as_ref() != facts) {
            self.reported = Some(facts.cloned());
            observer.on_event(&EngineEvent::NodeChanged(facts));
        }
    }

    /// Gives up what is missing for too long, and reports that the Node is known.
    pub(super) fn update(&mut self, tracker: &mut Tracker, observer: &dyn Observer, now: Instant) {
        if self.phase == Phase::Over || tracker.node_lacks() == Some(Missing::Nodes) {
            return;
        }
        self.report(tracker, observer);
        while let Some((missing, patience)) = tracker.node_lacks().zip(self.patience) {
            let node = tracker.node();
            let give_up = |missing| observer.on_event(&EngineEvent::GaveUp { missing, node });
            self.phase = match self.phase {
                Phase::List => Phase::AllFacts(after(now, patience.addresses)),
                Phase::AllFacts(until) if until <= now => {
                    if missing != Missing::PodCidrs {
                        give_up(missing);
                    }
                    tracker.require(RequiredFacts { addresses: false, pod_cidrs: true });
                    Phase::PodCidrs(after(until, patience.pod_cidrs))
                }
                Phase::PodCidrs(until) if until <= now => {
                    give_up(missing);
                    Phase::LatePodCidrs
                }
                Phase::AllFacts(_) | Phase::PodCidrs(_) | Phase::LatePodCidrs | Phase::Over => {
                    return;
                }
            };
        }
        self.phase = Phase::Over;
        // A Node that lacks something later is no reason to stop.
        tracker.require(RequiredFacts::default());
        let node = tracker.node();
        self.is_refused = self.check.take().is_some_and(|check| !check(node));
        if self.is_refused {
            tracing::error!("The configuration does not fit the node; nothing more is programmed");
            observer.on_event(&EngineEvent::NodeRefused(node));
        }
    }
}
