//! The `rest_client_*` metrics: requests to the API server.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use prometheus::{HistogramVec, IntCounterVec};

use super::maker::Maker;

/// The metrics of requests to the API server, the same as client-go's. Clones share the metrics.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    host: Arc<OnceLock<String>>,
    total: IntCounterVec,
    duration: HistogramVec,
    request_size: HistogramVec,
    response_size: HistogramVec,
    waits: HistogramVec,
}

/// The buckets of sizes, in bytes.
fn sizes() -> Vec<f64> {
    [64, 256, 512, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216]
        .map(f64::from)
        .to_vec()
}

impl RequestMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        let by = &["verb", "host"];
        let latencies = vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
        Ok(Self {
            host: Arc::default(),
            total: make.counters(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "method", "host"],
            )?,
            duration: make.histograms(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                latencies.clone(),
                by,
            )?,
            request_size: make.histograms(
                "rest_client_request_size_bytes",
                "Request size in bytes. Broken down by verb and host.",
                sizes(),
                by,
            )?,
            response_size: make.histograms(
                "rest_client_response_size_bytes",
                "Response size in bytes. Broken down by verb and host.",
                sizes(),
                by,
            )?,
            waits: make.histograms(
                "rest_client_rate_limiter_duration_seconds",
                "Client side rate limiter latency in seconds. Broken down by verb, and host.",
                latencies,
                by,
            )?,
        })
    }

    /// Sets the host and port of the API server, before the first request.
    pub fn set_host(&self, host: &str) {
        // There is only one server.
        let _ = self.host.set(host.to_owned());
    }

    fn host(&self) -> &str {
        self.host.get().map_or("", String::as_str)
    }

    /// Records that a request waited for so long because of the rate limit.
    pub fn held_back(&self, verb: &str, wait: Duration) {
        self.waits.with_label_values(&[verb, self.host()]).observe(wait.as_secs_f64());
    }

    /// Records a request that took so long, with the status of the response, or `None` for a
    /// failure.
    pub fn answered(&self, verb: &str, status: Option<u16>, elapsed: Duration) {
        let host = self.host();
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        self.total.with_label_values(&[&code, verb, host]).inc();
        self.duration.with_label_values(&[verb, host]).observe(elapsed.as_secs_f64());
    }

    /// Records the size of a request's body.
    pub fn sent(&self, verb: &str, bytes: u64) {
        self.request_size.with_label_values(&[verb, self.host()]).observe(bytes as f64);
    }

    /// Records the size of a response's body.
    pub fn received(&self, verb: &str, bytes: u64) {
        self.response_size.with_label_values(&[verb, self.host()]).observe(bytes as f64);
    }
}
