//! The metrics server's pages, and what can be changed there.

use std::fs;

use tempfile::TempDir;

use crate::namespace::{METRICS, Namespace, Program};

fn put(namespace: &Namespace, path: &str, body: &str) -> String {
    let (head, body) = namespace.ask(METRICS, &format!("PUT {path}"), &[], body);
    format!("{head}\r\n\r\n{}", String::from_utf8(body).unwrap())
}

fn service(number: u8) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: shop}}\n\
         spec: {{clusterIP: 10.96.0.{number}, ports: [{{port: 80, protocol: TCP}}]}}\n"
    )
}

#[test]
fn verbosity_changes_while_it_runs() {
    let namespace = Namespace::new();
    let directory = TempDir::new().unwrap();
    let manifests = directory.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    let config = directory.path().join("config");
    fs::write(
        &config,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
         mode: nftables\nhostnameOverride: node-1\nenableProfiling: true\n\
         nftables: {syncPeriod: 17s}\n",
    )
    .unwrap();
    fs::write(manifests.join("one.yaml"), service(1)).unwrap();
    let config = format!("--config={}", config.display());
    let manifests = manifests.to_str().unwrap();
    let program = Program::start(&namespace, &[&config, "--manifests", manifests]);
    namespace.wait_for_service_ports(1);

    let (status, body) = namespace.get(METRICS, "/configz").unwrap();
    assert_eq!(status, 200);
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let config = &body["kubeproxy.config.k8s.io"];
    assert_eq!(config["nftables"]["syncPeriod"], "17s");
    assert_eq!(config["hostnameOverride"], "node-1");
    let (_, flags) = namespace.get(METRICS, "/flagz").unwrap();
    assert!(flags.contains(&format!("\nmanifests={manifests}\n")), "{flags}");

    let answer = put(&namespace, "/debug/flags/v", "2");
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("successfully set klog.logging.verbosity to 2"), "{answer}");
    fs::write(format!("{manifests}/two.yaml"), service(2)).unwrap();
    namespace.wait_for_service_ports(2);
    put(&namespace, "/debug/flags/v", "0");
    fs::write(format!("{manifests}/three.yaml"), service(3)).unwrap();
    namespace.wait_for_service_ports(3);

    let (_, log) = program.terminate();
    let synced: Vec<&str> = log.lines().filter(|line| line.contains("\"Synced\"")).collect();
    assert!(!synced.is_empty(), "{log}");
    assert!(synced.iter().all(|line| line.contains("service_ports=2")), "{synced:#?}");
}
