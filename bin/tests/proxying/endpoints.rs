//! Every path of the health and the metrics server, and where these listen.

use std::net::TcpListener;

use serde_json::Value;

use crate::{
    manifests::{Manifests, NODE, service, slice},
    namespace::{HEALTH, METRICS, Namespace, Program, until},
};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

fn start(namespace: &Namespace, more: &[&str]) -> (Manifests, Program) {
    let spec = "type: LoadBalancer, clusterIP: 10.96.0.10, externalTrafficPolicy: Local, \
                healthCheckNodePort: 31000, ports: [{port: 80, protocol: TCP, nodePort: 30080}]";
    let endpoints = slice("web", "8080", "{addresses: [10.0.0.5], nodeName: node-1}");
    let manifests = Manifests::new(&(NODE.to_owned() + &service("web", spec) + &endpoints));
    let program = manifests.start(namespace, &[&["--proxy-mode=nftables"], more].concat());
    (manifests, program)
}

/// An answer that was looked at from outside.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn to(namespace: &Namespace, server: &str, request: &str, headers: &[&str]) -> Self {
        let (head, body) = namespace.ask(server, request, headers, "");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let header = |line: &str| -> Option<usize> {
            line.split_once(": ").filter(|(found, _)| found.eq_ignore_ascii_case(name))?;
            Some(name.len() + 2)
        };
        self.head.lines().find_map(|line| header(line).map(|start| &line[start..]))
    }
}

#[test]
fn every_path_answers_as_kube_proxys() {
    let namespace = Namespace::new();
    let (manifests, program) = start(&namespace, &["--profiling"]);
    namespace.wait_for_service_ports(1);
    namespace.wait(HEALTH, "/readyz", |status, _| status == 200);

    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                    encoding=delimited;q=0.7,text/plain;version=0.0.4;q=0.3";
    let not_found = "404 page not found\n";
    // Server, request, what is accepted; status, type, a part of the body.
    for (server, request, accept, status, content_type, part) in [
        (HEALTH, "GET /healthz", "", 200, JSON, r#""nodeEligible":true,"healthy":true,"status""#),
        (HEALTH, "POST /healthz", "", 200, JSON, "{\"lastUpdated\":\""),
        (HEALTH, "GET /healthz?x=y", "", 200, JSON, "\"IPv4\":{\"lastUpdated\":\""),
        (HEALTH, "GET /livez", "", 200, JSON, "Z\",\"healthy\":true,\"status\":{"),
        (HEALTH, "GET /", "", 404, TEXT, not_found),
        (HEALTH, "GET /healthz/", "", 404, TEXT, not_found),
        (HEALTH, "GET /readyz", "", 200, JSON, "Z\",\"healthy\":true,\"status\":{"),
        (HEALTH, "GET /readyz/", "", 404, TEXT, not_found),
        (HEALTH, "GET /metrics", "", 404, TEXT, not_found),
        (METRICS, "GET /metrics", "", 200, CLASSIC, "\n# TYPE kubeproxy_sync_proxy_rules_"),
        (METRICS, "GET /metrics", "*/*", 200, CLASSIC, "# HELP "),
        (METRICS, "GET /metrics", protobuf, 200, CLASSIC, "# HELP "),
        (METRICS, "GET /metrics/slis", "", 200, CLASSIC, ""),
        (METRICS, "GET /healthz", "", 200, TEXT, "ok"),
        (METRICS, "GET /healthz/ping", "", 200, TEXT, "ok"),
        (METRICS, "GET /healthz?verbose", "", 200, TEXT, "[+]ping ok\nhealthz check passed\n"),
        (METRICS, "GET /metrics/slis", "", 200, CLASSIC, "type=\"healthz\"} 2\n"),
        (METRICS, "DELETE /metrics/slis", "", 200, TEXT, "metrics reset\n"),
        (METRICS, "GET /metrics/slis", "", 200, CLASSIC, ""),
        (METRICS, "GET /healthz/nonsense", "", 404, TEXT, not_found),
        (METRICS, "GET /proxyMode", "", 200, TEXT, "nftables"),
        (METRICS, "GET /configz", "", 200, JSON, "{\"kubeproxy.config.k8s.io\":{"),
        (METRICS, "GET /debug/flags", "", 200, TEXT, "\nv\n"),
        (METRICS, "GET /debug/flags/v", "", 406, TEXT, "unrecognized http method"),
        (METRICS, "GET /", "", 404, TEXT, not_found),
        (METRICS, "GET /livez", "", 404, TEXT, not_found),
        (METRICS, "GET /readyz", "", 404, TEXT, not_found),
    ] {
        let accept = format!("Accept: {accept}");
        let headers = if accept == "Accept: " { vec![] } else { vec![accept.as_str()] };
        let answer = Answer::to(&namespace, server, request, &headers);
        let what = format!("{server} {request} {accept}: {}", answer.head);
        assert_eq!(answer.status, status, "{what}");
        assert_eq!(answer.header("content-type"), Some(content_type), "{what}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{what}");
        let body = String::from_utf8_lossy(&answer.body);
        assert!(body.contains(part), "{what}\n{body}");
        if request == "GET /metrics" && server == METRICS {
            let start: u64 = answer.header("process-start-time-unix").unwrap().parse().unwrap();
            assert!(start > 1_600_000_000, "{what}");
        }
    }

    let ask = |request| Answer::to(&namespace, METRICS, request, &[]);
    // Nothing but the word, and nothing at all.
    assert_eq!(ask("GET /proxyMode").body, b"nftables");
    assert_eq!(ask("GET /metrics/slis").body, b"");
    let head = Answer::to(&namespace, HEALTH, "HEAD /livez", &[]);
    assert_eq!((head.status, head.body.len()), (200, 0));
    let config: Value = serde_json::from_slice(&ask("GET /configz").body).unwrap();
    let config = &config["kubeproxy.config.k8s.io"];
    assert_eq!(config["kind"], "KubeProxyConfiguration");
    assert_eq!(config["enableProfiling"], true);

    let (_, answer) = namespace.ask(METRICS, "PUT /debug/flags/v", &[], "2");
    assert_eq!(answer, b"successfully set klog.logging.verbosity to 2");
    manifests.write("more", &service("more", "clusterIP: 10.96.0.11, ports: [{port: 80}]"));
    namespace.wait_for_service_ports(2);
    let (_, log) = program.terminate();
    let mut synced = log.lines().filter(|line| line.contains("\"Synced\""));
    assert!(
        synced.all(|line| line.contains("service_ports=2")) && log.contains("\"Synced\""),
        "{log}"
    );
}

#[test]
fn nothing_is_open_that_was_not_asked_for() {
    let namespace = Namespace::new();
    let (_manifests, _program) = start(&namespace, &["--healthz-port=0"]);
    namespace.wait_for_service_ports(1);
    for path in ["/debug/flags/v", "/debug/flags"] {
        assert_eq!(namespace.get(METRICS, path).unwrap().0, 404, "{path}");
    }
    // What a Service's health says of the proxy needs no health server.
    let body = namespace.wait("192.0.2.1:31000", "/", |status, _| status == 200);
    assert!(body.ends_with("\"serviceProxyHealthy\": true\n}"), "{body}");
    assert_eq!(namespace.get(HEALTH, "/healthz"), None, "switched off");
}

#[test]
fn servers_listen_where_kube_proxys_do() {
    let namespace = Namespace::new();
    // Both are in the way at first; they are tried again every 5 s.
    let bind = |address: &'static str| namespace.0.run(|| TcpListener::bind(address)).unwrap();
    let blockers = [bind("0.0.0.0:10256").unwrap(), bind(METRICS).unwrap()];
    let (_manifests, program) = start(&namespace, &[]);
    until("it proxies meanwhile", || namespace.list("tables").contains("kube-proxy"));
    drop(blockers);
    // An "any" address of IPv4 is that of both families, and metrics are for this node only.
    for address in ["127.0.0.1:10256", "192.0.2.1:10256", "[::1]:10256"] {
        namespace.wait(address, "/livez", |status, _| status == 200);
    }
    namespace.wait(METRICS, "/metrics", |status, _| status == 200);
    assert_eq!(namespace.get("192.0.2.1:10249", "/metrics"), None);
    let (_, log) = program.terminate();
    for name in ["healthz", "metrics"] {
        let complaint = "\"Failed to start server\" err=\"Address already in use";
        let complains =
            |line: &&str| line.contains(complaint) && line.contains(&format!("name=\"{name}\""));
        assert!(log.lines().any(|line| complains(&line)), "{name}: {log}");
    }
}
