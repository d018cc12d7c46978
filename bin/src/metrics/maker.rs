//! Making metrics and registering them, in one step.

use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, core::Collector,
};

/// The label of what is told of each family.
pub(super) const FAMILY: &[&str] = &["ip_family"];

/// Makes metrics and registers them.
pub(super) struct Maker<'a>(pub(super) &'a Registry);

impl Maker<'_> {
    pub(super) fn register<C: Collector + Clone + 'static>(
        &self,
        metric: C,
    ) -> prometheus::Result<C> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.register(IntCounter::new(name, help)?)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        by: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(Opts::new(name, help), by)?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.register(IntGauge::new(name, help)?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        by: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), by)?)
    }

    pub(super) fn times(&self, name: &str, help: &str) -> prometheus::Result<GaugeVec> {
        self.register(GaugeVec::new(Opts::new(name, help), FAMILY)?)
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> prometheus::Result<Histogram> {
        self.register(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(buckets);
        self.register(HistogramVec::new(options, FAMILY)?)
    }
}
