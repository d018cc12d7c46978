//! Every metric that there is. `docs/metrics.md` is made from this.

use std::fmt::Write;

/// A metric.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Its labels, in the order of the alphabet.
    pub(super) labels: &'static [&'static str],
    pub(super) modes: Modes,
    /// What it says, for the documentation.
    pub(super) about: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// With these buckets, as they are printed, without `+Inf`.
    Histogram(&'static str),
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// The modes that have a metric.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Modes {
    All,
    Nftables,
    Iptables,
}

impl Modes {
    pub(super) fn has(self, mode: &str) -> bool {
        match self {
            Self::All => true,
            Self::Nftables => mode == "nftables",
            Self::Iptables => mode == "iptables",
        }
    }
}

/// Times of syncs.
const SYNC: &str =
    "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384";
const PROGRAMMING: &str = "0.25 0.5 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 \
     25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 \
     56 57 58 59 60 65 70 75 80 85 90 95 100 105 110 115 120 150 180 210 240 270 300";
const REQUESTS: &str = "0.005 0.025 0.1 0.25 0.5 1 2 4 8 15 30 60";
const SIZES: &str = "64 256 512 1024 4096 16384 65536 262144 1048576 4194304 16777216";
/// Our times: finer, since the work is quicker.
const FINE: &str = "0.0001 0.0002 0.0004 0.0008 0.0016 0.0032 0.0064 0.0128 0.0256 0.0512 0.1024 \
     0.2048 0.4096 0.8192 1.6384 3.2768 6.5536 13.1072";
const BYTES: &str = "256 1024 4096 16384 65536 262144 1048576 4194304 16777216 67108864";
const MESSAGES: &str = "1 4 16 64 256 1024 4096 16384 65536 262144";
const WAITS: &str = "0.001 0.004 0.016 0.064 0.256 1.024 4.096 16.384";

const FAMILY: &[&str] = &["ip_family"];
const HOST: &[&str] = &["host", "verb"];

const fn row(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    modes: Modes,
    about: &'static str,
) -> Row {
    Row { name, kind, labels, modes, about }
}

use Kind::{Counter, Gauge, Histogram};
use Modes::{All, Iptables, Nftables};

pub(super) const KUBE_PROXY: &[Row] = &[
    row(
        "kubeproxy_sync_proxy_rules_duration_seconds",
        Histogram(SYNC),
        FAMILY,
        All,
        "Each sync, also if it failed",
    ),
    row(
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        Histogram(SYNC),
        FAMILY,
        All,
        "Of these, those that compared everything",
    ),
    row(
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        Histogram(SYNC),
        FAMILY,
        All,
        "Of these, those of what had changed",
    ),
    row(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        Gauge,
        FAMILY,
        All,
        "When the last sync succeeded, in seconds since 1970",
    ),
    row(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        Gauge,
        FAMILY,
        All,
        "When a sync was last asked for, or else the start",
    ),
    row(
        "kubeproxy_network_programming_duration_seconds",
        Histogram(PROGRAMMING),
        FAMILY,
        All,
        "From the change of a Pod or Service, as the EndpointSlice's annotation says, to its commit",
    ),
    row(
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        Gauge,
        &[],
        All,
        "EndpointSlice changes that wait for a sync",
    ),
    row(
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        Counter,
        &[],
        All,
        "EndpointSlices added, changed or removed",
    ),
    row(
        "kubeproxy_sync_proxy_rules_service_changes_pending",
        Gauge,
        &[],
        All,
        "Service changes that wait for a sync",
    ),
    row(
        "kubeproxy_sync_proxy_rules_service_changes_total",
        Counter,
        &[],
        All,
        "Services added, changed or removed, once for each family of the node",
    ),
    row(
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        Gauge,
        &["ip_family", "traffic_policy"],
        All,
        "Service ports with policy `Local` (`internal`, `external`) whose endpoints are all elsewhere",
    ),
    row("kubeproxy_proxy_healthz_total", Counter, &["code"], All, "Answers of `/healthz`"),
    row("kubeproxy_proxy_livez_total", Counter, &["code"], All, "Answers of `/livez`"),
    row(
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        Counter,
        FAMILY,
        Nftables,
        "Transactions that the kernel refused; one has both families",
    ),
    row(
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        Counter,
        FAMILY,
        Nftables,
        "Chains out of use that could not be deleted",
    ),
    row(
        "kubeproxy_sync_proxy_rules_iptables_total",
        Gauge,
        &["ip_family", "table"],
        Iptables,
        "Rules in our chains of `filter` and `nat`",
    ),
    row(
        "kubeproxy_sync_proxy_rules_iptables_last",
        Gauge,
        &["ip_family", "table"],
        Iptables,
        "Rules that the last sync wrote",
    ),
    row(
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        Counter,
        FAMILY,
        Iptables,
        "Failed runs of `iptables-restore`",
    ),
    row(
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
        Counter,
        FAMILY,
        Iptables,
        "Of these, those of syncs of what had changed; everything is compared then",
    ),
    row(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        Histogram(SYNC),
        FAMILY,
        All,
        "Each search for stale flows",
    ),
    row(
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        Counter,
        FAMILY,
        All,
        "Stale flows that were ended",
    ),
];

pub(super) const KUBERNETES: &[Row] = &[
    row(
        "kubernetes_build_info",
        Gauge,
        &[
            "build_date",
            "compiler",
            "git_commit",
            "git_tree_state",
            "git_version",
            "go_version",
            "major",
            "minor",
            "platform",
        ],
        All,
        "1; `git_version` is the release of Kubernetes that is followed",
    ),
    row(
        "kubernetes_feature_enabled",
        Gauge,
        &["name", "stage"],
        All,
        "Whether a feature gate is on, 1 or 0",
    ),
    row(
        "registered_metrics_total",
        Counter,
        &["deprecated_version", "stability_level"],
        All,
        "How many metrics there are",
    ),
    row("hidden_metrics_total", Counter, &[], All, "0: none is hidden"),
    row("disabled_metrics_total", Counter, &[], All, "0: none is disabled"),
    row(
        "rest_client_requests_total",
        Counter,
        &["code", "host", "method"],
        All,
        "Requests to the API server; `code` is `<error>` if there was no answer",
    ),
    row(
        "rest_client_request_duration_seconds",
        Histogram(REQUESTS),
        HOST,
        All,
        "Time to the head of the answer",
    ),
    row("rest_client_request_size_bytes", Histogram(SIZES), HOST, All, "Bodies of requests"),
    row(
        "rest_client_response_size_bytes",
        Histogram(SIZES),
        HOST,
        All,
        "Bodies of answers, but for watches",
    ),
    row(
        "rest_client_rate_limiter_duration_seconds",
        Histogram(REQUESTS),
        HOST,
        All,
        "For how long requests were held back, as `clientConnection.qps` and `burst` ask for it",
    ),
    row("process_cpu_seconds_total", Counter, &[], All, "CPU time"),
    row("process_max_fds", Gauge, &[], All, "How many file descriptors there may be"),
    row("process_network_receive_bytes_total", Counter, &[], All, "Bytes that came to the node"),
    row("process_network_transmit_bytes_total", Counter, &[], All, "Bytes that left the node"),
    row("process_open_fds", Gauge, &[], All, "How many file descriptors there are"),
    row("process_resident_memory_bytes", Gauge, &[], All, "Memory in use"),
    row("process_start_time_seconds", Gauge, &[], All, "Start, in seconds since 1970"),
    row("process_virtual_memory_bytes", Gauge, &[], All, "Address space in use"),
    row(
        "process_virtual_memory_max_bytes",
        Gauge,
        &[],
        All,
        "How large that may be; 2^64 without a limit",
    ),
];

pub(super) const OURS: &[Row] = &[
    row("switchyard_build_info", Gauge, &["version"], All, "1; the version of this program"),
    row(
        "switchyard_change_latency_seconds",
        Histogram(FINE),
        &[],
        All,
        "From the arrival of a change to its commit",
    ),
    row(
        "switchyard_kernel_commit_duration_seconds",
        Histogram(FINE),
        &[],
        All,
        "Time that the kernel, or the programs that talk to it, took for a transaction",
    ),
    row(
        "switchyard_transaction_bytes",
        Histogram(BYTES),
        &[],
        All,
        "Size of the transactions that were committed",
    ),
    row(
        "switchyard_transaction_messages",
        Histogram(MESSAGES),
        &[],
        All,
        "Messages, or lines, in them",
    ),
    row(
        "switchyard_lock_wait_seconds",
        Histogram(WAITS),
        &[],
        All,
        "Time that a sync waited for the xtables lock, of those that did",
    ),
    row(
        "switchyard_drift_repairs_total",
        Counter,
        &[],
        All,
        "Full syncs that found the kernel to hold other than what was programmed, because somebody \
         else had changed it, and repaired it",
    ),
    row(
        "switchyard_drift_repaired_objects_total",
        Counter,
        &[],
        All,
        "Chains, sets, elements and the like that were missing, altered or too many then",
    ),
    row(
        "switchyard_objects_rejected_total",
        Counter,
        &["kind", "reason"],
        All,
        "Objects, or parts of them, that could not be used: `malformed` (cannot be decoded), \
         `invalid` (a value that the field cannot have), `conflict` (an address and port of an \
         older Service)",
    ),
    row("switchyard_service_ports", Gauge, FAMILY, All, "Service ports that are programmed"),
    row(
        "switchyard_watch_silence_seconds",
        Gauge,
        &["kind"],
        All,
        "For how long the API server has said nothing on a watch",
    ),
    row(
        "switchyard_config_reloads_total",
        Counter,
        &["result"],
        All,
        "Changes of the configuration file's content, by what became of them: `applied`, \
         `unchanged`, `restart`, `rejected`",
    ),
    row(
        "switchyard_config_in_effect",
        Gauge,
        &[],
        All,
        "1 if what the configuration file says is in effect, 0 if it was rejected",
    ),
];

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    [KUBE_PROXY, KUBERNETES, OURS].into_iter().flatten()
}

const HEAD: &str = "\
# Metrics

`http://127.0.0.1:10249/metrics` (`metricsBindAddress`), in Prometheus' text format, or in its
protobuf format if that is preferred. Names, types, labels and buckets are kube-proxy's, so that its
dashboards and alerts work. Series with labels appear when there is something to tell.

This page is made from a table that a test compares with what the program exports, in both
directions: `SWITCHYARD_WRITE_DOCS=1 cargo test -p switchyard --test proxying metrics::docs` writes
it.
";

const TAIL: &str = "
## What is not there

- `go_*`: there is no Go runtime, and nothing that would mean the same.
- `kubeproxy_iptables_*_packets_total`, which count packets by nfacct objects: we make none, as on
  kernels without nfacct.
- `rest_client_exec_plugin_*` and `rest_client_transport_*`, which are about the inside of another
  client library.
- Series that kube-proxy exports because it links the API server's library, and never changes.
- No metric of kube-proxy 1.35 is hidden in 1.36, so that `--show-hidden-metrics-for-version` is
  checked, and shows nothing more.

## Health of the metrics server

`/metrics/slis` has `kubernetes_healthcheck` (gauge) and `kubernetes_healthchecks_total` (counter)
of the check `ping`, which is what `/healthz` of this server does. `DELETE` forgets them.
";

/// The page.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    for (title, rows) in [
        ("kube-proxy's", KUBE_PROXY),
        ("Those of every Kubernetes component", KUBERNETES),
        ("Ours", OURS),
    ] {
        let _ = write!(
            page,
            "\n## {title}\n\n| Name | Type | Labels | Mode | What it says |\n|---|---|---|---|---|\n"
        );
        for row in rows {
            let mode = match row.modes {
                All => "",
                Nftables => "nftables",
                Iptables => "iptables",
            };
            let labels: Vec<_> = row.labels.iter().map(|label| format!("`{label}`")).collect();
            let (kind, labels) = (row.kind.name(), labels.join(", "));
            let _ =
                writeln!(page, "| `{}` | {kind} | {labels} | {mode} | {} |", row.name, row.about);
        }
    }
    page + TAIL
}
