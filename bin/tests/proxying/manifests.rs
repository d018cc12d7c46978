//! From manifests: health, metrics, the kernel, and what is left when the program ends.

use std::{fs, path::Path, thread::sleep, time::Duration};

use tempfile::TempDir;

use crate::namespace::{HEALTH, METRICS, Namespace, Program};

const NODE: &str = "\
apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
";

/// A Service with this cluster IP, and one endpoint.
fn service(name: &str, ip: &str) -> String {
    format!(
        "\
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  clusterIP: {ip}
  clusterIPs: [{ip}]
  ports: [{{port: 80, protocol: TCP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: \"\", port: 8080, protocol: TCP}}]
endpoints: [{{addresses: [192.0.2.1]}}]
"
    )
}

fn write(directory: &Path, name: &str, text: &str) {
    // Renamed into place, so that no half of it is ever read.
    let hidden = directory.join(".writing");
    fs::write(&hidden, text).unwrap();
    fs::rename(hidden, directory.join(name)).unwrap();
}

#[test]
fn it_programs_the_kernel_and_answers() {
    let namespace = Namespace::new();
    let directory = TempDir::new().unwrap();
    write(directory.path(), "node.yaml", NODE);
    write(directory.path(), "web.yaml", &service("web", "10.96.0.10"));
    let manifests = directory.path().to_str().unwrap();
    let program = Program::start(
        &namespace,
        &["--manifests", manifests, "--hostname-override=node-1", "-v=2"],
    );
    let body = namespace.wait(HEALTH, "/healthz", |status, _| status == 200);
    assert!(body.contains("\"nodeEligible\":true,\"healthy\":true"), "{body}");
    assert!(namespace.get("[::1]:10256", "/livez").is_some_and(|(status, _)| status == 200));
    let proxy_mode = namespace.get(METRICS, "/proxyMode");
    assert_eq!(proxy_mode, Some((200, "nftables".into())));
    namespace.wait_for_service_ports(1);
    let rules = namespace.list("table ip kube-proxy");
    assert!(rules.contains("10.96.0.10"), "{rules}");

    // A change is followed, and told.
    write(directory.path(), "more.yaml", &service("more", "10.96.0.11"));
    let text = namespace.wait_for_service_ports(2);
    for name in [
        // One sync or two: Service and slice come one after the other.
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} ",
        "kubeproxy_sync_proxy_rules_service_changes_pending 0\n",
        "kubeproxy_proxy_livez_total{code=\"200\"} 1\n",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    let rules = namespace.list("table ip kube-proxy");
    assert!(rules.contains("10.96.0.11"), "{rules}");

    // It stops like any program, and what it programmed stays.
    let (signal, log) = program.terminate();
    assert_eq!(signal, Some(15), "{log}");
    assert!(log.contains("\"Synced\" full=true"), "{log}");
    assert_eq!(namespace.list("table ip kube-proxy"), rules);

    for _ in 0..2 {
        let status = namespace.switchyard(&["--cleanup"]).status().unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(namespace.list("tables"), "");
    }
}

#[test]
fn an_address_in_use_is_fatal_only_if_it_should_be() {
    let namespace = Namespace::new();
    let directory = TempDir::new().unwrap();
    write(directory.path(), "node.yaml", NODE);
    let manifests = directory.path().to_str().unwrap();
    let first = Program::start(&namespace, &["--manifests", manifests]);
    namespace.wait(HEALTH, "/livez", |status, _| status == 200);
    namespace.wait(METRICS, "/healthz", |status, body| (status, body) == (200, "ok"));

    let arguments = ["--manifests", manifests, "--bind-address-hard-fail"];
    let output = namespace.switchyard(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("\"command failed\" err=\"cannot serve "), "{log}");
    assert!(log.contains("Address already in use"), "{log}");

    // Without the flag it waits for its turn.
    let second = Program::start(&namespace, &["--manifests", manifests]);
    sleep(Duration::from_secs(1));
    let (signal, _) = first.terminate();
    assert_eq!(signal, Some(15));
    namespace.wait(HEALTH, "/livez", |status, _| status == 200);
    let (_, log) = second.terminate();
    let of_health = |line: &str| {
        line.contains("\"Failed to start server\"") && line.contains("name=\"healthz\"")
    };
    assert!(log.lines().any(of_health), "{log}");
}
