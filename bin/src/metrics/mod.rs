//! What Prometheus is told: kube-proxy's metrics under their names, and ours.
//!
//! The registry is this value's own; nothing is global. kube-proxy's metrics of other modes are
//! absent, as labelled metrics that were never used are. `docs/metrics.md` lists them all.

mod component;
mod exposition;
mod maker;
mod ours;
mod process;
mod reloads;
mod requests;
mod sli;
mod upstream;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use backend_iptables::Stats;
use jiff::Timestamp;
use prometheus::{Gauge, GaugeVec, IntCounterVec, IntGaugeVec, Registry};
use proxy_core::{
    model::IpFamily,
    objects::Kind,
    runner::SyncOutcome,
    state::{Delta, State},
    track::{Problem, Reason},
};

pub use self::{exposition::Exposition, requests::RequestMetrics};
use self::{
    maker::Maker,
    ours::OurMetrics,
    process::ProcessMetrics,
    reloads::ReloadMetrics,
    sli::SliMetrics,
    upstream::{ChangeMetrics, ConntrackMetrics, IptablesMetrics, NftablesMetrics, SyncMetrics},
};
use crate::config::settings::Mode;

pub use self::reloads::Reload;

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    families: Vec<IpFamily>,
    process: ProcessMetrics,
    sli: SliMetrics,
    /// `kubeproxy_proxy_healthz_total`
    pub healthz: IntCounterVec,
    /// `kubeproxy_proxy_livez_total`
    pub livez: IntCounterVec,
    /// `rest_client_*`
    pub requests: RequestMetrics,
    sync: SyncMetrics,
    changes: ChangeMetrics,
    nftables: Option<NftablesMetrics>,
    iptables: Option<(IptablesMetrics, OnceLock<Arc<Stats>>)>,
    conntrack: Option<ConntrackMetrics>,
    ours: OurMetrics,
    reloads: ReloadMetrics,
    /// `kubernetes_feature_enabled`
    gates: IntGaugeVec,
    /// How many Service ports there were when they were counted last.
    counted_ports: AtomicUsize,
    /// One at a time, since counters can only be added to.
    scraping: Mutex<()>,
}

impl Metrics {
    /// The metrics of a proxy in this mode for these families, in a registry of their own. The
    /// gates are those that a configuration names. It fails if two have the same name.
    pub fn new(
        mode: Mode,
        families: &[IpFamily],
        gates: &BTreeMap<String, bool>,
    ) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Maker::new(&registry);
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
            sync: SyncMetrics::new(&make, mode)?,
            changes: ChangeMetrics::new(&make, families.len())?,
            nftables: match mode {
                Mode::Nftables => Some(NftablesMetrics::new(&make)?),
                _ => None,
            },
            iptables: match mode {
                Mode::Iptables => Some((IptablesMetrics::new(&make)?, OnceLock::new())),
                _ => None,
            },
            conntrack: match mode {
                Mode::Userspace => None,
                _ => Some(ConntrackMetrics::new(&make)?),
            },
            ours: OurMetrics::new(&make)?,
            reloads: ReloadMetrics::new(&make)?,
            process: ProcessMetrics::new(&make)?,
            sli: SliMetrics::new()?,
            counted_ports: AtomicUsize::new(0),
            scraping: Mutex::default(),
            // The last, since it counts the others.
            gates: component::register(&make, gates)?,
            registry: registry.clone(),
        })
    }

    /// Has what the iptables backend counts told, too.
    pub fn count_rules(&self, stats: Arc<Stats>) {
        if let Some((_, known)) = &self.iptables {
            // There is only one backend.
            let _ = known.set(stats);
        }
    }

    /// All of them in this form, as of now.
    pub fn exposition(&self, form: Exposition) -> Vec<u8> {
        let _one_at_a_time = self.scraping.lock();
        self.process.refresh();
        if let Some((metrics, known)) = &self.iptables
            && let Some(stats) = known.get()
        {
            metrics.refresh(stats, &self.families);
        }
        form.of(&self.registry)
    }

    /// The metrics server was asked whether it is there.
    pub fn pinged(&self) {
        self.sli.pinged();
    }

    /// How often that was, in this form.
    pub fn slis(&self, form: Exposition) -> Vec<u8> {
        self.sli.exposition(form)
    }

    /// Forgets how often that was.
    pub fn reset_slis(&self) {
        self.sli.reset();
    }

    /// When the process started, in seconds since 1970.
    pub fn process_start(&self) -> Option<u64> {
        self.process.start()
    }

    /// The engine has started.
    pub fn started(&self) {
        self.set_times(&self.sync.last_queued);
    }

    /// An object was added, changed or removed.
    pub fn changed(&self, kind: Kind) {
        match kind {
            Kind::Service => self.changes.services.changed(),
            Kind::EndpointSlice => self.changes.endpoints.changed(),
            Kind::Node | Kind::ServiceCidr => {}
        }
    }

    /// An object, or a part of it, could not be used.
    pub fn rejected(&self, problem: &Problem) {
        let reason = match problem.reason {
            Reason::Malformed => "malformed",
            Reason::Invalid => "invalid",
            Reason::Conflict => "conflict",
        };
        self.ours.rejected.with_label_values(&[problem.object.kind.as_str(), reason]).inc();
    }

    /// There is something to sync.
    pub fn sync_requested(&self) {
        self.changes.services.requested();
        self.changes.endpoints.requested();
        self.set_times(&self.sync.last_queued);
    }

    /// A sync succeeded.
    pub fn synced(&self, outcome: &SyncOutcome<'_>) {
        self.observe_duration(outcome.delta, outcome.duration.as_secs_f64());
        self.set_times(&self.sync.last);
        self.changes.services.synced();
        self.changes.endpoints.synced();
        self.observe_trigger_times(outcome.delta, outcome.trigger_times, Timestamp::now());
        for &family in &self.families {
            let counts = outcome.no_local_endpoints.of(family);
            let set = |policy: &str, count: usize| {
                let gauge =
                    self.sync.no_local_endpoints.with_label_values(&[family.as_str(), policy]);
                gauge.set(clamped(count));
            };
            set("internal", counts.internal);
            set("external", counts.external);
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
        self.count_service_ports(outcome.state, outcome.delta);
    }

    /// Counts Service ports, unless there are as many as at the last sync: with thousands of them
    /// that would take longer than the sync of a change.
    fn count_service_ports(&self, state: &State, delta: &Delta) {
        let ports = &state.service_ports;
        let before = self.counted_ports.swap(ports.len(), Ordering::Relaxed);
        // If as many have come as have gone, those are among the changed ones, and missing.
        let gone = || delta.service_ports.iter().any(|id| !ports.contains_key(id));
        if delta.full || before != ports.len() || gone() {
            for family in &self.families {
                let count = ports.keys().filter(|id| id.family == *family).count();
                let gauge = self.ours.service_ports.with_label_values(&[family.as_str()]);
                gauge.set(clamped(count));
            }
        }
    }

    /// Another configuration switches these gates.
    pub fn set_gates(&self, gates: &BTreeMap<String, bool>) {
        component::set_gates(&self.gates, gates);
    }

    /// The configuration file's content changed.
    pub fn config_reloaded(&self, result: Reload) {
        self.reloads.reloaded(result);
    }

    /// A sync failed.
    pub fn sync_failed(&self, delta: &Delta, seconds: f64) {
        self.observe_duration(delta, seconds);
        if let Some(nftables) = &self.nftables {
            self.count_all(&nftables.failures);
        }
    }

    /// Counts something that happened to a transaction, which holds all families.
    fn count_all(&self, counters: &IntCounterVec) {
        for family in &self.families {
            counters.with_label_values(&[family.as_str()]).inc();
        }
    }

    /// How long ago the watches were heard from, those that were.
    pub fn watches_heard(&self, heard: impl Fn(Kind) -> Option<Duration>) {
        for kind in Kind::ALL {
            if let Some(age) = heard(kind) {
                let gauge = self.ours.watch_silence.with_label_values(&[kind.as_str()]);
                gauge.set(age.as_secs_f64());
            }
        }
    }

    /// Stale flows were looked for.
    pub fn flows_reconciled(&self, report: conntrack::Report) {
        let Some(conntrack) = &self.conntrack else { return };
        let labels = [report.family.as_str()];
        conntrack.duration.with_label_values(&labels).observe(report.duration.as_secs_f64());
        let deleted = report.deleted.try_into().unwrap_or(u64::MAX);
        conntrack.deleted.with_label_values(&labels).inc_by(deleted);
    }

    fn observe_duration(&self, delta: &Delta, seconds: f64) {
        for family in self.families_of(delta) {
            let labels = [family.as_str()];
            self.sync.duration.with_label_values(&labels).observe(seconds);
            if let Some(extent) = &self.sync.extent {
                let by_extent = if delta.full { &extent.full } else { &extent.partial };
                by_extent.with_label_values(&labels).observe(seconds);
            }
        }
    }

    /// How long ago the changes were made that are programmed now. Changes from before this process
    /// do not count: they waited for it to start.
    fn observe_trigger_times(&self, delta: &Delta, times: &[String], now: Timestamp) {
        let start = self.process.start().and_then(|start| i64::try_from(start).ok()).unwrap_or(0);
        for time in times.iter().filter_map(|text| text.parse::<Timestamp>().ok()) {
            if time.as_second() < start {
                continue;
            }
            let seconds = now.duration_since(time).as_secs_f64().max(0.0);
            for family in self.families_of(delta) {
                let labels = [family.as_str()];
                tracing::trace!(ipFamily = family.as_str(), seconds, "Network programming");
                self.sync.network_programming.with_label_values(&labels).observe(seconds);
            }
        }
    }

    fn set_times(&self, gauges: &GaugeVec) {
        let now = Timestamp::now().as_nanosecond() as f64 / 1e9;
        for family in &self.families {
            let gauge: Gauge = gauges.with_label_values(&[family.as_str()]);
            gauge.set(now);
        }
    }

    /// The families that a sync concerns.
    fn families_of<'a>(&'a self, delta: &'a Delta) -> impl Iterator<Item = IpFamily> + 'a {
        let all = delta.full || delta.node;
        let concerns =
            move |family| all || delta.service_ports.iter().any(|id| id.family == family);
        self.families.iter().copied().filter(move |family| concerns(*family))
    }
}

fn clamped(count: usize) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
impl Metrics {
    /// Metrics of the nftables mode, for both families.
    pub(crate) fn for_tests() -> Self {
        Self::new(Mode::Nftables, &IpFamily::ALL, &BTreeMap::new()).unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.exposition(Exposition::Text)).unwrap()
    }
}

#[cfg(test)]
mod tests;
