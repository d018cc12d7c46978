//! The health server: `/healthz` for load balancers, `/livez` and `/readyz` for the kubelet.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use hyper::{Request, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use switchyard::health::{HealthReport, ProxyHealth};
use switchyard_core::objects::Kind;
use switchyard_sources::kube::WatchHealth;

use super::{Answer, Handler, JSON, answer, not_found};
use crate::observability::metrics::Metrics;

/// The text of Go's zero time.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The silence after which an established watch is reported. A watch is opened again after 90 s,
/// and the server answers that.
const SILENT_AFTER: Duration = Duration::from_secs(180);

/// The time within which a watch that failed is heard from, or fails again: a pause of 90 s, as the
/// server may ask for a minute (`Retry-After`), and a list that is given up after 120 s, with its
/// connection and credentials before.
const RETRIED_WITHIN: Duration = Duration::from_secs(300);

/// The time for which all watches can be refused as unauthorized before that is reported.
const UNAUTHORIZED_AFTER: Duration = Duration::from_secs(600);

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
        let watches = WatchReport::new(&self.watches);
        report.problems.extend(watches.problems);
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
        let body = body(&report, healthy, eligible, good, watches.silent, Timestamp::now());
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

/// The watches that are silent.
#[derive(Debug, Default)]
struct WatchReport {
    /// For each kind whose watch is silent, the seconds since the server sent anything.
    silent: BTreeMap<&'static str, u64>,
    problems: Vec<String>,
    /// Whether a watch is silent for another reason than that the server cannot be reached.
    stuck: bool,
}

impl WatchReport {
    fn new(watches: &WatchHealth) -> Self {
        let mut report = Self::default();
        for kind in Kind::ALL {
            let failure = watches.failed(kind).map(|(age, _)| age);
            report.add(kind, watches.heard(kind), failure);
        }
        if let Some(age) = unauthorized(watches).filter(|age| *age > UNAUTHORIZED_AFTER) {
            let seconds = age.as_secs();
            report.problems.push(format!(
                "the API server has refused all watches as unauthorized for {seconds} s"
            ));
        }
        report
    }

    fn add(&mut self, kind: Kind, silence: Option<Duration>, failure: Option<Duration>) {
        let Some(silence) = silence.filter(|age| *age > SILENT_AFTER) else { return };
        let (kind, seconds) = (kind.as_str(), silence.as_secs());
        self.silent.insert(kind, seconds);
        // The cause of a failure is in the log; everybody can read the answer.
        let is_retried = failure.is_some_and(|age| age <= RETRIED_WITHIN);
        self.stuck |= !is_retried;
        let note = if is_retried { "" } else { ": the watch is stuck" };
        self.problems.push(format!("no news of {kind} objects for {seconds} s{note}"));
    }
}

/// Returns the time for which all watches have been refused as unauthorized. Watches that never
/// existed, or are absent, do not count.
fn unauthorized(watches: &WatchHealth) -> Option<Duration> {
    let exists =
        |kind: &Kind| watches.heard(*kind).is_some() || watches.unauthorized(*kind).is_some();
    let ages = Kind::ALL.into_iter().filter(exists).map(|kind| watches.unauthorized(kind));
    // A watch that is not refused makes the result `None`.
    ages.collect::<Option<Vec<Duration>>>()?.into_iter().min()
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
    use http_body_util::BodyExt;
    use switchyard_core::model::IpFamily;

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
        let nothing = ProxyHealth::new(Duration::from_secs(60)).report(Instant::now());
        assert_eq!(
            body(&nothing, true, Some(false), false, BTreeMap::new(), now),
            r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2024-05-01T10:00:30.123456789Z","nodeEligible":false,"healthy":true}"#
        );
    }

    #[test]
    fn watches_that_are_silent_are_told_beside_the_rest() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let mut watches = WatchReport::default();
        watches.add(Kind::Service, seconds(181), seconds(3));
        watches.add(Kind::EndpointSlice, seconds(180), seconds(3));
        let mut paused = WatchReport::default();
        paused.add(Kind::Service, seconds(211), seconds(210));
        assert!(!paused.stuck, "the server has asked for a minute, and does not answer");
        watches.add(Kind::ServiceCidr, None, None);
        assert!(!watches.stuck, "the server is away");
        let mut good = health(None).report(Instant::now());
        good.problems = watches.problems.clone();
        let text = body(&good, true, Some(true), true, watches.silent.clone(), Timestamp::now());
        let expected = r#"}},"silentWatches":{"Service":181},"problems":["no news of Service objects for 181 s"]}"#;
        assert!(text.ends_with(expected), "{text}");

        watches.add(Kind::Node, seconds(7200), seconds(7000));
        assert!(watches.stuck);
        assert_eq!(watches.problems[1], "no news of Node objects for 7200 s: the watch is stuck");
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
