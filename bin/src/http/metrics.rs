//! The metrics server: `/metrics`, and little besides.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{
    Request, StatusCode,
    header::{HeaderName, HeaderValue},
};

use super::{Answer, Handler, PLAIN_TEXT, answer, not_found, with_header};
use crate::{config::settings::Mode, metrics::Metrics, source::kube::WatchHealth};

const EXPOSITION: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const PROCESS_START: HeaderName = HeaderName::from_static("process-start-time-unix");

/// Answers for [`Metrics`].
pub struct MetricsHandler {
    metrics: Arc<Metrics>,
    mode: Mode,
    watches: WatchHealth,
}

impl MetricsHandler {
    /// `mode` is the active backend's.
    pub fn new(metrics: Arc<Metrics>, mode: Mode, watches: WatchHealth) -> Self {
        Self { metrics, mode, watches }
    }

    fn exposition(&self) -> Answer {
        self.metrics.watches_heard(|kind| self.watches.heard(kind));
        let mut answer = answer(StatusCode::OK, EXPOSITION, self.metrics.text());
        if let Some(start) = self.metrics.process_start() {
            with_header(&mut answer, PROCESS_START, HeaderValue::from(start));
        }
        answer
    }
}

impl Handler for MetricsHandler {
    fn answer(&self, request: &Request<Bytes>) -> Answer {
        match request.uri().path() {
            "/metrics" => self.exposition(),
            "/healthz" | "/healthz/ping" => answer(StatusCode::OK, PLAIN_TEXT, "ok"),
            "/proxyMode" => answer(StatusCode::OK, PLAIN_TEXT, self.mode.as_str()),
            _ => not_found(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn get(path: &str) -> (u16, String, String) {
        let handler = MetricsHandler::new(
            Arc::new(Metrics::new().unwrap()),
            Mode::Nftables,
            WatchHealth::new(),
        );
        let answer = handler.answer(&crate::http::get(path));
        let content_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
        if path == "/metrics" {
            let start: u64 =
                answer.headers()["process-start-time-unix"].to_str().unwrap().parse().unwrap();
            assert!(start > 1_600_000_000, "{start}");
        }
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, content_type, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn paths_are_kube_proxys() {
        let text = "text/plain; charset=utf-8".to_owned();
        assert_eq!(get("/healthz").await, (200, text.clone(), "ok".into()));
        assert_eq!(get("/healthz/ping").await, (200, text.clone(), "ok".into()));
        assert_eq!(get("/proxyMode").await, (200, text.clone(), "nftables".into()));
        for path in ["/", "/livez", "/readyz"] {
            assert_eq!(get(path).await, (404, text.clone(), "404 page not found\n".into()));
        }
        let (status, content_type, body) = get("/metrics").await;
        assert_eq!(
            (status, content_type.as_str()),
            (200, "text/plain; version=0.0.4; charset=utf-8")
        );
        assert!(body.contains("\n# TYPE process_start_time_seconds gauge\n"), "{body}");
    }
}
