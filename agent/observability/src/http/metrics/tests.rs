//! The paths of the metrics server.

use http_body_util::BodyExt;
use hyper::header::ACCEPT;
use serde_json::Value;
use switchyard_config::settings::FlagOnlySettings;

use super::*;

use crate::{http::get, watches::NoWatches};

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

fn accepting(path: &str, accepted: &str) -> Request<Bytes> {
    Request::get(path).header(ACCEPT, accepted).body(Bytes::new()).unwrap()
}

#[tokio::test]
async fn paths_are_kube_proxys() {
    let handler = handler(|_| {});
    assert_eq!(text(&handler, "/healthz").await, "ok");
    assert_eq!(text(&handler, "/healthz/ping").await, "ok");
    assert_eq!(text(&handler, "/proxyMode").await, "nftables");
    for path in ["/", "/livez", "/readyz", "/debug/flags/v", "/debug/pprof/"] {
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
async fn pages_can_be_switched_off() {
    let without =
        |gate: &str| handler(|config| config.feature_gates = [(gate.to_owned(), false)].into());
    for (gate, flagz, statusz) in
        [("ComponentFlagz", 404, 200), ("ComponentStatusz", 200, 404), ("AllBeta", 404, 404)]
    {
        let handler = without(gate);
        assert_eq!(ask(&handler, get("/flagz")).await.0, flagz, "{gate}");
        assert_eq!(ask(&handler, get("/statusz")).await.0, statusz, "{gate}");
    }
    assert!(!text(&without("ComponentFlagz"), "/statusz").await.contains("/flagz"));
}

#[tokio::test]
async fn flags_are_shown_to_people_and_programs() {
    let handler = handler(|config| {
        config.node_port_addresses = vec!["10.0.0.0/8".into(), "fd00::/8".into()];
        config.feature_gates.insert("X".into(), true);
        config.nftables.masquerade_all = true;
    });
    let page = text(&handler, "/flagz").await;
    assert!(page.starts_with("\nkube-proxy flags\nWarning: This endpoint is not "), "{page}");
    let (_, lines) = page.split_once("only.\n\n").unwrap();
    let lines: Vec<&str> = lines.lines().collect();
    assert!(lines.is_sorted_by_key(|line| line.split_once('=').unwrap().0), "{page}");
    for line in [
        "bind-address=0.0.0.0",
        "feature-gates=X=true",
        "hostname-override=node-1",
        "iptables-masquerade-bit=14",
        "iptables-sync-period=30s",
        "kubeconfig=",
        "masquerade-all=true",
        "nft-transport=netlink",
        "lb-algorithm=",
        "nodeport-addresses=10.0.0.0/8,fd00::/8",
        "proxy-mode=nftables",
    ] {
        assert!(lines.contains(&line), "{line} is not in {page}");
    }

    let beta = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
    let (status, content_type, body) = ask(&handler, accepting("/flagz", beta)).await;
    assert_eq!((status, content_type.as_str()), (200, "application/json"));
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["kind"], "Flagz");
    assert_eq!(body["apiVersion"], "config.k8s.io/v1beta1");
    assert_eq!(body["metadata"]["name"], "kube-proxy");
    assert_eq!(body["flags"]["proxy-mode"], "nftables");
    assert_eq!(body["flags"].as_object().unwrap().len(), lines.len());

    let yaml = "application/yaml; v=v1beta1; g=config.k8s.io; as=Flagz";
    let (status, content_type, _) = ask(&handler, accepting("/flagz", yaml)).await;
    assert_eq!((status, content_type.as_str()), (200, "application/yaml"));
}

#[tokio::test]
async fn what_is_accepted_decides_the_form() {
    let handler = handler(|_| {});
    let object = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
    for (accepted, status, content_type) in [
        ("*/*", 200, TEXT),
        ("text/html, text/plain;q=0.9", 200, TEXT),
        ("application/json", 406, TEXT),
        ("image/png", 406, TEXT),
        (object, 200, "application/json"),
        ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", 406, TEXT),
        ("application/json;v=v9;g=config.k8s.io;as=Statusz", 406, TEXT),
        (&format!("application/json, {object}"), 200, "application/json"),
        (&format!("text/plain, {object}"), 200, TEXT),
    ] {
        let found = ask(&handler, accepting("/statusz", accepted)).await;
        assert_eq!((found.0, found.1.as_str()), (status, content_type), "{accepted}");
    }
    let warning = |accepted: &str| {
        let answer = handler.answer(&accepting("/statusz", accepted));
        answer.headers().get("warning").map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(warning(object), None);
    let old = warning(&object.replace("v1beta1", "v1alpha1")).unwrap();
    assert!(old.starts_with("299 - \"config.k8s.io/v1alpha1 Statusz is deprecated"), "{old}");
}

#[tokio::test]
async fn the_status_says_since_when() {
    let handler = MetricsHandler {
        start: Timestamp::now() - jiff::SignedDuration::from_secs(3600 + 2 * 60 + 3),
        ..handler(|_| {})
    };
    let page = text(&handler, "/statusz").await;
    assert!(page.starts_with("\nkube-proxy statusz\nWarning: "), "{page}");
    assert!(page.contains("\nUp: 1 hr 02 min 03 sec\n") || page.contains(" 04 sec\n"), "{page}");
    let version = env!("CARGO_PKG_VERSION");
    assert!(page.contains(&format!("\nBinary version: {version}\n")), "{page}");
    assert!(page.contains("\nPaths: /configz /flagz /healthz /metrics "), "{page}");
    assert!(!page.contains("/debug"), "{page}");

    let object = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
    let (_, _, body) = ask(&handler, accepting("/statusz", object)).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert!((3723..3730).contains(&body["uptimeSeconds"].as_u64().unwrap()), "{body}");
    let start: Timestamp = body["startTime"].as_str().unwrap().parse().unwrap();
    assert_eq!(start.as_second(), handler.start.as_second());
    assert_eq!(body["paths"].as_array().unwrap().len(), PATHS.len());
}

#[tokio::test]
async fn verbosity_is_put() {
    let handler = handler(|config| config.enable_profiling = true);
    assert!(text(&handler, "/statusz").await.contains(" /debug/flags /debug/flags/v "), "listed");
    assert!(text(&handler, "/debug/flags").await.contains("\nv\n"));
    let path = "/debug/flags/v";
    assert_eq!(ask(&handler, get(path)).await.0, 406);
    let (status, _, why) = ask(&handler, get("/debug/pprof/profile")).await;
    assert!(status == 501 && why.contains("perf record"), "{why}");
    assert_eq!(ask(&handler, get("/debug/pprof/nonsense")).await.0, 404);
    assert!(!text(&handler, "/debug/pprof/cmdline").await.is_empty());
    let (status, _, body) = ask(&handler, with_method(Method::PUT, path, "loud\u{1b}")).await;
    assert_eq!(status, 400);
    assert!(body.starts_with("failed set klog.logging.verbosity loud\\u{1b}: "), "{body}");
    let (status, _, body) = ask(&handler, with_method(Method::PUT, path, "4\n")).await;
    assert_eq!((status, &*body), (200, "successfully set klog.logging.verbosity to 4"));
    // The function rejects every other verbosity.
    let (status, _, _) = ask(&handler, with_method(Method::PUT, path, "5")).await;
    assert_eq!(status, 500);
}
