//! The answer to `switchyard top`: the node, its Services and what happened, at a moment.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use switchyard_core::{
    explain::{Known, Note},
    model::ServiceName,
    proxier::{Backend, Mode},
    state::ResolvedServicePort,
    track::Tracker,
};
use switchyard_userspace::forwarder::{Counted, Counters};
use tokio::sync::Mutex;

use super::{
    flows::FlowReader,
    history::{History, in_milliseconds},
    service_flows::{Counts, ServiceCounts, ServiceFlows},
};
use crate::{
    observability::{
        metrics::Metrics,
        status::{Status, StatusSources},
    },
    pace::Pace,
    printable::counted,
};

const MOST_EVENTS: usize = 20;

/// The answer, which `docs/top.schema.json` describes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// The time of the answer, RFC 3339.
    pub at: String,
    pub node: String,
    pub mode: String,
    /// The version of the program.
    pub version: String,
    /// The use of connection tracking; `None` if the kernel cannot be asked.
    pub conntrack: Option<TableUse>,
    /// The connections and flows that end at the proxy; `None` in the kernel's modes.
    pub proxied: Option<Proxied>,
    /// The time that changes take to the kernel; `None` if there was none yet.
    #[serde(default)]
    pub latency: Option<Latency>,
    /// The problems of this moment, in words.
    pub problems: Vec<String>,
    /// The events, the latest first.
    pub events: Vec<TopEvent>,
    /// All Services that are programmed or refused, by name.
    pub services: Vec<TopService>,
}

/// The use of connection tracking's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableUse {
    pub entries: u64,
    /// The limit of entries.
    pub limit: Option<u64>,
    /// Packets that were dropped for lack of an entry since the start of the node.
    pub dropped_packets: u64,
}

/// The counts of userspace mode, of all Services together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Proxied {
    /// The connections and flows that there are.
    pub active: u64,
    /// Those that endpoints took since the start of the program.
    pub taken: u64,
}

/// The time from when changes arrive until the kernel has them, over the syncs that are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    /// The median, in milliseconds.
    pub p50_milliseconds: f64,
    /// The 99th percentile, in milliseconds.
    pub p99_milliseconds: f64,
    pub syncs: usize,
}

impl Latency {
    /// Of these times, in milliseconds.
    fn of(mut times: Vec<f64>) -> Option<Self> {
        times.sort_unstable_by(f64::total_cmp);
        let at = |percent: usize| times.get((times.len() * percent).div_ceil(100).max(1) - 1);
        let (p50_milliseconds, p99_milliseconds) = (*at(50)?, *at(99)?);
        Some(Self { p50_milliseconds, p99_milliseconds, syncs: times.len() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopEvent {
    /// The time, RFC 3339.
    pub at: String,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopService {
    /// The Service, as `NAMESPACE/NAME`.
    pub service: String,
    /// The ports of its addresses: `80/tcp`.
    pub ports: Vec<String>,
    /// New connections a second; `None` if not measured.
    pub new_per_second: Option<f64>,
    /// The entries of connection tracking that lead to it; `None` if not measured.
    pub flows: Option<u64>,
    /// These in percent of all entries; `None` if not measured.
    pub share: Option<f64>,
    /// Connections whose endpoint acknowledges nothing; `None` if not measured.
    pub stuck: Option<u64>,
    /// The endpoints that get new connections, of the port that has the fewest.
    pub endpoints: usize,
    /// All endpoints of that port, used or not.
    pub all_endpoints: usize,
    /// The worst that is wrong with the Service.
    pub note: Option<TopNote>,
    /// The last change that is remembered.
    pub last_change: Option<Change>,
}

/// Something that is wrong with a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopNote {
    /// The code, whose page has more.
    pub code: String,
    pub text: String,
}

/// The last change of a Service's endpoints or ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The time, RFC 3339.
    pub at: String,
    /// Endpoints that were added; a large change is remembered in part.
    pub added: usize,
    /// Endpoints that were removed.
    pub removed: usize,
}

/// The parts of the program that the answer comes from.
pub struct TopSources {
    pub status: StatusSources,
    pub metrics: Arc<Metrics>,
    pub mode: Mode,
    /// The backend, whose tables a snapshot has.
    pub backend: Arc<dyn Backend>,
    /// The limit of snapshots of these tables.
    pub dumps: Pace,
    /// The counts of userspace mode.
    pub traffic: Arc<Counters>,
    /// The last walk over connection tracking.
    pub flows: ServiceFlows,
    /// The last line with an answer, and its time.
    pub last: Mutex<Option<(Instant, Arc<[u8]>)>>,
}

/// The programmed Service ports and the node, read on the engine's thread.
pub struct Programmed {
    /// The addresses of the node.
    addresses: Vec<IpAddr>,
    /// The ports, with the number of endpoints that slices have for each.
    ports: Vec<(Arc<ResolvedServicePort>, usize)>,
    /// The Services with ports that the node refuses, and the reason of one.
    refused: BTreeMap<ServiceName, String>,
}

impl Programmed {
    /// Shares the values of the state.
    pub fn of(known: &Tracker) -> Self {
        let before = known.transition().before();
        let ports = before.iter().flat_map(|before| before.ports()).cloned();
        let ports = ports.map(|port| (known.slice_endpoints(&port.id), port));
        let refused = known.refused_ports();
        Self {
            addresses: Known::node(known).addresses,
            ports: ports.map(|(all, port)| (port, all)).collect(),
            refused: refused
                .map(|(id, reason)| (id.name.service.clone(), reason.to_owned()))
                .collect(),
        }
    }
}

impl Top {
    /// Whether entries are counted, and only a second walk shows which are new.
    pub fn waits_for_rates(&self) -> bool {
        let is_counted = |one: &TopService| one.flows.is_some() && one.new_per_second.is_none();
        self.services.iter().any(is_counted)
    }

    /// Puts the answer together, with a walk over connection tracking unless the last one was a
    /// moment ago.
    pub fn new(
        programmed: Programmed,
        sources: &TopSources,
        history: &History,
        reader: &FlowReader,
    ) -> Self {
        let status = sources.status.now(sources.mode.as_str());
        let Programmed { addresses, ports, refused } = programmed;
        let mut services: BTreeMap<ServiceName, Vec<Arc<ResolvedServicePort>>> =
            refused.keys().map(|name| (name.clone(), Vec::new())).collect();
        // The used endpoints and all of the port that has the fewest.
        let mut endpoints = HashMap::<ServiceName, (usize, usize)>::new();
        for (port, all) in ports {
            let used = port.cluster.len().max(port.local.len());
            let fewest = endpoints.entry(port.id.name.service.clone()).or_insert((used, all));
            if used < fewest.0 {
                *fewest = (used, all);
            }
            services.entry(port.id.name.service.clone()).or_default().push(port);
        }
        let conntrack = status.conntrack.as_ref().map(|table| TableUse {
            entries: table.entries,
            limit: table.limit,
            dropped_packets: table.dropped_packets,
        });
        let is_userspace = sources.mode == Mode::USERSPACE;
        let proxied = is_userspace.then(|| Proxied {
            active: sources.traffic.active(),
            taken: [Counted::Tcp, Counted::Udp, Counted::Sctp]
                .map(|counted| sources.traffic.get(counted))
                .iter()
                .sum(),
        });
        // Nothing may track connections where no rule asks for that.
        let tracks = !is_userspace || conntrack.is_some_and(|table| table.entries > 0);
        let here: &[_] = if is_userspace { &addresses } else { &[] };
        let counts =
            if tracks { sources.flows.count(reader, &services, here) } else { Counts::default() };
        let mut changes = history.last_changes();
        let shown = services.iter().map(|(name, ports)| {
            let service = name.to_string();
            let counted = counts.of(name);
            let ServiceCounts { flows, stuck, new_per_second } = counted;
            let entries = conntrack.map(|table| table.entries.max(1) as f64);
            let share =
                flows.zip(entries).map(|(flows, all)| (100.0 * flows as f64 / all).min(100.0));
            let last_change = changes.remove(&service).map(|change| Change {
                at: change.at,
                added: change.added.len(),
                removed: change.removed.len(),
            });
            let (endpoints, all_endpoints) = endpoints.get(name).copied().unwrap_or_default();
            let refused = refused.get(name).map(String::as_str);
            let note = Note::of(ports, refused, stuck.unwrap_or(0));
            let note =
                note.map(|Note { code, text }| TopNote { code: code.as_str().to_owned(), text });
            let ports = numbers(ports);
            TopService {
                service,
                ports,
                new_per_second,
                flows,
                share,
                stuck,
                endpoints,
                all_endpoints,
                note,
                last_change,
            }
        });
        let services = shown.collect();
        let now = Timestamp::now();
        Self {
            at: in_milliseconds(now),
            node: status.node.clone(),
            mode: sources.mode.as_str().to_owned(),
            version: status.version.to_owned(),
            conntrack,
            proxied,
            latency: Latency::of(history.latencies()),
            problems: problems(&status),
            events: events(&status, history, now),
            services,
        }
    }
}

/// The ports of a Service's addresses, but for node ports, each once.
fn numbers(ports: &[Arc<ResolvedServicePort>]) -> Vec<String> {
    let numbers: BTreeSet<_> = ports
        .iter()
        .flat_map(|port| port.frontends.iter().map(|front| (front, port.id.name.protocol)))
        .filter(|(front, _)| front.at.ip().is_some())
        .map(|(front, protocol)| (front.port, protocol))
        .collect();
    numbers.into_iter().map(|(port, protocol)| format!("{port}/{}", protocol.as_lower())).collect()
}

fn problems(status: &Status) -> Vec<String> {
    let as_asked = status.not_as_asked.iter().map(|one| format!("{}: {}", one.what, one.because));
    status.problems.iter().cloned().chain(as_asked).take(MOST_EVENTS).collect()
}

/// Returns the events, the latest first.
fn events(status: &Status, history: &History, now: Timestamp) -> Vec<TopEvent> {
    let mut events: Vec<TopEvent> = history
        .changes(Duration::from_secs(u64::from(u32::MAX)), None)
        .syncs
        .into_iter()
        .rev()
        .take(MOST_EVENTS)
        .map(|sync| TopEvent { text: sync.to_string(), at: sync.at })
        .collect();
    if let Some(drift) = &status.last_drift {
        let ago = SignedDuration::from_secs(i64::try_from(drift.seconds_ago).unwrap_or(i64::MAX));
        let at = in_milliseconds(now.checked_sub(ago).unwrap_or(Timestamp::MIN));
        let by = drift.by.as_deref().unwrap_or("another program");
        let were = if drift.objects == 1 { "was" } else { "were" };
        let objects = counted(drift.objects, "object");
        let text = format!("{by} changed the rules; {objects} {were} repaired");
        let place = events.partition_point(|event| event.at > at);
        events.insert(place, TopEvent { at, text });
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let of = |times: &[f64]| {
            let found = Latency::of(times.to_vec())?;
            Some((found.p50_milliseconds, found.p99_milliseconds))
        };
        assert_eq!((of(&[]), of(&[3.0])), (None, Some((3.0, 3.0))));
        assert_eq!(of(&[9.0, 1.0, 2.0, 3.0]), Some((2.0, 9.0)));
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(of(&hundred), Some((50.0, 99.0)));
    }
}
