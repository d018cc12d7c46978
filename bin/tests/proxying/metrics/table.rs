//! The table of every metric, from which `docs/metrics.md` is generated.

use std::fmt::Write;

/// A metric.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The names of the labels, in alphabetical order.
    pub(super) labels: &'static [&'static str],
    pub(super) modes: Modes,
    /// The meaning of the metric, for the documentation.
    pub(super) about: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    /// A histogram with these buckets, as they are printed, without `+Inf`.
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
    Userspace,
}

impl Modes {
    pub(super) fn has(self, mode: &str) -> bool {
        match self {
            Self::All => true,
            Self::Nftables => mode == "nftables",
            Self::Iptables => mode == "iptables",
            Self::Userspace => mode == "userspace",
        }
    }
}

/// The buckets of kube-proxy's times of syncs.
const SYNC: &str =
    "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384";
const PROGRAMMING: &str = "0.25 0.5 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 \
     25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 \
     56 57 58 59 60 65 70 75 80 85 90 95 100 105 110 115 120 150 180 210 240 270 300";
const REQUESTS: &str = "0.005 0.025 0.1 0.25 0.5 1 2 4 8 15 30 60";
const SIZES: &str = "64 256 512 1024 4096 16384 65536 262144 1048576 4194304 16777216";
/// The buckets of our own times, which are finer, since our syncs are faster.
const FINE: &str = "0.0001 0.0002 0.0004 0.0008 0.0016 0.0032 0.0064 0.0128 0.0256 0.0512 0.1024 \
     0.2048 0.4096 0.8192 1.6384 3.2768 6.5536 13.1072";
const BYTES: &str = "256 1024 4096 16384 65536 262144 1048576 4194304 16777216 67108864";
const MESSAGES: &str = "1 4 16 64 256 1024 4096 16384 65536 262144";
const WAITS: &str = "0.001 0.004 0.016 0.064 0.256 1.024 4.096 16.384";

const FAMILY: &[&str] = &["ip_family"];
const DIRECTION: &[&str] = &["direction"];
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
use Modes::{All, Iptables, Nftables, Userspace};

pub(super) const KUBE_PROXY: &[Row] = &[
    row(
        "kubeproxy_nftables_localhost_nodeport_listeners",
        Gauge,
        FAMILY,
        Nftables,
        "Sockets that serve node ports on `[::1]`; IPv4 has rules instead",
    ),
    row(
        "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
        Counter,
        FAMILY,
        Nftables,
        "Failed attempts to open such a socket; another program may listen there",
    ),
    row(
        "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
        Counter,
        &["ip_family", "protocol"],
        Nftables,
        "0: no rule rejects a protocol on localhost",
    ),
    row(
        "kubeproxy_sync_proxy_rules_duration_seconds",
        Histogram(SYNC),
        FAMILY,
        All,
        "Duration of each sync, including failed ones",
    ),
    row(
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        Histogram(SYNC),
        FAMILY,
        All,
        "Of these, the syncs that compared everything",
    ),
    row(
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        Histogram(SYNC),
        FAMILY,
        All,
        "Of these, the syncs of changes alone",
    ),
    row(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        Gauge,
        FAMILY,
        All,
        "Time of the last successful sync, in seconds since 1970",
    ),
    row(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        Gauge,
        FAMILY,
        All,
        "Time of the last request for a sync, at first of the start, in seconds since 1970",
    ),
    row(
        "kubeproxy_network_programming_duration_seconds",
        Histogram(PROGRAMMING),
        FAMILY,
        All,
        "Time from the change of a Pod or Service, which is in the EndpointSlice's annotation, to the commit",
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
        "Service ports with policy `Local` (`internal`, `external`) that have endpoints on other nodes only",
    ),
    row("kubeproxy_proxy_healthz_total", Counter, &["code"], All, "Answers of `/healthz`"),
    row("kubeproxy_proxy_livez_total", Counter, &["code"], All, "Answers of `/livez`"),
    row(
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        Counter,
        FAMILY,
        Nftables,
        "Transactions that the kernel rejected; each transaction has both families",
    ),
    row(
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        Counter,
        FAMILY,
        Nftables,
        "Failures to delete unused chains",
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
        "Of these, the runs in syncs of changes alone; each is followed by a full sync",
    ),
    row(
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        Histogram(SYNC),
        FAMILY,
        All,
        "Duration of each search for stale flows",
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
        "Always 1; `git_version` is the release of Kubernetes whose behaviour is followed",
    ),
    row(
        "kubernetes_feature_enabled",
        Gauge,
        &["name", "stage"],
        All,
        "1 if a feature gate is on, else 0",
    ),
    row(
        "registered_metrics_total",
        Counter,
        &["deprecated_version", "stability_level"],
        All,
        "Number of metrics",
    ),
    row("hidden_metrics_total", Counter, &[], All, "Always 0"),
    row("disabled_metrics_total", Counter, &[], All, "Always 0"),
    row(
        "rest_client_requests_total",
        Counter,
        &["code", "host", "method"],
        All,
        "Requests to the API server; `code` is `<error>` for a request without an answer",
    ),
    row(
        "rest_client_request_duration_seconds",
        Histogram(REQUESTS),
        HOST,
        All,
        "Time from a request to the head of its answer",
    ),
    row(
        "rest_client_request_size_bytes",
        Histogram(SIZES),
        HOST,
        All,
        "Sizes of the bodies of requests",
    ),
    row(
        "rest_client_response_size_bytes",
        Histogram(SIZES),
        HOST,
        All,
        "Sizes of the bodies of answers, except watches",
    ),
    row(
        "rest_client_rate_limiter_duration_seconds",
        Histogram(REQUESTS),
        HOST,
        All,
        "Time that requests waited because of `clientConnection.qps` and `burst`",
    ),
    row("process_cpu_seconds_total", Counter, &[], All, "CPU time that the process has used"),
    row("process_max_fds", Gauge, &[], All, "Limit of open file descriptors"),
    row("process_network_receive_bytes_total", Counter, &[], All, "Bytes that the node received"),
    row("process_network_transmit_bytes_total", Counter, &[], All, "Bytes that the node sent"),
    row("process_open_fds", Gauge, &[], All, "Number of open file descriptors"),
    row("process_resident_memory_bytes", Gauge, &[], All, "Memory in use"),
    row("process_start_time_seconds", Gauge, &[], All, "Time of the start, in seconds since 1970"),
    row("process_virtual_memory_bytes", Gauge, &[], All, "Address space in use"),
    row(
        "process_virtual_memory_max_bytes",
        Gauge,
        &[],
        All,
        "Limit of the address space; 2^64 if there is none",
    ),
];

pub(super) const OURS: &[Row] = &[
    row(
        "switchyard_build_info",
        Gauge,
        &["version"],
        All,
        "Always 1; `version` is the version of this program",
    ),
    row(
        "switchyard_change_latency_seconds",
        Histogram(FINE),
        &[],
        All,
        "Time from the arrival of a change to its commit",
    ),
    row(
        "switchyard_kernel_commit_duration_seconds",
        Histogram(FINE),
        &[],
        All,
        "Time that the kernel, or the program that was run, took to commit",
    ),
    row(
        "switchyard_transaction_bytes",
        Histogram(BYTES),
        &[],
        All,
        "Sizes of committed transactions",
    ),
    row(
        "switchyard_transaction_messages",
        Histogram(MESSAGES),
        &[],
        All,
        "Messages, or lines, in committed transactions",
    ),
    row(
        "switchyard_lock_wait_seconds",
        Histogram(WAITS),
        &[],
        All,
        "Time that syncs waited for the xtables lock; syncs without a wait do not count",
    ),
    row(
        "switchyard_drift_repairs_total",
        Counter,
        &[],
        All,
        "Resyncs that found, and repaired, changes by other programs",
    ),
    row(
        "switchyard_drift_repaired_objects_total",
        Counter,
        &[],
        All,
        "Chains, sets, elements and other objects that were missing, changed or superfluous in these resyncs",
    ),
    row(
        "switchyard_objects_rejected_total",
        Counter,
        &["kind", "reason"],
        All,
        "Objects, or parts of objects, that could not be used: `malformed` (cannot be decoded), \
         `invalid` (the field cannot have the value), `conflict` (the address and port belong to \
         an older Service), `unsupported` (the mode cannot do it), `refused` (the kernel, or a tool, \
         does not take it)",
    ),
    row("switchyard_service_ports", Gauge, FAMILY, All, "Service ports that are programmed"),
    row(
        "switchyard_service_ports_unsupported",
        Gauge,
        FAMILY,
        All,
        "Service ports whose connections are spread otherwise than they ask, since the mode cannot do \
         it ([load-balancing.md](load-balancing.md))",
    ),
    row(
        "switchyard_service_ports_refused",
        Gauge,
        FAMILY,
        All,
        "Service ports that are left out, since the kernel or a tool refuses what they need; they are tried \
         again ([health.md](health.md#what-the-kernel-refuses))",
    ),
    row(
        "switchyard_watch_silence_seconds",
        Gauge,
        &["kind"],
        All,
        "Time since the API server last sent something on a watch; `client`: since a client of \
         `--objects-socket` sent a line, or since the start",
    ),
    row(
        "switchyard_objects_client",
        Gauge,
        &["state"],
        All,
        "1 if a client of `--objects-socket` is connected (`connected`), and if it has ended a list \
         (`synced`), else 0; only with this flag ([embedding.md](embedding.md#from-another-process))",
    ),
    row(
        "switchyard_conntrack_entries",
        Gauge,
        &[],
        All,
        "Entries in connection tracking's table of the node's network namespace",
    ),
    row(
        "switchyard_conntrack_entries_limit",
        Gauge,
        &[],
        All,
        "Limit of these entries (`nf_conntrack_max`); new connections are dropped beyond it. At 80 %, there is \
         an Event `ConntrackNearlyFull` about the Node",
    ),
    row(
        "switchyard_conntrack_dropped_packets_total",
        Counter,
        &[],
        All,
        "Packets that the kernel dropped because no entry could be made, as in a full table",
    ),
    row(
        "switchyard_conntrack_evicted_entries_total",
        Counter,
        &[],
        All,
        "Entries that the kernel ended early to make room for others",
    ),
    row(
        "switchyard_conntrack_insert_failures_total",
        Counter,
        &[],
        All,
        "Entries that could not be inserted because the same entry came first; a packet is lost",
    ),
    row(
        "switchyard_conntrack_service_entries",
        Gauge,
        &["namespace", "service"],
        All,
        "Entries that lead to the addresses of the ten Services with the most of them, without node ports; \
         only with `--conntrack-services-period` ([cost](#connection-tracking-by-service))",
    ),
    row(
        "switchyard_conntrack_other_entries",
        Gauge,
        &["to"],
        All,
        "Entries that lead to other Services (`service`), or to none (`elsewhere`); only with this flag",
    ),
    row(
        "switchyard_config_reloads_total",
        Counter,
        &["result"],
        All,
        "Changes of the configuration file's content, by result: `applied`, `unchanged`, `restart`, \
         `rejected`",
    ),
    row(
        "switchyard_config_in_effect",
        Gauge,
        &[],
        All,
        "1 if the content of the configuration file is in effect, 0 if it was rejected",
    ),
    row(
        "switchyard_userspace_active_connections",
        Gauge,
        &[],
        Userspace,
        "Connections and UDP flows that are open",
    ),
    row(
        "switchyard_userspace_connections_total",
        Counter,
        &["protocol"],
        Userspace,
        "Connections that an endpoint took, and UDP flows that began",
    ),
    row(
        "switchyard_userspace_unserved_connections_total",
        Counter,
        &["protocol"],
        Userspace,
        "Connections and flows that no endpoint took",
    ),
    row(
        "switchyard_userspace_bytes_total",
        Counter,
        DIRECTION,
        Userspace,
        "Bytes that were forwarded, from clients (`in`) and from endpoints (`out`)",
    ),
    row(
        "switchyard_userspace_datagrams_total",
        Counter,
        DIRECTION,
        Userspace,
        "UDP datagrams that were forwarded",
    ),
    row(
        "switchyard_userspace_dropped_datagrams_total",
        Counter,
        DIRECTION,
        Userspace,
        "UDP datagrams that were dropped: the send buffer was full, or (in) the last endpoint of a flow refused",
    ),
    row(
        "switchyard_userspace_endpoint_failures_total",
        Counter,
        &["reason"],
        Userspace,
        "Tries to reach an endpoint that failed: `refused`, `timeout`, `unreachable`, \
         `exhausted` (this system lacks ports, descriptors or memory), `other`",
    ),
    row(
        "switchyard_userspace_retries_total",
        Counter,
        &[],
        Userspace,
        "Tries to reach an endpoint after another one",
    ),
    row(
        "switchyard_userspace_endpoints_left_out_total",
        Counter,
        &[],
        Userspace,
        "Times that an endpoint was left out for a while, after failures",
    ),
    row(
        "switchyard_userspace_refused_connections_total",
        Counter,
        &["limit"],
        Userspace,
        "Connections and flows that were refused, by limit: `all`, `service`, `client`, \
         `endpoint` (each has too many), `source` (not in `loadBalancerSourceRanges`)",
    ),
    row(
        "switchyard_userspace_listener_restarts_total",
        Counter,
        &[],
        Userspace,
        "Listeners that were opened again after a panic",
    ),
];

/// Returns all rows.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    [KUBE_PROXY, KUBERNETES, OURS].into_iter().flatten()
}

const HEAD: &str = "\
# Metrics

The metrics are at `http://127.0.0.1:10249/metrics` (`metricsBindAddress`), in Prometheus' text format.
Names, types, labels and buckets are kube-proxy's, so that its dashboards and alerts work. A series with
labels appears with its first value.

This page is generated from a table, which a test compares with the metrics that the program exports,
in both directions. `SWITCHYARD_WRITE_DOCS=1 cargo test -p switchyard-agent --test proxying metrics::docs`
writes the page.
";

const TAIL: &str = "
## Connection tracking by Service

`--conntrack-services-period=1m` counts the entries of connection tracking by Service once a minute. A count has
the kernel walk the whole table, in which packets go on: a table of 1,000,000 entries took 2.4 s of CPU time, 0.13 s of
them in the program, and no memory that grows with it. Without the flag, a scrape reads only the statistics, by two
messages (26 µs with as many entries), at most once a second. Entries of node ports count as `elsewhere`.

## Alerts and a dashboard

[alerts.yaml](../deploy/monitoring/alerts.yaml) has eight alerts for Prometheus, and
[dashboard.json](../deploy/monitoring/dashboard.json) a dashboard for Grafana, which asks for a source of data.

## Status page

`/status` at the same address shows what is wrong, Service ports and endpoints, the last sync, who changed the rules last,
the watches on the API server, connection tracking, and what is not served as it asks, with the reasons:

```
kubectl -n kube-system port-forward pod/kube-proxy-abcde 10249 &
curl 127.0.0.1:10249/status                # text
curl '127.0.0.1:10249/status?format=json'  # JSON, also with Accept: application/json
```

A browser gets a page, which loads nothing and runs nothing, for phones, light or dark:

![The status page](status.png)

## Missing metrics

- `go_*`: there is no Go runtime.
- `kubeproxy_iptables_*_packets_total`, which count packets by nfacct objects: there are none, as with
  kube-proxy on kernels without nfacct.
- `rest_client_exec_plugin_*` and `rest_client_transport_*`, which describe the inside of client-go.
- Series that kube-proxy exports because it links the API server's library, and never changes.
- Hidden metrics: there are none, so that `--show-hidden-metrics-for-version` is checked, but adds
  nothing.

## Health of the metrics server

`/metrics/slis` has `kubernetes_healthcheck` (gauge) and `kubernetes_healthchecks_total` (counter)
of the check `ping`, the only check of this server's `/healthz`. `DELETE` resets both.
";

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    for (title, rows) in [
        ("Metrics of kube-proxy", KUBE_PROXY),
        ("Metrics of every Kubernetes component", KUBERNETES),
        ("Metrics of Switchyard", OURS),
    ] {
        let _ = write!(
            page,
            "\n## {title}\n\n| Name | Type | Labels | Mode | Meaning |\n|---|---|---|---|---|\n"
        );
        for row in rows {
            let mode = match row.modes {
                All => "",
                Nftables => "nftables",
                Iptables => "iptables",
                Userspace => "userspace",
            };
            let labels: Vec<_> = row.labels.iter().map(|label| format!("`{label}`")).collect();
            let (kind, labels) = (row.kind.name(), labels.join(", "));
            let _ =
                writeln!(page, "| `{}` | {kind} | {labels} | {mode} | {} |", row.name, row.about);
        }
    }
    page + TAIL
}
