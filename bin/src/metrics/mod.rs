//! What Prometheus is told: kube-proxy's metrics under their names, and ours.
//!
//! The registry is this value's own; nothing is global. kube-proxy's metrics of other modes, and of
//! work that is not done here yet, are absent, as labelled metrics that were never used are.

mod maker;
mod process;
mod sli;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use jiff::Timestamp;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder, exponential_buckets,
};
use proxy_core::{
    model::IpFamily,
    objects::Kind,
    runner::SyncOutcome,
    state::{Delta, State},
};

use self::{
    maker::{FAMILY, Maker},
    process::ProcessMetrics,
    sli::SliMetrics,
};

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    process: ProcessMetrics,
    sli: SliMetrics,
    /// `kubeproxy_proxy_healthz_total`
    pub healthz: IntCounterVec,
    /// `kubeproxy_proxy_livez_total`
    pub livez: IntCounterVec,
    sync: SyncMetrics,
    changes: ChangeMetrics,
    conntrack: ConntrackMetrics,
    ours: OurMetrics,
}

/// kube-proxy's, about syncs.
struct SyncMetrics {
    duration: HistogramVec,
    full_duration: HistogramVec,
    partial_duration: HistogramVec,
    last: GaugeVec,
    last_queued: GaugeVec,
    network_programming: HistogramVec,
    no_local_endpoints: IntGaugeVec,
    nftables_failures: IntCounterVec,
    nftables_cleanup_failures: IntCounterVec,
}

/// kube-proxy's, about changes of objects.
struct ChangeMetrics {
    endpoints: Changes,
    services: Changes,
}

/// The changes of one kind of object.
struct Changes {
    total: IntCounter,
    pending: IntGauge,
    /// Changes of which it is not known yet whether they make a difference.
    arrived: AtomicU64,
}

/// kube-proxy's, about flows that were ended.
struct ConntrackMetrics {
    duration: HistogramVec,
    deleted: IntCounterVec,
}

/// Ours.
struct OurMetrics {
    commit: Histogram,
    latency: Histogram,
    bytes: Histogram,
    messages: Histogram,
    lock_wait: Histogram,
    rejected: IntCounterVec,
    service_ports: IntGaugeVec,
    watch_silence: GaugeVec,
}

/// 0.25 and 0.5 s, every second to a minute, every 5 s to two minutes, every 30 s to five.
fn network_programming_buckets() -> Vec<f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
}

impl SyncMetrics {
    fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let sync_buckets = exponential_buckets(0.001, 2.0, 15)?;
        let of_syncs = |name: &str, help: &str| make.histograms(name, help, sync_buckets.clone());
        Ok(Self {
            duration: of_syncs(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds",
            )?,
            full_duration: of_syncs(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for full resyncs",
            )?,
            partial_duration: of_syncs(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "SyncProxyRules latency in seconds for partial resyncs",
            )?,
            last: make.times(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "The last time proxy rules were successfully synced",
            )?,
            last_queued: make.times(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "The last time a sync of proxy rules was queued",
            )?,
            network_programming: make.histograms(
                "kubeproxy_network_programming_duration_seconds",
                "In Cluster Network Programming Latency in seconds",
                network_programming_buckets(),
            )?,
            no_local_endpoints: make.gauges(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Number of services with a Local traffic policy and no endpoints",
                &["ip_family", "traffic_policy"],
            )?,
            nftables_failures: make.counters(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "Cumulative proxy nftables sync failures",
                FAMILY,
            )?,
            nftables_cleanup_failures: make.counters(
                "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
                "Cumulative proxy nftables cleanup failures",
                FAMILY,
            )?,
        })
    }
}

impl Changes {
    fn new(make: &Maker<'_>, of: &str, what: &str) -> prometheus::Result<Self> {
        Ok(Self {
            total: make.counter(
                &format!("kubeproxy_sync_proxy_rules_{of}_changes_total"),
                &format!("Cumulative proxy rules {what} changes"),
            )?,
            pending: make.gauge(
                &format!("kubeproxy_sync_proxy_rules_{of}_changes_pending"),
                &format!("Pending proxy rules {what} changes"),
            )?,
            arrived: AtomicU64::new(0),
        })
    }

    fn changed(&self) {
        self.total.inc();
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }

    fn requested(&self) {
        let arrived = self.arrived.swap(0, Ordering::Relaxed);
        self.pending.add(arrived.try_into().unwrap_or(i64::MAX));
    }
}

impl ConntrackMetrics {
    fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            duration: make.histograms(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "ReconcileConntrackFlowsLatency latency in seconds",
                exponential_buckets(0.001, 2.0, 15)?,
            )?,
            deleted: make.counters(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Cumulative conntrack flows deleted by conntrack reconciler",
                FAMILY,
            )?,
        })
    }
}

impl OurMetrics {
    fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let sub_seconds = exponential_buckets(0.000_1, 2.0, 18)?;
        Ok(Self {
            commit: make.histogram(
                "switchyard_kernel_commit_duration_seconds",
                "Time that the kernel took to commit a transaction",
                sub_seconds.clone(),
            )?,
            latency: make.histogram(
                "switchyard_change_latency_seconds",
                "Time from the arrival of a change to its commit",
                sub_seconds,
            )?,
            bytes: make.histogram(
                "switchyard_transaction_bytes",
                "Size of the transactions that were committed",
                exponential_buckets(256.0, 4.0, 10)?,
            )?,
            messages: make.histogram(
                "switchyard_transaction_messages",
                "Messages in the transactions that were committed",
                exponential_buckets(1.0, 4.0, 10)?,
            )?,
            lock_wait: make.histogram(
                "switchyard_lock_wait_seconds",
                "Time a sync waited for the xtables lock, of those that did",
                exponential_buckets(0.001, 4.0, 8)?,
            )?,
            rejected: make.counters(
                "switchyard_objects_rejected_total",
                "Objects, or parts of objects, that could not be used",
                &["kind"],
            )?,
            service_ports: make.gauges(
                "switchyard_service_ports",
                "Service ports that are programmed",
                FAMILY,
            )?,
            watch_silence: make.register(GaugeVec::new(
                Opts::new(
                    "switchyard_watch_silence_seconds",
                    "Time since the API server last said something on a watch",
                ),
                &["kind"],
            )?)?,
        })
    }
}

impl Metrics {
    /// Metrics in a registry of their own. It fails if two have the same name.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Maker(&registry);
        let build = make.gauges(
            "switchyard_build_info",
            "The running program; its value is always 1",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Self {
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
            sync: SyncMetrics::new(&make)?,
            changes: ChangeMetrics {
                endpoints: Changes::new(&make, "endpoint", "Endpoint")?,
                services: Changes::new(&make, "service", "Service")?,
            },
            conntrack: ConntrackMetrics::new(&make)?,
            ours: OurMetrics::new(&make)?,
            process: ProcessMetrics::new(&make)?,
            sli: SliMetrics::new()?,
            registry,
        })
    }

    /// All of them in Prometheus' text format, as of now.
    pub fn text(&self) -> String {
        self.process.refresh();
        exposition(&self.registry)
    }

    /// The metrics server was asked whether it is there.
    pub fn pinged(&self) {
        self.sli.pinged();
    }

    /// How often that was, in Prometheus' text format.
    pub fn sli_text(&self) -> String {
        self.sli.text()
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
    pub fn rejected(&self, kind: Kind) {
        self.ours.rejected.with_label_values(&[kind.as_str()]).inc();
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
        self.changes.services.pending.set(0);
        self.changes.endpoints.pending.set(0);
        self.observe_trigger_times(outcome.delta, outcome.trigger_times, Timestamp::now());
        for family in IpFamily::ALL {
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
        if outcome.report.cleanup_failed {
            // A transaction holds both families.
            for family in IpFamily::ALL {
                self.sync.nftables_cleanup_failures.with_label_values(&[family.as_str()]).inc();
            }
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
        for (family, count) in IpFamily::ALL.into_iter().zip(ports_by_family(outcome.state)) {
            let gauge = self.ours.service_ports.with_label_values(&[family.as_str()]);
            gauge.set(clamped(count));
        }
    }

    /// A sync failed.
    pub fn sync_failed(&self, mode: &str, delta: &Delta, seconds: f64) {
        self.observe_duration(delta, seconds);
        if mode == "nftables" {
            // A transaction holds both families.
            for family in IpFamily::ALL {
                self.sync.nftables_failures.with_label_values(&[family.as_str()]).inc();
            }
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
        let labels = [report.family.as_str()];
        self.conntrack.duration.with_label_values(&labels).observe(report.duration.as_secs_f64());
        let deleted = report.deleted.try_into().unwrap_or(u64::MAX);
        self.conntrack.deleted.with_label_values(&labels).inc_by(deleted);
    }

    fn observe_duration(&self, delta: &Delta, seconds: f64) {
        let by_extent =
            if delta.full { &self.sync.full_duration } else { &self.sync.partial_duration };
        for family in families_of(delta) {
            let labels = [family.as_str()];
            self.sync.duration.with_label_values(&labels).observe(seconds);
            by_extent.with_label_values(&labels).observe(seconds);
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
            for family in families_of(delta) {
                let labels = [family.as_str()];
                self.sync.network_programming.with_label_values(&labels).observe(seconds);
            }
        }
    }

    fn set_times(&self, gauges: &GaugeVec) {
        let now = Timestamp::now().as_nanosecond() as f64 / 1e9;
        for family in IpFamily::ALL {
            let gauge: Gauge = gauges.with_label_values(&[family.as_str()]);
            gauge.set(now);
        }
    }
}

fn exposition(registry: &Registry) -> String {
    let mut text = Vec::new();
    if let Err(error) = TextEncoder::new().encode(&registry.gather(), &mut text) {
        tracing::error!(err = %error, "Failed to print the metrics");
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The families that a sync concerns.
fn families_of(delta: &Delta) -> impl Iterator<Item = IpFamily> {
    let all = delta.full || delta.node;
    IpFamily::ALL
        .into_iter()
        .filter(move |family| all || delta.service_ports.iter().any(|id| id.family == *family))
}

fn ports_by_family(state: &State) -> [usize; 2] {
    let v4 = state.service_ports.keys().filter(|id| id.family == IpFamily::V4).count();
    [v4, state.service_ports.len() - v4]
}

fn clamped(count: usize) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
