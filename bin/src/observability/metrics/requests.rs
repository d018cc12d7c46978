//! The `rest_client_*` metrics: requests to the API server.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use switchyard_sources::kube::RequestObserver;

use super::maker::{Maker, metrics};

const BY: &[&str] = &["verb", "host"];

/// The buckets of sizes, in bytes.
fn sizes() -> Vec<f64> {
    [64, 256, 512, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216]
        .map(f64::from)
        .to_vec()
}

/// The buckets of times, in seconds.
fn latencies() -> Vec<f64> {
    vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0]
}

metrics! {
    #[derive(Clone, Debug)]
    Families {
        total: counters("rest_client_requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host.",
            &["code", "method", "host"]),
        duration: histograms("rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host.", latencies(), BY),
        request_size: histograms("rest_client_request_size_bytes",
            "Request size in bytes. Broken down by verb and host.", sizes(), BY),
        response_size: histograms("rest_client_response_size_bytes",
            "Response size in bytes. Broken down by verb and host.", sizes(), BY),
        waits: histograms("rest_client_rate_limiter_duration_seconds",
            "Client side rate limiter latency in seconds. Broken down by verb, and host.", latencies(), BY),
    }
}

/// The metrics of requests to the API server, the same as client-go's. Clones share the metrics.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    host: Arc<OnceLock<String>>,
    families: Families,
}

impl RequestMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self { host: Arc::default(), families: Families::new(make)? })
    }

    fn host(&self) -> &str {
        self.host.get().map_or("", String::as_str)
    }
}

impl RequestObserver for RequestMetrics {
    fn connecting_to(&self, host: &str) {
        // There is only one server.
        let _ = self.host.set(host.to_owned());
    }

    fn sent(&self, verb: &str, bytes: u64) {
        self.families.request_size.with_label_values(&[verb, self.host()]).observe(bytes as f64);
    }

    fn answered(&self, verb: &str, status: Option<u16>, elapsed: Duration) {
        let host = self.host();
        let code = status.map_or_else(|| "<error>".to_owned(), |status| status.to_string());
        self.families.total.with_label_values(&[&code, verb, host]).inc();
        self.families.duration.with_label_values(&[verb, host]).observe(elapsed.as_secs_f64());
    }

    fn received(&self, verb: &str, bytes: u64) {
        self.families.response_size.with_label_values(&[verb, self.host()]).observe(bytes as f64);
    }

    fn held_back(&self, verb: &str, wait: Duration) {
        self.families.waits.with_label_values(&[verb, self.host()]).observe(wait.as_secs_f64());
    }
}
