//! Adapters between crates that do not know each other: they show the Kubernetes source's watches
//! and requests to the servers and metrics of `switchyard-observability`.

use std::time::Duration;

use switchyard_core::objects::Kind;
use switchyard_source_kube::{RequestObserver, WatchHealth};

use crate::observability::{metrics::RequestMetrics, watches::Watches};

/// The health of the source's watches, as the servers query it.
pub struct SourceWatches(pub WatchHealth);

impl Watches for SourceWatches {
    fn silence(&self, kind: Kind) -> Option<Duration> {
        self.0.heard(kind)
    }

    fn last_failure(&self, kind: Kind) -> Option<Duration> {
        self.0.failed(kind).map(|(age, _)| age)
    }

    fn unauthorized(&self, kind: Kind) -> Option<Duration> {
        self.0.unauthorized(kind)
    }
}

/// The metrics of requests, as the source's observer.
#[derive(Clone, Debug)]
pub struct ObservedRequests(pub RequestMetrics);
impl RequestObserver for ObservedRequests {
    fn connecting_to(&self, host: &str) {
        self.0.set_host(host);
    }

    fn sent(&self, verb: &str, bytes: u64) {
        self.0.sent(verb, bytes);
    }

    fn answered(&self, verb: &str, status: Option<u16>, elapsed: Duration) {
        self.0.answered(verb, status, elapsed);
    }

    fn received(&self, verb: &str, bytes: u64) {
        self.0.received(verb, bytes);
    }

    fn held_back(&self, verb: &str, wait: Duration) {
        self.0.held_back(verb, wait);
    }
}
