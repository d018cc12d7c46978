//! The maker of metrics, which creates and registers a metric in one step.

use std::cell::Cell;

use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, core::Collector,
};

/// The label of metrics that exist for each family.
pub(super) const FAMILY: &[&str] = &["ip_family"];

/// The prefixes of the metrics whose stability in Kubernetes is ALPHA.
const ALPHA: [&str; 2] = ["kubeproxy_", "rest_client_"];

/// Creates metrics and registers them.
pub(super) struct Maker<'a> {
    registry: &'a Registry,
    alpha: Cell<u64>,
}

impl<'a> Maker<'a> {
    pub(super) fn new(registry: &'a Registry) -> Self {
        Self { registry, alpha: Cell::new(0) }
    }

    /// The number of ALPHA metrics that were created.
    pub(super) fn alpha(&self) -> u64 {
        self.alpha.get()
    }

    /// Returns the name and the help text of a metric. The help text of an ALPHA metric begins with
    /// the stability.
    fn opts(&self, name: &str, help: &str) -> Opts {
        match ALPHA.iter().any(|prefix| name.starts_with(prefix)) {
            true => {
                self.alpha.set(self.alpha.get() + 1);
                Opts::new(name, format!("[ALPHA] {help}"))
            }
            false => Opts::new(name, help),
        }
    }

    pub(super) fn register<C: Collector + Clone + 'static>(
        &self,
        metric: C,
    ) -> prometheus::Result<C> {
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.register(IntCounter::with_opts(self.opts(name, help))?)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        by: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(self.opts(name, help), by)?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.register(IntGauge::with_opts(self.opts(name, help))?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        by: &[&str],
    ) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(self.opts(name, help), by)?)
    }

    /// Creates gauges of seconds, with fractions.
    pub(super) fn seconds(
        &self,
        name: &str,
        help: &str,
        by: &[&str],
    ) -> prometheus::Result<GaugeVec> {
        self.register(GaugeVec::new(self.opts(name, help), by)?)
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> prometheus::Result<Histogram> {
        let options = HistogramOpts::from(self.opts(name, help)).buckets(buckets);
        self.register(Histogram::with_opts(options)?)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
        by: &[&str],
    ) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts::from(self.opts(name, help)).buckets(buckets);
        self.register(HistogramVec::new(options, by)?)
    }
}

/// Sets the gauge that has these labels.
pub(super) fn set(gauges: &IntGaugeVec, labels: &[&str], value: impl TryInto<i64>) {
    gauges.with_label_values(labels).set(value.try_into().unwrap_or(i64::MAX));
}

/// The type of the metrics that a method of [`Maker`] makes.
macro_rules! made_by {
    (counter) => {
        prometheus::IntCounter
    };
    (counters) => {
        prometheus::IntCounterVec
    };
    (gauge) => {
        prometheus::IntGauge
    };
    (gauges) => {
        prometheus::IntGaugeVec
    };
    (seconds) => {
        prometheus::GaugeVec
    };
    (histogram) => {
        prometheus::Histogram
    };
    (histograms) => {
        prometheus::HistogramVec
    };
}

/// Defines a struct of metrics, each with the method of [`Maker`] that makes it, and how the method
/// is called.
macro_rules! metrics {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $made_by:ident($($argument:expr),+)),+ $(,)? }) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub(super) $field: $crate::observability::metrics::maker::made_by!($made_by),)+
        }

        impl $name {
            pub(super) fn new(
                make: &$crate::observability::metrics::maker::Maker<'_>,
            ) -> prometheus::Result<Self> {
                Ok(Self { $($field: make.$made_by($($argument),+)?,)+ })
            }
        }
    };
}

pub(super) use {made_by, metrics};
