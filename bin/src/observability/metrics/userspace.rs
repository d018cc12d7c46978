//! The metrics of userspace mode: what its forwarder counts.

use std::sync::Arc;

use prometheus::{IntCounter, IntGauge};
use switchyard_userspace::forwarder::{Counted, Counters};

use super::maker::Maker;

/// The name that the forwarder gives the events, then name, help text and label of the metric.
const COUNTERS: [(&str, &str, &str, &str); 10] = [
    ("connections", "connections", "Connections that an endpoint took, and UDP flows", "protocol"),
    ("unserved", "unserved_connections", "Connections and flows that no endpoint took", "protocol"),
    ("bytes", "bytes", "Bytes that were forwarded", "direction"),
    ("datagrams", "datagrams", "UDP datagrams that were forwarded", "direction"),
    (
        "dropped",
        "dropped_datagrams",
        "UDP datagrams that were dropped: the send buffer was full, or (in) the flow had no endpoint, descriptor or place",
        "direction",
    ),
    ("failures", "endpoint_failures", "Tries to reach an endpoint that failed", "reason"),
    ("retries", "retries", "Tries to reach an endpoint after another one", ""),
    ("left_out", "endpoints_left_out", "Times that an endpoint was left out for a while", ""),
    ("refused", "refused_connections", "Connections and flows that were refused", "limit"),
    ("restarts", "listener_restarts", "Listeners that were served again after a panic", ""),
];

/// The metrics of userspace mode.
pub(super) struct UserspaceMetrics {
    traffic: Arc<Counters>,
    active: IntGauge,
    counters: Vec<(Counted, IntCounter)>,
}

impl UserspaceMetrics {
    pub(super) fn new(make: &Maker<'_>, traffic: Arc<Counters>) -> prometheus::Result<Self> {
        let mut counters = Vec::new();
        for (events, name, help, label) in COUNTERS {
            let name = format!("switchyard_userspace_{name}_total");
            let counted = Counted::ALL.iter().filter(|counted| counted.name().0 == events);
            if label.is_empty() {
                let counter = make.counter(&name, help)?;
                counters.extend(counted.map(|counted| (*counted, counter.clone())));
                continue;
            }
            let by = make.counters(&name, help, &[label])?;
            counters.extend(
                counted.map(|counted| (*counted, by.with_label_values(&[counted.name().1]))),
            );
        }
        let name = "switchyard_userspace_active_connections";
        let active = make.gauge(name, "Connections and UDP flows that are open")?;
        Ok(Self { traffic, active, counters })
    }

    /// Reads the forwarder's counters. Calls must not overlap.
    pub(super) fn refresh(&self) {
        self.active.set(self.traffic.active().try_into().unwrap_or(i64::MAX));
        for (counted, counter) in &self.counters {
            counter.inc_by(self.traffic.get(*counted).saturating_sub(counter.get()));
        }
    }
}
