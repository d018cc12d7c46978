//! The health server: `/healthz` for load balancers, `/livez` and `/readyz` for the kubelet.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use bytes::Bytes;
use hyper::{Request, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use switchyard::health::{HealthReport, ProxyHealth};
use switchyard_sources::kube::WatchHealth;

use super::{Answer, Handler, JSON, answer, not_found};
use crate::observability::{metrics::Metrics, watches::WatchReport};

/// The text of Go's zero time.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The handler that reports [`ProxyHealth`].
pub struct HealthzHandler {
    health: Arc<ProxyHealth>,
    metrics: Arc<Metrics>,
    watches: WatchHealth,
}

impl HealthzHandler {
    /// Returns a handler that counts its answers in `metrics`. Watches that are silent because the
    /// API server cannot be reached, or refuses the credentials, are only reported, since no node
    /// may lose its traffic for that reason, let alone all nodes at once: a program that is started
    /// again without its API server has nothing to serve. A silent watch that is not retried makes
    /// the proxy unhealthy. `/livez` is good, unlike kube-proxy's, while the node refuses one
    /// family and the other is served, which a restart would only interrupt. `/readyz`, which
    /// kube-proxy does not have, is good if all families are, and fails before the first sync, too:
    /// a rollout must not go on before.
    pub fn new(health: Arc<ProxyHealth>, metrics: Arc<Metrics>, watches: WatchHealth) -> Self {
        Self { health, metrics, watches }
    }
}

impl Handler for HealthzHandler {
    fn answer(&self, request: &Request<Bytes>) -> Answer {
        let mut report = self.health.report(Instant::now());
        let mut watches = WatchReport::new(&self.watches);
        report.problems.append(&mut watches.problems);
        let healthy = report.healthy() && !watches.stuck;
        let node_eligible = report.node_eligible;
        let (healthy, good, eligible, counter) = match request.uri().path() {
            "/healthz" => {
                let good = healthy && node_eligible;
                (healthy, good, Some(node_eligible), Some(&self.metrics.healthz))
            }
            "/livez" => {
                let works = report.works() && !watches.stuck;
                (works, works, None, Some(&self.metrics.livez))
            }
            "/readyz" => {
                if !report.has_synced {
                    report.problems.push("not every IP family is programmed yet".to_owned());
                }
                (healthy, healthy && report.has_synced, None, None)
            }
            _ => return not_found(),
        };
        let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        if let Some(counter) = counter {
            counter.with_label_values(&[status.as_str()]).inc();
        }
        let body = body(&report, healthy, eligible, good, watches.silent(), Timestamp::now());
        answer(status, JSON, body)
    }
}

/// The body of an answer, with the fields in kube-proxy's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, Family>,
    /// For each kind of object whose watch is silent, the seconds of silence. kube-proxy does not
    /// have this field.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    silent_watches: BTreeMap<&'static str, u64>,
    /// The problems in words. kube-proxy does not have this field.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    problems: &'a [String],
}

/// The health of an IP family.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Family {
    last_updated: String,
    healthy: bool,
}

/// Returns the body. `lastUpdated` is the current time in a good answer, and the time of the last
/// sync in a bad one.
fn body(
    report: &HealthReport,
    healthy: bool,
    eligible: Option<bool>,
    good: bool,
    silent_watches: BTreeMap<&'static str, u64>,
    now: Timestamp,
) -> String {
    let last_updated = if good { Some(now) } else { report.newest_update() };
    let families = report.families.iter().map(|(family, found)| {
        let last_updated = found.last_updated.to_string();
        (family.as_str(), Family { last_updated, healthy: found.healthy })
    });
    let body = Body {
        last_updated: last_updated.map_or_else(|| NEVER.to_owned(), |time| time.to_string()),
        current_time: now.to_string(),
        node_eligible: eligible,
        healthy,
        status: families.collect(),
        silent_watches,
        problems: &report.problems,
    };
    // Every field can be serialized.
    serde_json::to_string(&body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;
    use switchyard_core::{model::IpFamily, objects::Kind};

    use super::*;
    use crate::observability::http::get;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Returns the health of a proxy that was synced once, with a sync outstanding for `waiting`.
    fn health(waiting: Option<Duration>) -> ProxyHealth {
        let health = ProxyHealth::new(Duration::from_secs(60));
        health.started(&IpFamily::ALL, time("2024-05-01T00:00:00Z"));
        health.synced(time("2024-05-01T10:00:00.25Z"), Instant::now(), |_| true);
        if let Some(waiting) = waiting {
            health.sync_requested(Instant::now() - waiting);
        }
        health
    }

    #[test]
    fn bodies_are_kube_proxys() {
        let now = time("2024-05-01T10:00:30.123456789Z");
        let good = health(None).report(Instant::now());
        assert_eq!(
            body(&good, true, Some(false), false, BTreeMap::new(), now),
            r#"{"lastUpdated":"2024-05-01T10:00:00.25Z","currentTime":"2024-05-01T10:00:30.123456789Z","nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"2024-05-01T10:00:00.25Z","healthy":true},"IPv6":{"lastUpdated":"2024-05-01T10:00:00.25Z","healthy":true}}}"#
        );
        assert_eq!(
            body(&good, true, None, true, BTreeMap::new(), now),
            r#"{"lastUpdated":"2024-05-01T10:00:30.123456789Z","currentTime":"2024-05-01T10:00:30.123456789Z","healthy":true,"status":{"IPv4":{"lastUpdated":"2024-05-01T10:00:00.25Z","healthy":true},"IPv6":{"lastUpdated":"2024-05-01T10:00:00.25Z","healthy":true}}}"#
        );
        let mut late = health(None).report(Instant::now());
        late.problems = vec!["no news of Service objects for 181 s".to_owned()];
        let text = body(&late, true, Some(true), true, BTreeMap::from([("Service", 181)]), now);
        let expected = r#"}},"silentWatches":{"Service":181},"problems":["no news of Service objects for 181 s"]}"#;
        assert!(text.ends_with(expected), "{text}");
        let nothing = ProxyHealth::new(Duration::from_secs(60)).report(Instant::now());
        assert_eq!(
            body(&nothing, true, Some(false), false, BTreeMap::new(), now),
            r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2024-05-01T10:00:30.123456789Z","nodeEligible":false,"healthy":true}"#
        );
    }

    /// Watches by the seconds since they were heard from, and for which they have been refused.
    #[tokio::test(start_paused = true)]
    async fn refused_credentials_are_reported_and_end_nothing() {
        let refused = (Some(700), Some(601));
        let absent = (None, None);
        let silent = (Some(700), None);
        for (watches, is_reported) in [
            ([refused; 4], true),
            ([refused, refused, refused, absent], true),
            // The program started with credentials that are not accepted.
            ([(None, Some(601)); 4], true),
            ([refused, refused, refused, (Some(700), Some(600))], false),
            ([refused, refused, refused, (Some(20), None)], false),
            ([refused, silent, refused, refused], false),
            ([silent; 4], false),
            ([absent; 4], false),
        ] {
            let health = health(None);
            health.set_node_eligible(true);
            let record = WatchHealth::new();
            for (kind, (heard, unauthorized)) in Kind::ALL.into_iter().zip(watches) {
                let [heard, unauthorized] =
                    [heard, unauthorized].map(|it| it.map(Duration::from_secs));
                record.set(kind, heard, unauthorized);
            }
            let metrics = Arc::new(Metrics::for_tests());
            let handler = HealthzHandler::new(Arc::new(health), metrics, record);
            for path in ["/livez", "/healthz"] {
                let answer = handler.answer(&get(path));
                assert_eq!(answer.status().as_u16(), 200, "{path} {watches:?}");
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                let body = String::from_utf8(body.to_vec()).unwrap();
                let problem = "the API server has refused all watches as unauthorized for 601 s";
                assert_eq!(body.contains(problem), is_reported, "{path}: {body}");
                assert!(body.contains("\"healthy\":true"), "{body}");
            }
        }
    }
}
