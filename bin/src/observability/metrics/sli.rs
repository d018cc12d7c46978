//! The metrics at `/metrics/slis`: the health checks of this component, not of the proxy.

use prometheus::{IntCounterVec, IntGaugeVec, Registry};

use super::maker::Maker;

/// The only check.
const PING: &str = "ping";
const HEALTHZ: &str = "healthz";

/// The metrics, in their own registry, since they have their own path.
pub struct SliMetrics {
    registry: Registry,
    last: IntGaugeVec,
    total: IntCounterVec,
}

impl SliMetrics {
    pub(super) fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Maker::new(&registry);
        Ok(Self {
            last: make.gauges(
                "kubernetes_healthcheck",
                "[STABLE] This metric records the result of a single healthcheck.",
                &["name", "type"],
            )?,
            total: make.counters(
                "kubernetes_healthchecks_total",
                "[STABLE] This metric records the results of all healthcheck.",
                &["name", "status", "type"],
            )?,
            registry,
        })
    }

    /// Records that the check succeeded.
    pub fn pinged(&self) {
        self.last.with_label_values(&[PING, HEALTHZ]).set(1);
        self.total.with_label_values(&[PING, "success", HEALTHZ]).inc();
    }

    /// Returns the metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        super::text(&self.registry)
    }

    pub fn reset(&self) {
        self.last.reset();
        self.total.reset();
    }
}
