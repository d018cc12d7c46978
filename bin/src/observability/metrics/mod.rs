//! The metrics for Prometheus: the metrics of kube-proxy, under the same names, and our own.
//!
//! [`Metrics`] has a registry of its own; nothing is global. The metrics of other modes are absent,
//! and so are labelled metrics without a value. `docs/metrics.md` lists all metrics.

mod component;
mod conntrack;
mod maker;
mod ours;
mod process;
mod reloads;
mod requests;
mod sli;
mod upstream;
mod userspace;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use prometheus::{Gauge, GaugeVec, IntCounterVec, IntGaugeVec, Registry, TextEncoder};
use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, ServiceName},
    objects::{Event, Kind},
    proxier::{Mode, ProxierError},
    runner::{EngineEvent, Observer, SyncOutcome},
    track::{Problem, TriggerTime},
    transition::Transition,
};
use switchyard_userspace::forwarder::Counters;

use super::{conntrack::Shares, status::StatusSources};
use crate::objects::ClientState;

use self::{
    component::BuildMetric,
    conntrack::TableMetrics,
    maker::{Maker, set},
    ours::OurMetrics,
    process::ProcessMetrics,
    reloads::ReloadMetrics,
    sli::SliMetrics,
    upstream::{
        ChangeMetrics, ConntrackMetrics, ExtentMetrics, IptablesMetrics, NftablesMetrics,
        SyncMetrics,
    },
    userspace::UserspaceMetrics,
};
pub use self::{reloads::Reload, requests::RequestMetrics};

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    families: Vec<IpFamily>,
    pub process: ProcessMetrics,
    /// The metrics of this program's own health checks.
    pub sli: SliMetrics,
    /// `kubeproxy_proxy_healthz_total`
    pub healthz: IntCounterVec,
    /// `kubeproxy_proxy_livez_total`
    pub livez: IntCounterVec,
    /// `rest_client_*`
    pub requests: RequestMetrics,
    sync: SyncMetrics,
    extent: Option<ExtentMetrics>,
    changes: ChangeMetrics,
    nftables: Option<NftablesMetrics>,
    iptables: Option<IptablesMetrics>,
    conntrack: Option<ConntrackMetrics>,
    pub table: TableMetrics,
    userspace: Option<UserspaceMetrics>,
    ours: OurMetrics,
    pub reloads: ReloadMetrics,
    pub build: BuildMetric,
    /// `kubernetes_feature_enabled`
    gates: IntGaugeVec,
    /// The number of Service ports at the last count.
    counted_ports: AtomicUsize,
    /// Serializes scrapes, since each scrape adds the difference to counters.
    scraping: Mutex<()>,
}

impl Observer for Metrics {
    fn on_event(&self, event: &EngineEvent<'_>) {
        match event {
            EngineEvent::Received(Event::Apply(object)) => self.changed(object.key().kind),
            EngineEvent::Received(Event::Delete(key)) => self.changed(key.kind),
            EngineEvent::Received(Event::Replace { kind, objects, .. }) => {
                objects.iter().for_each(|_| self.changed(*kind));
            }
            EngineEvent::Rejected(problem) => self.rejected(problem),
            EngineEvent::SyncRequested => self.sync_requested(),
            EngineEvent::LeftOut(error) => self.left_out(error),
            EngineEvent::Synced(outcome) => self.synced(outcome),
            EngineEvent::SyncFailed { error, change, duration } => {
                self.sync_failed(error, change, duration.as_secs_f64());
            }
            _ => {}
        }
    }
}

impl Metrics {
    /// Returns the metrics of a proxy in this mode for these families, in a new registry. `gates`
    /// are the feature gates that a configuration names, `release` is the release of Kubernetes to
    /// report, `traffic` are the counters of userspace mode. Returns an error if two metrics have the
    /// same name.
    pub fn new(
        mode: Mode,
        families: &[IpFamily],
        gates: &BTreeMap<String, bool>,
        release: &str,
        traffic: &Arc<Counters>,
    ) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Maker::new(&registry);
        let make_in = |modes: &[Mode]| modes.contains(&mode).then_some(&make);
        let nftables = make_in(&[Mode::NFTABLES]).map(NftablesMetrics::new).transpose()?;
        ours::register_build(&make)?;
        let build = BuildMetric::new(&make)?;
        build.set(release);
        Ok(Self {
            families: families.to_vec(),
            healthz: make.counters(
                "kubeproxy_proxy_healthz_total",
                "Cumulative proxy healthz HTTP status",
                &["code"],
            )?,
            livez: make.counters(
                "kubeproxy_proxy_livez_total",
                "Cumulative proxy livez HTTP status",
                &["code"],
            )?,
            requests: RequestMetrics::new(&make)?,
            sync: SyncMetrics::new(&make)?,
            extent: make_in(&[Mode::NFTABLES, Mode::IPTABLES])
                .map(ExtentMetrics::new)
                .transpose()?,
            changes: ChangeMetrics::new(&make, families.len())?,
            nftables: nftables.map(|nftables| nftables.with_series(families)),
            iptables: make_in(&[Mode::IPTABLES]).map(IptablesMetrics::new).transpose()?,
            conntrack: make_in(&[Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS])
                .map(ConntrackMetrics::new)
                .transpose()?,
            userspace: make_in(&[Mode::USERSPACE])
                .map(|make| UserspaceMetrics::new(make, Arc::clone(traffic)))
                .transpose()?,
            table: TableMetrics::new(&make)?,
            ours: OurMetrics::new(&make)?,
            reloads: ReloadMetrics::new(&make)?,
            process: ProcessMetrics::new(&make)?,
            sli: SliMetrics::new()?,
            counted_ports: AtomicUsize::new(0),
            scraping: Mutex::default(),
            build,
            // This comes last, since it counts the other metrics.
            gates: component::register(&make, gates)?,
            registry: registry.clone(),
        })
    }

    /// Returns all metrics of this moment in Prometheus' text format, version 0.0.4.
    pub fn text(&self) -> String {
        let _one_at_a_time = self.scraping.lock();
        self.process.refresh();
        self.table.refresh();
        if let Some(userspace) = &self.userspace {
            userspace.refresh();
        }
        text(&self.registry)
    }

    /// Returns the same with the state of the watches, and of a client with objects.
    pub fn exposition(&self, status: &StatusSources) -> String {
        self.watches_are_silent(|kind| status.watches.silent(kind));
        status.client.state().into_iter().for_each(|client| self.client_is(client));
        self.text()
    }

    /// Records the start of the engine.
    pub fn started(&self) {
        self.set_times(&self.sync.last_queued, |_| true);
    }

    /// Counts an object that was added, changed or removed.
    fn changed(&self, kind: Kind) {
        match kind {
            Kind::Service => self.changes.services.changed(),
            Kind::EndpointSlice => self.changes.endpoints.changed(),
            Kind::Node | Kind::ServiceCidr => {}
        }
    }

    /// Counts an object that was rejected, in whole or in part.
    fn rejected(&self, problem: &Problem) {
        let labels = [problem.object.kind.as_str(), problem.reason.as_str()];
        self.ours.rejected.with_label_values(&labels).inc();
    }

    fn sync_requested(&self) {
        self.changes.services.requested();
        self.changes.endpoints.requested();
        self.set_times(&self.sync.last_queued, |_| true);
    }

    fn synced(&self, outcome: &SyncOutcome<'_>) {
        self.observe_duration(&outcome.change, outcome.duration.as_secs_f64());
        self.set_times(&self.sync.last, |family| outcome.change.programs(family));
        // The objects of a list arrive together, and are pending until the list is synced whole.
        if !outcome.is_part {
            self.changes.services.synced();
            self.changes.endpoints.synced();
        }
        self.observe_trigger_times(&outcome.change, outcome.trigger_times, Timestamp::now());
        for &family in &self.families {
            let counts = outcome.no_local_endpoints.get(family);
            let (name, no_local) = (family.as_str(), &self.sync.no_local_endpoints);
            set(no_local, &[name, "internal"], counts.internal);
            set(no_local, &[name, "external"], counts.external);
            set(&self.ours.unsupported, &[name], *outcome.unsupported.get(family));
            set(&self.ours.refused, &[name], *outcome.refused.get(family));
        }
        self.observe_report(outcome);
    }

    fn observe_report(&self, outcome: &SyncOutcome<'_>) {
        if outcome.report.cleanup_failed
            && let Some(nftables) = &self.nftables
        {
            self.count_all(&nftables.cleanup_failures);
        }
        let drift = &outcome.report.drift;
        if !drift.is_none() {
            self.ours.drift_repairs.inc();
            self.ours.drift_objects.inc_by(drift.objects.try_into().unwrap_or(u64::MAX));
        }
        if let Some(latency) = outcome.latency {
            self.ours.latency.observe(latency.as_secs_f64());
        }
        if outcome.report.bytes > 0 {
            self.ours.commit.observe(outcome.report.commit.as_secs_f64());
            self.ours.bytes.observe(outcome.report.bytes as f64);
            self.ours.messages.observe(outcome.report.messages as f64);
        }
        if !outcome.report.waited.is_zero() {
            self.ours.lock_wait.observe(outcome.report.waited.as_secs_f64());
        }
        if let Some(iptables) = &self.iptables {
            iptables.set_rules(&outcome.report.rules);
            iptables.count_refused(&outcome.report.refused);
        }
        self.count_service_ports(&outcome.change);
    }

    /// Counts the Service ports of each family, unless their number is the same as at the last
    /// sync, since counting thousands would take longer than the sync of a change.
    fn count_service_ports(&self, change: &Transition<'_>) {
        let ports = &change.after().service_ports;
        let before = self.counted_ports.swap(ports.len(), Ordering::Relaxed);
        // If as many were added as removed, the removed ports are among the changed ports.
        let gone = || change.ports().any(|port| port.after.is_none());
        if change.is_resync() || before != ports.len() || gone() {
            for family in &self.families {
                let count = ports.keys().filter(|id| id.family == *family).count();
                set(&self.ours.service_ports, &[family.as_str()], count);
            }
        }
    }

    /// Sets the configured values of the feature gates.
    pub fn set_gates(&self, gates: &BTreeMap<String, bool>) {
        component::set_gates(&self.gates, gates);
    }

    fn sync_failed(&self, error: &ProxierError, change: &Transition<'_>, seconds: f64) {
        self.observe_duration(change, seconds);
        if let Some(iptables) = &self.iptables {
            iptables.count_refused(error.refused());
        }
        if let Some(nftables) = &self.nftables {
            self.count_all(&nftables.failures);
        }
    }

    /// Records that the kernel refused parts of a sync.
    fn left_out(&self, error: &ProxierError) {
        if let Some(iptables) = &self.iptables {
            iptables.count_refused(error.refused());
        }
        let Some((nftables, parts)) = self.nftables.as_ref().zip(error.refused_parts()) else {
            return;
        };
        for family in IpFamily::ALL {
            let has_port = || parts.ports.iter().any(|refused| refused.port.family == family);
            if parts.families.get(family).is_some() || has_port() {
                nftables.failures.with_label_values(&[family.as_str()]).inc();
            }
        }
    }

    /// Adds one to the counter of every family, for an event of a transaction, which has all
    /// families.
    fn count_all(&self, counters: &IntCounterVec) {
        for family in &self.families {
            counters.with_label_values(&[family.as_str()]).inc();
        }
    }

    /// Sets how long each watch has been silent. A watch that is absent has no series.
    fn watches_are_silent(&self, silent: impl Fn(Kind) -> Option<Duration>) {
        let gauges = &self.ours.watch_silence;
        for kind in Kind::ALL {
            let labels = [kind.as_str()];
            match silent(kind) {
                Some(age) => gauges.with_label_values(&labels).set(age.as_secs_f64()),
                // An error if there is none.
                None => drop(gauges.remove_label_values(&labels)),
            }
        }
    }

    /// Sets the state of the client of `--objects-socket`.
    pub fn client_is(&self, client: ClientState) {
        let ClientState { is_connected, is_synced, seconds_silent } = client;
        for (state, is) in [("connected", is_connected), ("synced", is_synced)] {
            self.ours.client.with_label_values(&[state]).set(is.into());
        }
        self.ours.client_silence.with_label_values::<&str>(&[]).set(seconds_silent as i64);
    }

    /// Records how many sockets serve node ports on `[::1]`, and counts attempts to open one that
    /// failed.
    pub fn localhost_listeners(&self, open: usize, failures: u64) {
        let Some(nftables) = &self.nftables else { return };
        let labels = [IpFamily::V6.as_str()];
        set(&nftables.localhost_listeners, &labels, open);
        nftables.localhost_failures.with_label_values(&labels).inc_by(failures);
    }

    /// Records a sweep for stale flows.
    pub fn flows_reconciled(&self, report: switchyard::conntrack::Report) {
        let Some(conntrack) = &self.conntrack else { return };
        let labels = [report.family.as_str()];
        conntrack.duration.with_label_values(&labels).observe(report.duration.as_secs_f64());
        let deleted = report.deleted.try_into().unwrap_or(u64::MAX);
        conntrack.deleted.with_label_values(&labels).inc_by(deleted);
    }

    /// Records which Services fill connection tracking's table; `None` if that is not known now.
    pub fn table_shares(&self, shares: Option<&Shares<ServiceName>>) {
        let _one_at_a_time = self.scraping.lock();
        self.table.set_shares(shares);
    }

    fn observe_duration(&self, change: &Transition<'_>, seconds: f64) {
        for family in self.families_of(change) {
            let labels = [family.as_str()];
            self.sync.duration.with_label_values(&labels).observe(seconds);
            if let Some(extent) = &self.extent {
                let by_extent = match change.is_resync() {
                    // Some take as long as the one and some as the other.
                    true if change.is_repair() => continue,
                    true => &extent.full,
                    false => &extent.partial,
                };
                by_extent.with_label_values(&labels).observe(seconds);
            }
        }
    }

    /// Records the age of the changes that a sync has programmed. Changes from before the start of
    /// this process do not count, since they waited for the start.
    fn observe_trigger_times(
        &self,
        change: &Transition<'_>,
        triggers: &[TriggerTime],
        now: Timestamp,
    ) {
        let start = self.process.start().and_then(|start| i64::try_from(start).ok()).unwrap_or(0);
        let families = self.families_of(change);
        for TriggerTime { family, time, .. } in triggers {
            let time = time.parse::<Timestamp>().ok().filter(|time| time.as_second() >= start);
            let Some(time) = time.filter(|_| families.contains(family)) else { continue };
            let seconds = now.duration_since(time).as_secs_f64().max(0.0);
            let labels = [family.as_str()];
            tracing::trace!(ipFamily = family.as_str(), seconds, "Network programming");
            self.sync.network_programming.with_label_values(&labels).observe(seconds);
        }
    }

    fn set_times(&self, gauges: &GaugeVec, concerns: impl Fn(IpFamily) -> bool) {
        let now = Timestamp::now().as_nanosecond() as f64 / 1e9;
        for family in self.families.iter().filter(|family| concerns(**family)) {
            let gauge: Gauge = gauges.with_label_values(&[family.as_str()]);
            gauge.set(now);
        }
    }

    /// Returns the families that a sync programs, and concerns.
    fn families_of(&self, change: &Transition<'_>) -> Vec<IpFamily> {
        let all = change.is_resync() || change.node_changed();
        let concerns = |family| {
            change.programs(family) && (all || change.ports().any(|port| port.id.family == family))
        };
        self.families.iter().copied().filter(|family| concerns(*family)).collect()
    }
}

/// Returns the metrics of the registry as text.
fn text(registry: &Registry) -> String {
    let mut text = String::new();
    if let Err(error) = TextEncoder::new().encode_utf8(&registry.gather(), &mut text) {
        tracing::error!(err = %ErrorChain(&error), "Failed to print the metrics");
    }
    text
}

#[cfg(test)]
use crate::config::release::KUBERNETES;

#[cfg(test)]
impl Metrics {
    /// Returns metrics of the nftables mode for both families.
    pub(crate) fn for_tests() -> Self {
        Self::new(Mode::NFTABLES, &IpFamily::ALL, &BTreeMap::new(), KUBERNETES, &Arc::default())
            .unwrap()
    }
}

#[cfg(test)]
pub(crate) mod tests;
