//! The exposition formats of Prometheus.

use prometheus::{
    Encoder, Registry, TextEncoder,
    proto::{self, MetricType},
};
use prost::Message;
use switchyard_core::error::ErrorChain;

/// An exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// Lines of text, version 0.0.4.
    Text,
    /// Length-delimited messages of `io.prometheus.client`.
    Protobuf,
}

impl Exposition {
    /// Encodes the metrics of the registry.
    pub(super) fn encode(self, registry: &Registry) -> Vec<u8> {
        let families = registry.gather();
        let mut bytes = Vec::new();
        match self {
            Self::Text => {
                if let Err(error) = TextEncoder::new().encode(&families, &mut bytes) {
                    tracing::error!(err = %ErrorChain(&error), "Failed to print the metrics");
                }
            }
            Self::Protobuf => {
                for family in &families {
                    bytes.extend(MetricFamily::from(family).encode_length_delimited_to_vec());
                }
            }
        }
        bytes
    }
}

// The messages of metrics.proto in Prometheus' client model, with the fields that are used here.

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(enumeration = "Type", optional, tag = "3")]
    r#type: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum Type {
    Counter = 0,
    Gauge = 1,
    Untyped = 3,
    Histogram = 4,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Value>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Value>,
    #[prost(message, optional, tag = "5")]
    untyped: Option<Value>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

/// A counter or a gauge.
#[derive(Clone, Copy, PartialEq, Message)]
struct Value {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
}

impl From<&proto::MetricFamily> for MetricFamily {
    fn from(family: &proto::MetricFamily) -> Self {
        let r#type = match family.get_field_type() {
            MetricType::COUNTER => Type::Counter,
            MetricType::GAUGE => Type::Gauge,
            MetricType::HISTOGRAM => Type::Histogram,
            // No metric here is a summary.
            MetricType::UNTYPED | MetricType::SUMMARY => Type::Untyped,
        };
        Self {
            name: family.name().to_owned(),
            help: family.help().to_owned(),
            r#type: Some(r#type.into()),
            metric: family.get_metric().iter().map(|metric| Metric::new(metric, r#type)).collect(),
        }
    }
}

impl Metric {
    fn new(metric: &proto::Metric, r#type: Type) -> Self {
        let label = |pair: &proto::LabelPair| LabelPair {
            name: Some(pair.name().to_owned()),
            value: Some(pair.value().to_owned()),
        };
        let label = metric.get_label().iter().map(label).collect();
        let this = Self { label, ..Self::default() };
        let value = |value| Some(Value { value: Some(value) });
        match r#type {
            Type::Counter => Self { counter: value(metric.get_counter().get_value()), ..this },
            Type::Gauge => Self { gauge: value(metric.get_gauge().get_value()), ..this },
            Type::Histogram => Self { histogram: Some(metric.get_histogram().into()), ..this },
            Type::Untyped => this,
        }
    }
}

impl From<&proto::Histogram> for Histogram {
    fn from(histogram: &proto::Histogram) -> Self {
        let bucket = |bucket: &proto::Bucket| Bucket {
            cumulative_count: Some(bucket.cumulative_count()),
            upper_bound: Some(bucket.upper_bound()),
        };
        Self {
            sample_count: Some(histogram.get_sample_count()),
            sample_sum: Some(histogram.get_sample_sum()),
            bucket: histogram.get_bucket().iter().map(bucket).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{HistogramOpts, IntCounterVec, Opts};

    use super::*;

    #[test]
    fn protobuf_says_what_text_says() {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("c_total", "Counts"), &["by"]).unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        counter.with_label_values(&["x"]).inc_by(3);
        let options = HistogramOpts::new("h", "Times").buckets(vec![1.0, 2.0]);
        let histogram = prometheus::Histogram::with_opts(options).unwrap();
        registry.register(Box::new(histogram.clone())).unwrap();
        histogram.observe(1.5);
        histogram.observe(5.0);

        let bytes = Exposition::Protobuf.encode(&registry);
        let mut rest = bytes.as_slice();
        let first = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert_eq!((first.name.as_str(), first.r#type), ("c_total", Some(0)));
        let metric = &first.metric[0];
        assert_eq!(metric.label[0].value.as_deref(), Some("x"));
        assert_eq!(metric.counter.unwrap().value, Some(3.0));
        let second = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert_eq!((second.name.as_str(), second.r#type), ("h", Some(4)));
        let found = second.metric[0].histogram.as_ref().unwrap();
        assert_eq!((found.sample_count, found.sample_sum), (Some(2), Some(6.5)));
        let counts: Vec<_> = found.bucket.iter().filter_map(|b| b.cumulative_count).collect();
        assert_eq!(counts, [0, 1]);
        assert!(rest.is_empty());
        // The encoding of the first field: tag, length, and the name.
        assert_eq!(bytes[1..10], *b"\x0a\x07c_total");
    }
}
