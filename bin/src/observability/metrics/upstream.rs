//! The metrics of kube-proxy, under the same names, as each mode of kube-proxy registers them.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::{IntCounter, IntGauge, exponential_buckets};
use switchyard_core::{
    model::{IpFamily, Protocol},
    proxier::{RefusedAttempt, RuleCount},
};

use super::maker::{FAMILY, Maker, metrics, set};

/// The buckets of sync durations, from 1 ms to 16.384 s.
fn sync_buckets() -> prometheus::Result<Vec<f64>> {
    exponential_buckets(0.001, 2.0, 15)
}

/// The buckets of network programming: 0.25 and 0.5 s, every second to a minute, every 5 s to two
/// minutes, every 30 s to five.
pub(super) fn network_programming_buckets() -> Vec<f64> {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
}

metrics! {
    /// The metrics of syncs, in any mode.
    SyncMetrics {
        duration: histograms("kubeproxy_sync_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds", sync_buckets()?, FAMILY),
        last: seconds("kubeproxy_sync_proxy_rules_last_timestamp_seconds",
            "The last time proxy rules were successfully synced", FAMILY),
        last_queued: seconds("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
            "The last time a sync of proxy rules was queued", FAMILY),
        network_programming: histograms("kubeproxy_network_programming_duration_seconds",
            "In Cluster Network Programming Latency in seconds", network_programming_buckets(), FAMILY),
        no_local_endpoints: gauges("kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Number of services with a Local traffic policy and no endpoints",
            &["ip_family", "traffic_policy"]),
    }
}

metrics! {
    /// The metrics of full and partial syncs, in modes that have both.
    ExtentMetrics {
        full: histograms("kubeproxy_sync_full_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds for full resyncs", sync_buckets()?, FAMILY),
        partial: histograms("kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds for partial resyncs", sync_buckets()?, FAMILY),
    }
}

/// The metrics of changes of objects.
pub(super) struct ChangeMetrics {
    pub(super) endpoints: Changes,
    pub(super) services: Changes,
}

/// The metrics of changes of a kind of object.
pub(super) struct Changes {
    total: IntCounter,
    pending: IntGauge,
    /// The number of times that each change is counted.
    times: u64,
    /// The number of changes that have not led to a request for a sync yet.
    arrived: AtomicU64,
}

impl ChangeMetrics {
    pub(super) fn new(make: &Maker<'_>, families: usize) -> prometheus::Result<Self> {
        Ok(Self {
            endpoints: Changes::new(make, "endpoint", "Endpoint", 1)?,
            // In kube-proxy, the proxier of each family counts every event of a Service.
            services: Changes::new(make, "service", "Service", families as u64)?,
        })
    }
}

impl Changes {
    fn new(make: &Maker<'_>, of: &str, what: &str, times: u64) -> prometheus::Result<Self> {
        Ok(Self {
            total: make.counter(
                &format!("kubeproxy_sync_proxy_rules_{of}_changes_total"),
                &format!("Cumulative proxy rules {what} changes"),
            )?,
            pending: make.gauge(
                &format!("kubeproxy_sync_proxy_rules_{of}_changes_pending"),
                &format!("Pending proxy rules {what} changes"),
            )?,
            times,
            arrived: AtomicU64::new(0),
        })
    }

    pub(super) fn changed(&self) {
        self.total.inc_by(self.times);
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the changes that have arrived to the pending changes, since they require a sync.
    pub(super) fn requested(&self) {
        let arrived = self.arrived.swap(0, Ordering::Relaxed);
        self.pending.add(arrived.try_into().unwrap_or(i64::MAX));
    }

    pub(super) fn synced(&self) {
        self.pending.set(0);
    }
}

metrics! {
    /// The metrics of transactions of the nftables mode, and of its node ports on localhost.
    NftablesMetrics {
        failures: counters("kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "Cumulative proxy nftables sync failures", FAMILY),
        cleanup_failures: counters("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
            "Cumulative proxy nftables cleanup failures", FAMILY),
        localhost_listeners: gauges("kubeproxy_nftables_localhost_nodeport_listeners",
            "Number of sockets that serve node ports on localhost", FAMILY),
        localhost_failures: counters(
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
            "Number of failed attempts to open a socket that serves a node port on localhost", FAMILY),
        localhost_rejected: counters("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
            "Number of packets to node ports on localhost rejected for their protocol",
            &["ip_family", "protocol"]),
    }
}

impl NftablesMetrics {
    /// Makes the series of localhost exist from the start. Rules reject no protocol there.
    pub(super) fn with_series(self, families: &[IpFamily]) -> Self {
        for family in families.iter().map(|family| family.as_str()) {
            self.localhost_listeners.with_label_values(&[family]);
            self.localhost_failures.with_label_values(&[family]);
            for protocol in Protocol::ALL {
                self.localhost_rejected.with_label_values(&[family, protocol.as_str()]);
            }
        }
        self
    }
}

metrics! {
    /// The metrics of rules of the iptables mode.
    IptablesMetrics {
        owned: gauges("kubeproxy_sync_proxy_rules_iptables_total",
            "Total number of iptables rules owned by kube-proxy", &["table", "ip_family"]),
        written: gauges("kubeproxy_sync_proxy_rules_iptables_last",
            "Number of iptables rules written by kube-proxy in last sync", &["table", "ip_family"]),
        failures: counters("kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "Cumulative proxy iptables restore failures", FAMILY),
        partial_failures: counters("kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "Cumulative proxy iptables partial restore failures", FAMILY),
    }
}

impl IptablesMetrics {
    /// Sets the numbers of rules after a sync.
    pub(super) fn set_rules(&self, rules: &[RuleCount]) {
        for count in rules {
            let labels = [count.table, count.family.as_str()];
            set(&self.owned, &labels, count.owned);
            set(&self.written, &labels, count.written);
        }
    }

    /// Counts attempts that `iptables-restore` rejected.
    pub(super) fn count_refused(&self, attempts: &[RefusedAttempt]) {
        for attempt in attempts {
            let labels = [attempt.family.as_str()];
            self.failures.with_label_values(&labels).inc();
            if !attempt.compared {
                self.partial_failures.with_label_values(&labels).inc();
            }
        }
    }
}

metrics! {
    /// The metrics of sweeps for stale flows.
    ConntrackMetrics {
        duration: histograms("kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "ReconcileConntrackFlowsLatency latency in seconds", sync_buckets()?, FAMILY),
        deleted: counters("kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Cumulative conntrack flows deleted by conntrack reconciler", FAMILY),
    }
}
