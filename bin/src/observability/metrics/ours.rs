//! The metrics that kube-proxy does not have, with the prefix `switchyard_`.

use prometheus::{IntGauge, Opts, exponential_buckets};

use super::maker::{FAMILY, Maker, metrics};

metrics! {
    /// The metrics that kube-proxy does not have.
    OurMetrics {
        commit: histogram("switchyard_kernel_commit_duration_seconds",
            "Time that the kernel took to commit a transaction", exponential_buckets(0.000_1, 2.0, 18)?),
        latency: histogram("switchyard_change_latency_seconds",
            "Time from the arrival of a change to its commit", exponential_buckets(0.000_1, 2.0, 18)?),
        bytes: histogram("switchyard_transaction_bytes",
            "Size of the transactions that were committed", exponential_buckets(256.0, 4.0, 10)?),
        messages: histogram("switchyard_transaction_messages",
            "Messages in the transactions that were committed", exponential_buckets(1.0, 4.0, 10)?),
        lock_wait: histogram("switchyard_lock_wait_seconds",
            "Time that syncs waited for the xtables lock; syncs without a wait do not count",
            exponential_buckets(0.001, 4.0, 8)?),
        drift_repairs: counter("switchyard_drift_repairs_total",
            "Syncs that found, or were told of, changes by other programs, and repaired them"),
        drift_objects: counter("switchyard_drift_repaired_objects_total",
            "Chains, sets, elements and other objects that other programs had changed"),
        rejected: counters("switchyard_objects_rejected_total",
            "Objects, or parts of objects, that could not be used", &["kind", "reason"]),
        service_ports: gauges("switchyard_service_ports", "Service ports that are programmed", FAMILY),
        unsupported: gauges("switchyard_service_ports_unsupported",
            "Service ports that are served otherwise than they ask, since the mode cannot do it", FAMILY),
        refused: gauges("switchyard_service_ports_refused",
            "Service ports that are left out, since the node refuses what they need", FAMILY),
        watch_silence: seconds("switchyard_watch_silence_seconds",
            "Time since the API server last sent something on a watch, or since its first failure", &["kind"]),
        client: gauges("switchyard_objects_client",
            "Whether a client of --objects-socket is connected, and has ended a list", &["state"]),
        client_silence: gauges("switchyard_objects_client_silence_seconds",
            "Time since a client of --objects-socket last sent a line", &[]),
    }
}

/// Registers the metric of the running program.
pub(super) fn register_build(make: &Maker<'_>) -> prometheus::Result<()> {
    let build = Opts::new("switchyard_build_info", "The running program; its value is always 1")
        .const_label("version", env!("CARGO_PKG_VERSION"));
    make.register(IntGauge::with_opts(build)?)?.set(1);
    Ok(())
}
