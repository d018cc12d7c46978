//! The observer of the engine that writes the log.

use std::{
    mem,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use switchyard_core::{
    error::ErrorChain,
    model::ServicePortId,
    objects::Event,
    proxier::ExternalChange,
    runner::{EngineEvent, Observer, SyncOutcome},
    state::PoolKind,
    track::{Missing, Problem, Reason},
    transition::Transition,
};

/// The [`Observer`] that logs: syncs and their failures, what is rejected or refused, what other
/// programs change, and what is waited for. Every [`Proxy`](crate::Proxy) has one, unless
/// [`Builder::log`](crate::Builder::log) is off.
#[derive(Debug)]
pub struct Log {
    node: String,
    /// The time of the last warning about a change.
    warned: Mutex<Option<Instant>>,
    synced: Mutex<SyncLines>,
}

/// The lines about syncs at the level DEBUG.
#[derive(Debug, Default)]
struct SyncLines {
    last: Option<Instant>,
    /// The number of syncs since then, which have no line.
    left_out: u64,
}

impl SyncLines {
    /// Counts a sync. Returns the number of syncs before it that have no line, if it has one.
    fn next(&mut self, now: Instant, is_notable: bool) -> Option<u64> {
        if !is_notable && self.last.is_some_and(|last| now.duration_since(last) < SYNC_EVERY) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(mem::take(&mut self.left_out))
    }
}

/// The least time between two warnings about changes.
const QUIET: Duration = Duration::from_secs(30);
/// The least time between two lines about small syncs at DEBUG: dozens of them fit into a second.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// The duration from which a sync is not small.
const LONG: Duration = Duration::from_millis(100);

impl Log {
    /// Returns the observer of an engine on the node of this name.
    pub fn new(node: impl Into<String>) -> Self {
        Self { node: node.into(), warned: Mutex::default(), synced: Mutex::default() }
    }

    fn externally_changed(&self, change: &ExternalChange) {
        let by = match change {
            ExternalChange::Changed { by } => by.as_deref().unwrap_or("unknown"),
            ExternalChange::Suspected => {
                tracing::debug!("Tables changed by another program; resyncing");
                return;
            }
        };
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|warned| warned.elapsed() >= QUIET) {
            *warned = Some(Instant::now());
            tracing::warn!(author = by, "Our tables were changed by another program; resyncing");
        } else {
            tracing::debug!(author = by, "Our tables were changed again by another program");
        }
    }
}

/// Logs the endpoints of the Service ports that a sync changes.
fn log_endpoints(change: &Transition<'_>) {
    let ports = &change.after().service_ports;
    let log = |id: &ServicePortId| {
        let port = ports.get(id);
        let endpoints = |kind| {
            let pool = port.map(|port| &port.pool(kind)[..]).unwrap_or_default();
            let texts: Vec<String> = pool.iter().map(|e| e.address.to_string()).collect();
            format!("[{}]", texts.join(" "))
        };
        tracing::debug!(
            target: "switchyard::v3",
            ipFamily = id.family.as_str(),
            servicePortName = %id.name,
            endpoints = endpoints(PoolKind::Cluster),
            localEndpoints = endpoints(PoolKind::Local),
            "Setting endpoints for service port name"
        );
    };
    if change.is_resync() {
        ports.keys().for_each(log);
    } else {
        change.ports().for_each(|port| log(port.id));
    }
}

/// Logs the drift that a sync has found, the skipped Service ports, and the sync's changes unless
/// it is small and there was a line just before.
fn log_outcome(outcome: &SyncOutcome<'_>, lines: &Mutex<SyncLines>) {
    let drift = &outcome.report.drift;
    if !drift.is_none() {
        tracing::warn!(
            objects = drift.objects,
            examples = drift.examples.join("; "),
            "Repaired changes by another program"
        );
    }
    // The others were logged as problems.
    for skipped in outcome.degraded_by_backend {
        tracing::warn!(
            service_port = skipped.port.to_string(),
            reason = skipped.reason.as_str(),
            "Service port is not served as asked for"
        );
    }
    for problem in &outcome.report.warnings {
        tracing::warn!(problem = problem.as_str(), "The node is not as the proxy mode needs it");
    }
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let is_notable = outcome.change.is_full()
        || !drift.is_none()
        || outcome.duration >= LONG
        || tracing::enabled!(target: "switchyard::v3", tracing::Level::DEBUG);
    let before =
        lines.lock().unwrap_or_else(PoisonError::into_inner).next(Instant::now(), is_notable);
    let Some(left_out) = before else { return };
    tracing::debug!(
        full = outcome.change.is_full(),
        changed = outcome.change.ports().len(),
        service_ports = outcome.change.after().service_ports.len(),
        left_out,
        added = outcome.report.added,
        removed = outcome.report.removed,
        bytes = outcome.report.bytes,
        elapsed = ?outcome.duration,
        commit = ?outcome.report.commit,
        "Synced"
    );
}

/// Logs that a sync begins.
fn log_start(change: &Transition<'_>) {
    tracing::trace!(
        full = change.is_full(),
        changed = change.ports().len(),
        service_ports = change.after().service_ports.len(),
        "Syncing"
    );
    if tracing::enabled!(target: "switchyard::v3", tracing::Level::DEBUG) {
        log_endpoints(change);
    }
}

/// Logs what the source of objects sends.
fn log_received(event: &Event) {
    match event {
        Event::Apply(object) => {
            tracing::trace!(object = %object.key(), "Object added or changed");
        }
        Event::Delete(object) => tracing::trace!(%object, "Object deleted"),
        Event::Listed(kind) => {
            tracing::debug!(target: "switchyard::v3", kind = kind.as_str(), "Listed");
        }
        Event::Replace { kind, objects, malformed } => tracing::debug!(
            target: "switchyard::v3",
            kind = kind.as_str(),
            objects = objects.len(),
            malformed = malformed.len(),
            "Listed"
        ),
        // The tracker reports a malformed object as rejected.
        _ => {}
    }
}

/// Logs what cannot be used.
fn log_rejected(problem: &Problem) {
    let message = match problem.reason {
        Reason::Unsupported => "A Service is not served as it asks",
        Reason::Refused => "The node refuses what a Service needs",
        Reason::Malformed | Reason::Invalid | Reason::Conflict => {
            "Part of an object cannot be used"
        }
    };
    tracing::warn!(
        object = %problem.object,
        field = problem.field.as_str(),
        reason = problem.message.as_str(),
        "{message}"
    );
}

impl Observer for Log {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let node = self.node.as_str();
        match event {
            EngineEvent::Received(event) => log_received(event),
            EngineEvent::Rejected(problem) => log_rejected(problem),
            EngineEvent::SyncStarted(change) => log_start(change),
            EngineEvent::ExternallyChanged(change) => self.externally_changed(change),
            EngineEvent::Synced(outcome) => log_outcome(outcome, &self.synced),
            EngineEvent::SyncFailed { error, change, duration } => tracing::error!(
                err = %ErrorChain(*error),
                full = change.is_full(),
                elapsed = ?duration,
                "Sync failed; retrying"
            ),
            EngineEvent::WaitingFor(missing) => tracing::debug!(
                missing = missing.as_str(),
                "Waiting for the Node before the first sync"
            ),
            EngineEvent::GaveUp { missing: Missing::Node, .. } => {
                tracing::error!(node, "Node not found; continuing without it");
            }
            EngineEvent::GaveUp { missing: Missing::NodeAddresses, .. } => {
                tracing::error!(node, "Node has no usable address; continuing without one");
            }
            EngineEvent::GaveUp { missing: Missing::PodCidrs, .. } => {
                tracing::warn!(
                    node,
                    "Node has no podCIDRs yet; nothing is programmed without them"
                );
            }
            EngineEvent::LeftoversStay { mode, error } => tracing::error!(
                %mode,
                err = %ErrorChain(*error),
                "Failed to remove the rules of another mode"
            ),
            EngineEvent::NodeEligible(is_eligible) => {
                tracing::debug!(is_eligible, "Node eligibility for load balancers changed");
            }
            EngineEvent::DefaultAlgorithmReplaced { mode, asked, used } => tracing::warn!(
                %mode,
                lb_algorithm = asked.as_str(),
                used = used.as_str(),
                "Proxy mode does not support --lb-algorithm; using another algorithm"
            ),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_syncs_have_few_lines() {
        let (mut lines, now) = (SyncLines::default(), Instant::now());
        let steps = [(0, false), (1, false), (999, false), (999, true), (1999, false)];
        let counts =
            steps.map(|(ms, is_notable)| lines.next(now + Duration::from_millis(ms), is_notable));
        assert_eq!(counts, [Some(0), None, None, Some(2), Some(0)]);
    }
}
