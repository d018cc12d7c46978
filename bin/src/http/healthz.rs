//! The health server: `/healthz` for load balancers, `/livez` for the kubelet.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::{Request, StatusCode};
use jiff::Timestamp;
use proxy_core::objects::Kind;
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{Answer, Handler, JSON, answer, not_found};
use crate::{
    health::{HealthReport, ProxyHealth},
    metrics::Metrics,
    source::kube::WatchHealth,
};

/// What Go prints for a time that was never set.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// A watch that was established and has not been heard from for so long is reported. A good one is
/// heard from every 75 s.
const SILENT_AFTER: Duration = Duration::from_secs(180);

/// Answers for [`ProxyHealth`].
pub struct HealthzHandler {
    health: Arc<ProxyHealth>,
    metrics: Arc<Metrics>,
    watches: WatchHealth,
}

impl HealthzHandler {
    /// Answers are counted in `metrics`. That `watches` hear nothing because the API server is away
    /// is said, and changes nothing else: no node must lose its traffic because of that, let alone
    /// all at once. One that does not even try any more is unhealthy.
    pub fn new(health: Arc<ProxyHealth>, metrics: Arc<Metrics>, watches: WatchHealth) -> Self {
        Self { health, metrics, watches }
    }
}

impl Handler for HealthzHandler {
    fn answer(&self, request: &Request<Bytes>) -> Answer {
        let mut report = self.health.report(Instant::now());
        let watches = Watches::of(&self.watches);
        report.problems.extend(watches.problems);
        let healthy = report.healthy() && !watches.stuck;
        let (good, eligible, counter) = match request.uri().path() {
            "/healthz" => {
                (healthy && report.node_eligible, Some(report.node_eligible), &self.metrics.healthz)
            }
            "/livez" => (healthy, None, &self.metrics.livez),
            _ => return not_found(),
        };
        let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        counter.with_label_values(&[status.as_str()]).inc();
        let body = body(&report, healthy, eligible, good, watches.silent, Timestamp::now());
        answer(status, JSON, body)
    }
}

/// The body. Its fields come in this order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "Status::is_empty")]
    status: Status<'a>,
    /// Ours: by kind of object, for how many seconds its watch has been silent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    silent_watches: BTreeMap<&'static str, u64>,
    /// Ours: what is wrong, in words.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    problems: &'a [String],
}

/// What is to be said of the watches.
#[derive(Debug, Default)]
struct Watches {
    /// For how many seconds those that are silent have been so.
    silent: BTreeMap<&'static str, u64>,
    problems: Vec<String>,
    /// One is silent, and not because the server is away.
    stuck: bool,
}

impl Watches {
    fn of(health: &WatchHealth) -> Self {
        let mut watches = Self::default();
        for kind in Kind::ALL {
            watches.add(kind, health.heard(kind), health.failed(kind));
        }
        watches
    }

    fn add(&mut self, kind: Kind, heard: Option<Duration>, failed: Option<(Duration, String)>) {
        let Some(silence) = heard.filter(|age| *age > SILENT_AFTER) else { return };
        let (kind, seconds) = (kind.as_str(), silence.as_secs());
        self.silent.insert(kind, seconds);
        let since = failed.filter(|(age, _)| *age <= SILENT_AFTER);
        let why = match since {
            Some((_, why)) => why,
            None => {
                self.stuck = true;
                "the watch is stuck".to_owned()
            }
        };
        self.problems.push(format!("no news of {kind} objects for {seconds} s: {why}"));
    }
}

struct Status<'a>(&'a HealthReport);

impl Status<'_> {
    fn is_empty(&self) -> bool {
        self.0.families.is_empty()
    }
}

impl Serialize for Status<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Family {
            last_updated: String,
            healthy: bool,
        }
        let mut map = serializer.serialize_map(Some(self.0.families.len()))?;
        for (family, report) in &self.0.families {
            let last_updated = report.last_updated.to_string();
            map.serialize_entry(
                family.as_str(),
                &Family { last_updated, healthy: report.healthy },
            )?;
        }
        map.end()
    }
}

/// A good answer is up to date by definition; a bad one says since when it is not.
fn body(
    report: &HealthReport,
    healthy: bool,
    eligible: Option<bool>,
    good: bool,
    silent_watches: BTreeMap<&'static str, u64>,
    now: Timestamp,
) -> String {
    let last_updated = if good { Some(now) } else { report.newest_update() };
    let body = Body {
        last_updated: last_updated.map_or_else(|| NEVER.to_owned(), |time| time.to_string()),
        current_time: now.to_string(),
        node_eligible: eligible,
        healthy,
        status: Status(report),
        silent_watches,
        problems: &report.problems,
    };
    // Nothing in it can fail to be JSON.
    serde_json::to_string(&body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use proxy_core::model::IpFamily;

    use super::*;
    use crate::http::get;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// A health whose families were synced at a given time, and have waited for `waiting` since.
    fn health(waiting: Option<Duration>) -> ProxyHealth {
        let health = ProxyHealth::new(Duration::from_secs(60));
        health.started(&IpFamily::ALL, time("2024-05-01T00:00:00Z"));
        health.synced(time("2024-05-01T10:00:00.25Z"));
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
        let nothing = ProxyHealth::new(Duration::from_secs(60)).report(Instant::now());
        assert_eq!(
            body(&nothing, true, Some(false), false, BTreeMap::new(), now),
            r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2024-05-01T10:00:30.123456789Z","nodeEligible":false,"healthy":true}"#
        );
    }

    #[test]
    fn watches_that_are_silent_are_told_beside_the_rest() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let away = |age| seconds(age).map(|age| (age, "no route to host".to_owned()));
        let mut watches = Watches::default();
        watches.add(Kind::Service, seconds(181), away(3));
        watches.add(Kind::EndpointSlice, seconds(180), away(3));
        watches.add(Kind::ServiceCidr, None, None);
        assert!(!watches.stuck, "the server is away");
        let mut good = health(None).report(Instant::now());
        good.problems = watches.problems.clone();
        let text = body(&good, true, Some(true), true, watches.silent.clone(), Timestamp::now());
        let expected = r#"}},"silentWatches":{"Service":181},"problems":["no news of Service objects for 181 s: no route to host"]}"#;
        assert!(text.ends_with(expected), "{text}");

        watches.add(Kind::Node, seconds(7200), away(7000));
        assert!(watches.stuck);
        assert_eq!(watches.problems[1], "no news of Node objects for 7200 s: the watch is stuck");
    }

    async fn check(health: ProxyHealth, path: &str, expected: u16) -> serde_json::Value {
        let metrics = Arc::new(Metrics::for_tests());
        let handler =
            HealthzHandler::new(Arc::new(health), Arc::clone(&metrics), WatchHealth::new());
        let answer = handler.answer(&get(path));
        assert_eq!(answer.status().as_u16(), expected, "{path}");
        assert_eq!(answer.headers()["content-type"], "application/json");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        let name = path.trim_start_matches('/');
        let counted = format!("kubeproxy_proxy_{name}_total{{code=\"{expected}\"}} 1\n");
        assert!(metrics.text().contains(&counted), "{counted} in {}", metrics.text());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn eligibility_concerns_healthz_only() {
        let body = check(health(None), "/healthz", 503).await;
        assert_eq!((&body["nodeEligible"], &body["healthy"]), (&false.into(), &true.into()));
        assert_eq!(body["lastUpdated"], "2024-05-01T10:00:00.25Z");
        let body = check(health(None), "/livez", 200).await;
        assert_eq!(body.get("nodeEligible"), None);
        assert_eq!(body["lastUpdated"], body["currentTime"]);

        let eligible = health(None);
        eligible.set_node_eligible(true);
        check(eligible, "/healthz", 200).await;
    }

    #[tokio::test]
    async fn a_sync_that_does_not_come_is_unhealthy() {
        let late = || {
            let health = health(Some(Duration::from_secs(60)));
            health.set_node_eligible(true);
            health
        };
        let body = check(late(), "/healthz", 503).await;
        assert_eq!(body["status"]["IPv6"]["healthy"], false);
        check(late(), "/livez", 503).await;
        check(health(Some(Duration::from_secs(50))), "/livez", 200).await;
    }

    #[test]
    fn other_paths_are_not_there() {
        let handler = HealthzHandler::new(
            Arc::new(health(None)),
            Arc::new(Metrics::for_tests()),
            WatchHealth::new(),
        );
        for path in ["/", "/healthz/", "/readyz", "/metrics"] {
            assert_eq!(handler.answer(&get(path)).status(), StatusCode::NOT_FOUND, "{path}");
        }
    }
}
