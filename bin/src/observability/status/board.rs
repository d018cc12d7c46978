//! The latest reports of the engine, which a page shows.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde::Serialize;
use switchyard_core::{
    error::ErrorChain,
    model::{ServiceName, ServicePortId},
    objects::{Event, Kind, Object, ObjectKey},
    proxier::ExternalChange,
    runner::{EngineEvent, Observer, SyncOutcome},
    state::ResolvedServicePort,
    track::{Problem, Reason},
};

use super::{NotAsAsked, Status};
use crate::observability::conntrack::Shares;

/// The most Services and Service ports that are kept with a reason; the metrics count all.
const MOST: usize = 100;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Synced {
    pub(super) seconds_ago: u64,
    /// The time that the sync took.
    pub(super) milliseconds: f64,
    /// The time from the arrival of the oldest change to its commit.
    pub(super) change_milliseconds: Option<f64>,
    /// The Service ports that changed.
    pub(super) changed: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    pub(super) seconds_ago: u64,
    pub(super) because: String,
}

/// A change by another program, which was repaired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    pub seconds_ago: u64,
    /// The program, if the kernel named it.
    pub by: Option<String>,
    /// The number of objects that were missing, altered or too many.
    pub objects: usize,
    /// A few of them.
    pub(super) examples: Vec<String>,
}

/// The latest reports of the engine. Each event costs as much as it changes.
#[derive(Debug, Default)]
pub struct StatusBoard(Mutex<Inner>);

/// Entries of connection tracking that lead to a Service, or to all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Destination {
    pub(super) to: String,
    pub(super) entries: u64,
}

#[derive(Debug, Default)]
struct Inner {
    destinations: Option<(Instant, Vec<Destination>)>,
    service_ports: usize,
    endpoints: usize,
    last_sync: Option<(Instant, Synced)>,
    last_failure: Option<(Instant, Failure)>,
    last_drift: Option<(Instant, Drift)>,
    /// The program that changed the rules, until the repair is known.
    author: Option<String>,
    degraded: BTreeMap<ServicePortId, String>,
    /// The number of Service ports that the node refuses.
    refused_ports: usize,
    /// The Services of which the node refuses something.
    refused: BTreeMap<ObjectKey, String>,
}

fn milliseconds(time: Duration) -> f64 {
    // Microseconds are fine enough to read.
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn is_unproxied(object: &Object) -> bool {
    matches!(object, Object::Service(service) if service.is_unproxied())
}

fn endpoints(port: &ResolvedServicePort) -> usize {
    port.cluster.len().max(port.local.len())
}

impl StatusBoard {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps where the entries of connection tracking led at this time.
    pub fn counted(&self, shares: &Shares<ServiceName>, now: Instant) {
        let largest =
            shares.largest.iter().map(|(service, entries)| (service.to_string(), *entries));
        let rest = [("other Services", shares.others), ("elsewhere", shares.elsewhere)];
        let all = largest.chain(rest.map(|(to, entries)| (to.to_owned(), entries)));
        let all = all.map(|(to, entries)| Destination { to, entries });
        self.lock().destinations = Some((now, all.collect()));
    }

    /// Writes what was reported into a status of this moment.
    pub(super) fn show(&self, status: &mut Status, now: Instant) {
        let inner = self.lock();
        let ago = |at: Instant| now.saturating_duration_since(at).as_secs();
        status.service_ports = inner.service_ports;
        status.endpoints = inner.endpoints;
        let (counted, destinations) = inner.destinations.clone().unzip();
        (status.counted_seconds_ago, status.destinations) = (counted.map(ago), destinations);
        let synced = |(at, sync): (Instant, Synced)| Synced { seconds_ago: ago(at), ..sync };
        status.last_sync = inner.last_sync.clone().map(synced);
        let failed =
            |(at, failure): (Instant, Failure)| Failure { seconds_ago: ago(at), ..failure };
        status.last_failure = inner.last_failure.clone().map(failed);
        let drift = |(at, drift): (Instant, Drift)| Drift { seconds_ago: ago(at), ..drift };
        status.last_drift = inner.last_drift.clone().map(drift);
        status.not_as_asked = inner.not_as_asked();
        status.problems.extend(inner.left_out());
    }
}

impl Inner {
    fn not_as_asked(&self) -> Vec<NotAsAsked> {
        // What is refused is reported with the Service, too.
        let is_known = |port: &ServicePortId, reason: &str| {
            let (namespace, name) = port.name.service.parts();
            self.refused.iter().any(|(key, because)| {
                key.name == name && key.namespace == namespace && because.contains(reason)
            })
        };
        let degraded = self.degraded.iter().filter(|(port, because)| !is_known(port, because));
        let degraded = degraded.map(|(port, because)| (port.to_string(), because.clone()));
        let refused = self
            .refused
            .iter()
            .map(|(key, because)| (format!("{}/{}", key.namespace, key.name), because.clone()));
        degraded.chain(refused).map(|(what, because)| NotAsAsked { what, because }).collect()
    }

    /// Returns the problem that Service ports are left out, if any are.
    fn left_out(&self) -> Option<String> {
        match self.refused_ports {
            0 => None,
            1 => Some("one Service port is left out, since the node refuses what it needs".into()),
            many => Some(format!(
                "{many} Service ports are left out, since the node refuses what they need"
            )),
        }
    }

    fn synced(&mut self, outcome: &SyncOutcome<'_>, now: Instant) {
        let after = outcome.change.after();
        self.service_ports = after.service_ports.len();
        if outcome.change.is_resync() {
            self.endpoints = after.service_ports.values().map(|port| endpoints(port)).sum();
            self.degraded.clear();
        }
        for port in outcome.change.ports() {
            if !outcome.change.is_resync() {
                self.endpoints += port.after.map_or(0, |port| endpoints(port));
                let before = port.before.map_or(0, |port| endpoints(port));
                self.endpoints = self.endpoints.saturating_sub(before);
            }
            self.degraded.remove(port.id);
            // What was refused is out of the state until it is accepted.
            if port.after.is_some() && !self.refused.is_empty() {
                let (namespace, name) = port.id.name.service.parts();
                self.refused.retain(|key, _| key.name != name || key.namespace != namespace);
            }
        }
        for degraded in &outcome.report.degraded {
            if self.degraded.len() < MOST {
                self.degraded.insert(degraded.port.clone(), degraded.reason.clone());
            }
        }
        self.refused_ports = outcome.refused.v4 + outcome.refused.v6;
        if self.refused_ports == 0 {
            self.refused.clear();
        }
        let sync = Synced {
            seconds_ago: 0,
            milliseconds: milliseconds(outcome.duration),
            change_milliseconds: outcome.latency.map(milliseconds),
            changed: outcome.change.ports().len(),
        };
        self.last_sync = Some((now, sync));
        self.last_failure = None;
        let drift = &outcome.report.drift;
        // Who changed something that made no difference did not do what is found later.
        let is_over = outcome.change.is_resync() || !drift.is_none();
        let by = self.author.take_if(|_| is_over);
        if !drift.is_none() {
            let examples = drift.examples.clone();
            let drift = Drift { seconds_ago: 0, by, objects: drift.objects, examples };
            self.last_drift = Some((now, drift));
        }
    }

    /// Forgets the Services that an event removes, or makes headless.
    fn received(&mut self, event: &Event) {
        match event {
            _ if self.refused.is_empty() => {}
            Event::Delete(key) if key.kind == Kind::Service => {
                self.refused.remove(key);
            }
            Event::Apply(object) if is_unproxied(object) => {
                self.refused.remove(&object.key());
            }
            Event::Replace { kind: Kind::Service, objects, malformed } => {
                let listed = objects.iter().filter(|object| !is_unproxied(object));
                let listed = listed.map(Object::key).chain(malformed.iter().cloned());
                let listed: HashSet<ObjectKey> = listed.collect();
                self.refused.retain(|key, _| key.kind != Kind::Service || listed.contains(key));
            }
            _ => {}
        }
    }

    fn rejected(&mut self, problem: &Problem) {
        if problem.reason == Reason::Refused && self.refused.len() < MOST {
            self.refused.insert(problem.object.clone(), problem.message.clone());
        }
    }
}

impl Observer for StatusBoard {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let now = Instant::now();
        match event {
            EngineEvent::Synced(outcome) => self.lock().synced(outcome, now),
            EngineEvent::SyncFailed { error, .. } => {
                let because = ErrorChain(*error).to_string();
                self.lock().last_failure = Some((now, Failure { seconds_ago: 0, because }));
            }
            EngineEvent::ExternallyChanged(ExternalChange::Changed { by }) => {
                self.lock().author.clone_from(by);
            }
            EngineEvent::Received(event) => self.lock().received(event),
            EngineEvent::Rejected(problem) => self.lock().rejected(problem),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::{
        model::{PerFamily, Protocol},
        objects::{Metadata, Service, ServiceSpec},
        proxier::{DegradedPort, SyncReport},
        state::State,
        testing::{OwnedTransition, port_id},
    };

    use super::*;

    /// Reports a sync after which this many Service ports of IPv4 are refused.
    fn synced(board: &StatusBoard, report: &SyncReport, refused: usize) {
        let change = OwnedTransition::to(State::default()).comparing();
        board.on_event(&EngineEvent::Synced(SyncOutcome {
            change: change.get(),
            report,
            duration: Duration::ZERO,
            latency: None,
            trigger_times: &[],
            no_local_endpoints: Default::default(),
            degraded_by_backend: &[],
            unsupported: Default::default(),
            refused: PerFamily { v4: refused, v6: 0 },
            is_part: false,
        }));
    }

    fn refuse(board: &StatusBoard, object: ObjectKey, message: &str) {
        let (field, message) = (String::new(), message.to_owned());
        let problem = Problem { object, field, message, reason: Reason::Refused };
        board.on_event(&EngineEvent::Rejected(&problem));
    }

    #[test]
    fn what_is_refused_is_a_problem_and_listed_once() {
        let board = StatusBoard::default();
        let [web, dns] = ["web", "dns"].map(|name| port_id(name, Protocol::Tcp));
        let mut report = SyncReport::default();
        for (port, reason) in [(&web, "line 17"), (&dns, "it is spread otherwise")] {
            report.degraded.push(DegradedPort { port: port.clone(), reason: reason.to_owned() });
        }
        let (namespace, name) = web.name.service.parts();
        let key = ObjectKey {
            kind: Kind::Service,
            namespace: namespace.to_string(),
            name: name.to_string(),
        };
        refuse(&board, key, "the node refuses the port http: line 17; it is left out");
        synced(&board, &report, 1);
        let inner = board.lock();
        let listed: Vec<NotAsAsked> = inner.not_as_asked();
        let what: Vec<&str> = listed.iter().map(|not| not.what.as_str()).collect();
        assert_eq!(what, [dns.to_string(), web.name.service.to_string()]);
        assert!(inner.left_out().is_some_and(|problem| problem.starts_with("one Service port is")));
        drop(inner);
        synced(&board, &SyncReport::default(), 0);
        let inner = board.lock();
        assert_eq!((inner.left_out(), inner.not_as_asked()), (None, vec![]));
    }

    #[test]
    fn a_program_that_changed_nothing_has_no_part_in_later_changes() {
        let board = StatusBoard::default();
        let synced = |report: &SyncReport| {
            synced(&board, report, 0);
            board.lock().last_drift.clone().and_then(|(_, drift)| drift.by)
        };
        let mut found = SyncReport::default();
        found.drift.found(|| "a chain".to_owned());
        let by = Some("nft (7)".to_owned());
        let disturbed = ExternalChange::Changed { by: by.clone() };
        board.on_event(&EngineEvent::ExternallyChanged(&disturbed));
        assert_eq!(synced(&found), by);
        board.on_event(&EngineEvent::ExternallyChanged(&disturbed));
        synced(&SyncReport::default());
        assert_eq!(synced(&found), None);
    }

    #[test]
    fn a_refused_service_that_is_gone_or_headless_is_forgotten() {
        let service = |name: &str, cluster_ip: &str| {
            let metadata =
                Metadata { name: name.into(), namespace: "shop".into(), ..Metadata::default() };
            let spec = ServiceSpec { cluster_ip: cluster_ip.to_owned(), ..ServiceSpec::default() };
            Object::from(Service { metadata, spec, ..Service::default() })
        };
        let keys = ["a", "b", "c", "d", "e", "f"].map(|name| service(name, "").key());
        let board = StatusBoard::default();
        for object in keys.clone() {
            refuse(&board, object, "");
        }
        for event in [
            Event::Delete(keys[0].clone()),
            Event::Apply(service("b", "None")),
            Event::Apply(service("c", "10.96.0.3")),
        ] {
            board.on_event(&EngineEvent::Received(&event));
        }
        assert!(board.lock().refused.keys().eq(&keys[2..]));
        let list = Event::Replace {
            kind: Kind::Service,
            objects: vec![service("c", "10.96.0.3"), service("e", "None")],
            malformed: vec![keys[3].clone()],
        };
        board.on_event(&EngineEvent::Received(&list));
        assert!(board.lock().refused.keys().eq(&keys[2..4]));
    }
}
