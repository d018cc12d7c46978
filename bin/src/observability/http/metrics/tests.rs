//! The paths of the metrics server.

use http_body_util::BodyExt;
use serde_json::Value;

use super::*;
use crate::config::settings::FlagOnlySettings;
use crate::observability::{http::get, watches::NoWatches};

const TEXT: &str = "text/plain; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

fn handler(change: impl FnOnce(&mut KubeProxyConfiguration)) -> MetricsHandler {
    let mut config = KubeProxyConfiguration { mode: "nftables".into(), ..Default::default() };
    config.hostname_override = "node-1".into();
    change(&mut config);
    config.apply_defaults();
    let settings = Settings::new(&config, &FlagOnlySettings::default(), Mode::NFTABLES).unwrap();
    let shown = watch::Sender::new(ConfigPages::new(&settings, &config)).subscribe();
    let set_verbosity = |verbosity| verbosity == 4;
    MetricsHandler::new(Arc::new(Metrics::for_tests()), Arc::new(NoWatches), shown, set_verbosity)
}

/// Returns the status, the content type and the body of the answer.
async fn ask(handler: &MetricsHandler, request: Request<Bytes>) -> (u16, String, String) {
    let answer = handler.answer(&request);
    let content_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, content_type, String::from_utf8(body.to_vec()).unwrap())
}

async fn text(handler: &MetricsHandler, path: &str) -> String {
    let (status, content_type, body) = ask(handler, get(path)).await;
    assert_eq!((status, content_type.as_str()), (200, TEXT), "{path}: {body}");
    body
}

fn with_method(method: Method, path: &str, body: &'static str) -> Request<Bytes> {
    Request::builder().method(method).uri(path).body(body.into()).unwrap()
}

#[tokio::test]
async fn paths_are_kube_proxys() {
    let handler = handler(|_| {});
    assert_eq!(text(&handler, "/healthz").await, "ok");
    assert_eq!(text(&handler, "/healthz/ping").await, "ok");
    assert_eq!(text(&handler, "/proxyMode").await, "nftables");
    for path in ["/", "/livez", "/readyz", "/debug/flags/v", "/debug/flags"] {
        let expected = (404, TEXT.to_owned(), "404 page not found\n".to_owned());
        assert_eq!(ask(&handler, get(path)).await, expected, "{path}");
    }
    let start = handler.answer(&get("/metrics")).headers()[PROCESS_START].to_str().unwrap().parse();
    assert!(start.is_ok_and(|start: u64| start > 1_600_000_000));
    let (status, content_type, body) = ask(&handler, get("/metrics")).await;
    assert_eq!((status, content_type.as_str()), (200, CLASSIC));
    assert!(body.contains("\n# TYPE process_start_time_seconds gauge\n"), "{body}");
}

#[tokio::test]
async fn pings_are_counted_until_they_are_forgotten() {
    let handler = handler(|_| {});
    let total = "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} ";
    let (_, content_type, body) = ask(&handler, get("/metrics/slis")).await;
    assert_eq!((content_type.as_str(), body.as_str()), (CLASSIC, ""));
    text(&handler, "/healthz").await;
    assert_eq!(text(&handler, "/healthz?verbose").await, "[+]ping ok\nhealthz check passed\n");
    let excluded = text(&handler, "/healthz?verbose&exclude=ping&exclude=x&exclude=x").await;
    assert_eq!(
        excluded,
        "[+]ping excluded: ok\n\
         warn: some health checks cannot be excluded: no matches for \"x\"\n\
         healthz check passed\n"
    );
    let (_, _, body) = ask(&handler, get("/metrics/slis")).await;
    assert!(body.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1\n"), "{body}");
    assert!(body.contains(&format!("{total}2\n")), "{body}");
    assert!(!handler.metrics.text().contains("kubernetes_healthcheck"), "not at /metrics");
    let (status, _, body) = ask(&handler, with_method(Method::DELETE, "/metrics/slis", "")).await;
    assert_eq!((status, body.as_str()), (200, "metrics reset\n"));
    let (_, _, body) = ask(&handler, get("/metrics/slis")).await;
    assert!(!body.contains("ping"), "{body}");
}

#[tokio::test]
async fn the_configuration_in_effect_is_shown() {
    let handler = handler(|config| config.cluster_cidr = "10.1.0.0/16".into());
    let (status, content_type, body) = ask(&handler, get("/configz")).await;
    assert_eq!((status, content_type.as_str()), (200, "application/json"));
    let body: Value = serde_json::from_str(&body).unwrap();
    let config = &body["kubeproxy.config.k8s.io"];
    assert_eq!(config["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
    assert_eq!(config["clusterCIDR"], "10.1.0.0/16");
    assert_eq!(config["nftables"]["syncPeriod"], "30s");
    assert_eq!(config["iptables"]["syncPeriod"], "0s");
}

#[tokio::test]
async fn verbosity_is_put() {
    let handler = handler(|config| config.enable_profiling = true);
    assert!(text(&handler, "/debug/flags").await.contains("\nv\n"));
    let path = "/debug/flags/v";
    assert_eq!(ask(&handler, get(path)).await.0, 406);
    assert_eq!(ask(&handler, get("/debug/nonsense")).await.0, 404);
    let (status, _, body) = ask(&handler, with_method(Method::PUT, path, "loud\u{1b}")).await;
    assert_eq!(status, 400);
    assert!(body.starts_with("failed set klog.logging.verbosity loud\\u{1b}: "), "{body}");
    let (status, _, body) = ask(&handler, with_method(Method::PUT, path, "4\n")).await;
    assert_eq!((status, &*body), (200, "successfully set klog.logging.verbosity to 4"));
    // The function rejects every other verbosity.
    let (status, _, _) = ask(&handler, with_method(Method::PUT, path, "5")).await;
    assert_eq!(status, 500);
}
