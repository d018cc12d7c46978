//! The paths of the metrics server.

use std::{collections::HashSet, time::Duration};

use futures::{FutureExt, future};
use http_body_util::BodyExt;
use jiff::Timestamp;
use switchyard::health::ProxyHealth;
use switchyard_core::{model::IpFamily, objects::Kind};
use switchyard_sources::kube::WatchHealth;

use super::*;
use crate::config::settings::FlagOnlySettings;
use crate::observability::{http::get, metrics::Reload};

const TEXT: &str = "text/plain; charset=utf-8";

fn handler(change: impl FnOnce(&mut KubeProxyConfiguration)) -> MetricsHandler {
    let mut config = KubeProxyConfiguration { mode: "nftables".into(), ..Default::default() };
    config.hostname_override = "node-1".into();
    change(&mut config);
    config.apply_defaults();
    let settings = Settings::new(&config, &FlagOnlySettings::default(), Mode::NFTABLES).unwrap();
    let shown = watch::Sender::new(ConfigPages::new(&settings, &config)).subscribe();
    let set_verbosity = |verbosity| verbosity == 4;
    let metrics = Arc::new(Metrics::for_tests());
    let status = StatusSources {
        board: Arc::default(),
        health: Arc::new(ProxyHealth::new(Duration::from_secs(60))),
        table: Arc::clone(&metrics.table.usage),
        watches: WatchHealth::new(),
        client: Default::default(),
        node: "node-1".to_owned(),
    };
    MetricsHandler::new(metrics, status, shown, set_verbosity)
}

/// Returns the status, the content type and the body of the answer.
async fn ask(handler: &MetricsHandler, request: Request<Bytes>) -> (u16, String, String) {
    let answer = match handler.prepare(&request) {
        Some(prepared) => prepared.await,
        None => handler.answer(&request),
    };
    let content_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, content_type, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn the_status_has_the_form_that_is_asked_for() {
    let handler = handler(|_| {});
    let with_accept =
        |path, accept| Request::get(path).header("accept", accept).body(Bytes::new()).unwrap();
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (path, accept, content_type, start) in [
        ("/status", "*/*", TEXT, "node-1 has not synced yet; "),
        ("/status", browser, "text/html; charset=utf-8", "<!DOCTYPE html>\n"),
        ("/status", "application/json", "application/json", "{\"node\":\"node-1\","),
        ("/status?format=json", browser, "application/json", "{\"node\":\"node-1\","),
        ("/status?format=text", browser, TEXT, "node-1 has not synced yet; "),
    ] {
        let (status, found, body) = ask(&handler, with_accept(path, accept)).await;
        assert_eq!((status, found.as_str()), (200, content_type), "{path} {accept}");
        assert!(body.starts_with(start), "{body}");
    }
    let page = handler.prepare(&with_accept("/status", browser)).unwrap().await;
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    assert_eq!(policy, "default-src 'none'; style-src 'unsafe-inline'");
}

#[tokio::test]
async fn a_kernel_that_is_slow_keeps_no_other_page_waiting() {
    let handler = handler(|_| {});
    let asked = handler.status.table.lock();
    let request = get("/status");
    let mut status = handler.prepare(&request).unwrap();
    assert!((&mut status).now_or_never().is_none());
    assert_eq!(handler.answer(&get("/healthz")).status(), StatusCode::OK);
    drop(asked);
    assert_eq!(status.await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_node_that_load_balancers_leave_out_is_a_problem() {
    let handler = handler(|_| {});
    let health = &handler.status.health;
    health.started(&IpFamily::ALL, Timestamp::now());
    health.synced(Timestamp::now(), Instant::now(), |_| true);
    for is_eligible in [false, true] {
        health.set_node_eligible(is_eligible);
        let (_, _, body) = ask(&handler, get("/status")).await;
        assert_eq!(body.contains("there is no Node node-1, or "), !is_eligible, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_never_worked_are_a_problem() {
    let handler = handler(|_| {});
    for (refused, is_silent) in [(Some(Duration::from_secs(181)), true), (None, false)] {
        handler.status.watches.set(Kind::Service, None, refused);
        let (_, _, body) = ask(&handler, get("/status")).await;
        assert_eq!(body.contains("no news of Service objects for 181 s"), is_silent, "{body}");
        let text = handler.metrics.exposition(&handler.status);
        let series = "switchyard_watch_silence_seconds{kind=\"Service\"} 181";
        assert_eq!(text.contains(series), is_silent, "{text}");
    }
}

#[tokio::test]
async fn configz_shows_the_addresses_of_node_ports_in_effect() {
    for (mode, shown) in [("nftables", r#"["primary"]"#), ("", r#"["primary","localhost"]"#)] {
        let (status, _, body) =
            ask(&handler(|config| config.mode = mode.into()), get("/configz")).await;
        let shown = format!(r#""nodePortAddresses":{shown}"#);
        assert!(status == 200 && body.contains(&shown), "{body}");
    }
}

#[tokio::test]
async fn clients_that_ask_together_share_a_text() {
    let handler = handler(|_| {});
    let request = get("/metrics");
    let answers = future::join_all((0..64).map(|_| handler.prepare(&request).unwrap())).await;
    let mut texts = HashSet::new();
    for answer in answers {
        assert_eq!(answer.headers()["content-type"], METRICS);
        texts.insert(answer.into_body().collect().await.unwrap().to_bytes().as_ptr());
    }
    // The first may have begun before the others asked.
    assert!(texts.len() <= 2, "{}", texts.len());
    let before = handler.metrics.text();
    handler.metrics.reloads.reloaded(Reload::Rejected);
    let answer = handler.prepare(&request).unwrap().await;
    let after = answer.into_body().collect().await.unwrap().to_bytes();
    let rejected = "reloads_total{result=\"rejected\"} 1";
    assert!(!before.contains(rejected));
    assert!(str::from_utf8(&after).unwrap().contains(rejected), "a later one has its own");
}
