//! The last syncs, with what they changed.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use switchyard_core::{
    error::ErrorChain,
    explain::{Explanation, LastChange, Printable},
    model::{IpFamily, ServicePortId, ServicePortName},
    runner::{EngineEvent, Observer},
    state::{Endpoint, ResolvedServicePort},
    track::TriggerTime,
    transition::PortChange,
};

use super::service_of;

const MOST_SYNCS: usize = 1000;
/// The most Service ports that are remembered of a sync, and endpoints of a port.
const MOST_OF_SYNC: usize = 8;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sync {
    /// The time of its end, RFC 3339.
    pub at: String,
    /// The time that it took, in milliseconds.
    pub milliseconds: f64,
    /// The time since its oldest change arrived, in milliseconds; `None` if it had none.
    pub latency_milliseconds: Option<f64>,
    /// The reason why it failed.
    pub error: Option<String>,
    /// Whether it is the first of the process, which changes what an earlier process left.
    #[serde(default)]
    pub is_first: bool,
    /// The number of Service ports that it changed.
    pub changed: usize,
    pub ports: Vec<ChangedPort>,
}

/// The events of `top` have a sync as one line.
impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.error {
            return write!(f, "a sync failed: {}", Printable(error));
        }
        if self.is_first {
            return write!(f, "the proxy began with {} Service ports", self.changed);
        }
        for (index, ChangedPort { port, added, removed, .. }) in self.ports.iter().enumerate() {
            f.write_str(if index > 0 { "; " } else { "" })?;
            write!(f, "{}", Printable(port))?;
            added.iter().try_for_each(|address| write!(f, " +{address}"))?;
            removed.iter().try_for_each(|address| write!(f, " -{address}"))?;
        }
        match self.changed.saturating_sub(self.ports.len()) {
            0 => Ok(()),
            more => write!(f, "; and {more} more Service ports"),
        }
    }
}

/// A Service port that a sync changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangedPort {
    /// The Service, as `NAMESPACE/NAME`.
    #[serde(default)]
    pub service: String,
    pub port: String,
    /// Endpoints that were added, not more than a few.
    pub added: Vec<SocketAddr>,
    /// Endpoints that were removed, not more than a few.
    pub removed: Vec<SocketAddr>,
    /// The time since the oldest change of pods in it, in milliseconds, by the EndpointSlices.
    #[serde(default)]
    pub trigger_milliseconds: Option<f64>,
}

/// The changes of a time, which print as text.
#[derive(Debug)]
pub struct Changes {
    /// The syncs, the oldest first.
    pub syncs: Vec<Sync>,
    /// Whether there may have been more before.
    is_cut: bool,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_cut {
            writeln!(f, "Earlier changes are not remembered.")?;
        }
        if self.syncs.is_empty() {
            writeln!(f, "Nothing has changed.")?;
        }
        for sync in &self.syncs {
            match (&sync.error, sync.latency_milliseconds) {
                (None, _) if sync.is_first => writeln!(f, "{}  the proxy began", sync.at)?,
                (Some(error), _) => writeln!(f, "{}  failed: {}", sync.at, Printable(error))?,
                (None, Some(latency)) => {
                    writeln!(f, "{}  in the kernel after {latency:.1} ms", sync.at)?
                }
                (None, None) => writeln!(f, "{}  in the kernel", sync.at)?,
            }
            if sync.is_first {
                continue;
            }
            for ChangedPort { port, added, removed, .. } in &sync.ports {
                let added = added.iter().map(|address| format!(" +{address}"));
                let all = added.chain(removed.iter().map(|address| format!(" -{address}")));
                writeln!(f, "    {}{}", Printable(port), all.collect::<String>())?;
            }
            if sync.changed > sync.ports.len() {
                writeln!(f, "    and {} more Service ports", sync.changed - sync.ports.len())?;
            }
        }
        Ok(())
    }
}

/// Remembers the last syncs of an engine, in bounded memory.
#[derive(Debug, Default)]
pub struct History(Mutex<VecDeque<Sync>>);

impl History {
    /// The syncs, the oldest first.
    pub fn syncs(&self) -> Vec<Sync> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// The times of syncs since their oldest change arrived, in milliseconds, but for that of the
    /// first.
    pub fn latencies(&self) -> Vec<f64> {
        let syncs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let later = syncs.iter().filter(|sync| !sync.is_first);
        later.filter_map(|sync| sync.latency_milliseconds).collect()
    }

    /// Returns the time of the last sync and the reason of its failure, if it failed.
    pub fn failure(&self) -> Option<(String, String)> {
        let syncs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = syncs.back()?;
        Some((last.at.clone(), last.error.clone()?))
    }

    /// Whether a sync has ended, or failed, at this time or later.
    pub fn has_synced_since(&self, time: Timestamp) -> bool {
        let syncs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_since = |at: Timestamp| at.as_millisecond() >= time.as_millisecond();
        syncs.back().is_some_and(|last| last.at.parse().is_ok_and(is_since))
    }

    /// Returns the last change of this Service, as [`last_changes`](Self::last_changes) has it.
    pub fn last_change(&self, service: Option<&str>) -> Option<LastChange> {
        self.last_changes().remove(service?)
    }

    /// Shows how long ago endpoints of an answer began or ceased to get new connections, as far as
    /// the last sync that changed each is remembered.
    pub fn show_ages(&self, answer: &mut Explanation, now: Timestamp) {
        let Some(name) = service_of(answer) else { return };
        let service = name.to_string();
        let mut ages = HashMap::<(String, SocketAddr), Option<(bool, u64)>>::new();
        let syncs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = syncs.iter().rev().filter(|sync| sync.error.is_none());
        for sync in known.take_while(|sync| !sync.is_first) {
            let at = sync.at.parse().ok();
            let age = at.and_then(|at| u64::try_from(now.duration_since(at).as_secs()).ok());
            for port in sync.ports.iter().filter(|port| port.service == service) {
                for (addresses, is_used) in [(&port.added, true), (&port.removed, false)] {
                    for address in addresses {
                        let key = (port.port.clone(), *address);
                        ages.entry(key).or_insert(age.map(|age| (is_used, age)));
                    }
                }
            }
            // Others of its endpoints or ports may have changed.
            let is_cut = |port: &ChangedPort| {
                port.added.len().max(port.removed.len()) >= MOST_OF_SYNC && port.service == service
            };
            if sync.changed > sync.ports.len() || sync.ports.iter().any(is_cut) {
                break;
            }
        }
        for line in &mut answer.endpoints {
            let name = ServicePortName {
                service: name.clone(),
                port: line.port_name.clone(),
                protocol: line.protocol,
            };
            let id = ServicePortId { name, family: IpFamily::of(&line.address.ip()) };
            let age = ages.get(&(id.to_string(), line.address)).copied().flatten();
            let (_, age) = age.filter(|(is_used, _)| *is_used == line.state.is_used()).unzip();
            line.state_seconds = age;
        }
    }

    /// Returns the last change of each Service since the proxy began, unless a later sync changed
    /// more ports than are remembered, which may have been those of the Service.
    pub fn last_changes(&self) -> HashMap<String, LastChange> {
        let mut changes = HashMap::<String, LastChange>::new();
        let syncs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for sync in syncs.iter().rev().filter(|sync| sync.error.is_none() && !sync.is_first) {
            let is_older = |change: &LastChange| change.at != sync.at;
            for port in &sync.ports {
                if changes.get(&port.service).is_some_and(is_older) {
                    continue;
                }
                let change = changes.entry(port.service.clone()).or_insert_with(|| LastChange {
                    at: sync.at.clone(),
                    latency_milliseconds: sync.latency_milliseconds,
                    trigger_milliseconds: port.trigger_milliseconds,
                    added: Vec::new(),
                    removed: Vec::new(),
                });
                change.trigger_milliseconds =
                    change.trigger_milliseconds.or(port.trigger_milliseconds);
                change.added.extend(&port.added);
                change.removed.extend(&port.removed);
            }
            if sync.changed > sync.ports.len() {
                break;
            }
        }
        changes
    }

    /// Returns the syncs of this time that changed something of the Service, or anything; those of
    /// which some changes are not remembered, too.
    pub fn changes(&self, age: Duration, service: Option<&str>) -> Changes {
        let since = Timestamp::now().checked_sub(age).unwrap_or(Timestamp::MIN);
        let syncs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begin =
            syncs.partition_point(|sync| sync.at.parse().is_ok_and(|at: Timestamp| at < since));
        let is_meant = |sync: &&Sync| match service {
            None => sync.changed > 0 || sync.error.is_some(),
            Some(service) => {
                sync.changed > sync.ports.len()
                    || sync.ports.iter().any(|port| port.service == service)
            }
        };
        Changes {
            is_cut: begin == 0 && syncs.len() == MOST_SYNCS,
            syncs: syncs.range(begin..).filter(is_meant).cloned().collect(),
        }
    }

    pub(super) fn add(&self, sync: Sync) {
        let mut syncs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if syncs.len() >= MOST_SYNCS {
            syncs.pop_front();
        }
        syncs.push_back(sync);
    }
}

impl Observer for History {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let now = Timestamp::now();
        let (change, duration, latency, triggers, error) = match event {
            EngineEvent::Synced(outcome) => {
                let triggers = outcome.trigger_times;
                (&outcome.change, outcome.duration, outcome.latency, triggers, None)
            }
            EngineEvent::SyncFailed { error, change, duration } => {
                (change, *duration, None, &[][..], Some(ErrorChain(*error).to_string()))
            }
            _ => return,
        };
        let mut ports = change.ports().filter(is_changed);
        let remembered: Vec<_> = ports
            .by_ref()
            .take(MOST_OF_SYNC)
            .map(|port| changed_port(&port, triggers, now))
            .collect();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
        self.add(Sync {
            at: in_milliseconds(now),
            milliseconds: milliseconds(duration),
            latency_milliseconds: latency.map(milliseconds),
            error,
            is_first: change.before().is_none(),
            changed: remembered.len() + ports.count(),
            ports: remembered,
        });
    }
}

/// Returns a time as RFC 3339 has it, to the millisecond.
pub(super) fn in_milliseconds(time: Timestamp) -> String {
    format!("{time:.3}")
}

/// Whether a port differs. A resync shows all ports, most of which are the same value.
pub(super) fn is_changed(port: &PortChange<'_>) -> bool {
    match (port.before, port.after) {
        (Some(before), Some(after)) => !Arc::ptr_eq(before, after) && before != after,
        (before, after) => before.is_some() || after.is_some(),
    }
}

fn changed_port(change: &PortChange<'_>, triggers: &[TriggerTime], now: Timestamp) -> ChangedPort {
    let is_of_port = |trigger: &&TriggerTime| {
        trigger.service == change.id.name.service && trigger.family == change.id.family
    };
    let of_port = triggers.iter().filter(is_of_port);
    let oldest = of_port.filter_map(|trigger| trigger.time.parse::<Timestamp>().ok()).min();
    let trigger_milliseconds =
        oldest.map(|at| (now.duration_since(at).as_secs_f64() * 1000.0).max(0.0));
    let endpoints = |port: Option<&Arc<ResolvedServicePort>>| -> Vec<SocketAddr> {
        let address = |endpoint: &Endpoint| endpoint.address;
        port.into_iter().flat_map(|port| port.reachable()).map(address).collect()
    };
    let (before, after) = (endpoints(change.before), endpoints(change.after));
    let without = |all: &[SocketAddr], others: &[SocketAddr]| {
        let missing = all.iter().filter(|address| others.binary_search(address).is_err());
        missing.take(MOST_OF_SYNC).copied().collect()
    };
    ChangedPort {
        service: change.id.name.service.to_string(),
        port: change.id.to_string(),
        added: without(&after, &before),
        removed: without(&before, &after),
        trigger_milliseconds,
    }
}
