//! The metrics server's pages, and what can be changed there.

use crate::{
    manifests::{Manifests, service},
    namespace::{METRICS, Namespace},
};

fn put(namespace: &Namespace, path: &str, body: &str) -> String {
    let (head, body) = namespace.ask(METRICS, &format!("PUT {path}"), &[], body);
    format!("{head}\r\n\r\n{}", String::from_utf8(body).unwrap())
}

fn objects(number: u8) -> String {
    service(&format!("s{number}"), &format!("clusterIP: 10.96.0.{number}, ports: [{{port: 80}}]"))
}

#[test]
fn verbosity_changes_while_it_runs() {
    let namespace = Namespace::new();
    let manifests = Manifests::new(&objects(1));
    let program = manifests.start(&namespace, &["--proxy-mode=nftables", "--profiling"]);
    namespace.wait_for_service_ports(1);

    let answer = put(&namespace, "/debug/flags/v", "2");
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("successfully set klog.logging.verbosity to 2"), "{answer}");
    manifests.write("two", &objects(2));
    namespace.wait_for_service_ports(2);
    put(&namespace, "/debug/flags/v", "0");
    manifests.write("three", &objects(3));
    namespace.wait_for_service_ports(3);

    let (_, log) = program.terminate();
    let synced: Vec<&str> = log.lines().filter(|line| line.contains("\"Synced\"")).collect();
    assert!(!synced.is_empty(), "{log}");
    assert!(synced.iter().all(|line| line.contains("service_ports=2")), "{synced:#?}");
}
