//! A node that is configured otherwise while it runs. Random configurations are in `properties`.

use serde_json::json;
use switchyard_core::{
    config::NodeConfig,
    testing::{NODE, endpoint, service, slice},
};

use crate::support::{Cluster, fields, frontends};

#[test]
fn a_gate_decides_conflicts_too() {
    let mut cluster = Cluster::with(|config| config.external_ips = false);
    let claim = |name: &str, ip: &str| {
        service(name, ip)
            .port("http", "TCP", 80)
            .set("spec.externalIPs", json!(["192.0.2.1"]))
            .set("metadata.creationTimestamp", format!("2026-01-01T00:00:0{}Z", name.len()))
    };
    assert_eq!(cluster.apply(&[claim("aa", "10.0.0.1"), claim("b", "10.0.0.2")]), []);
    cluster.tracker.set_config(NodeConfig::new(NODE));
    let problems = cluster.events([]);
    assert_eq!(fields(&problems), ["Service ns/aa: spec.externalIPs"]);
    assert_eq!(frontends(&cluster.port("aa", "http")), ["clusterIP 10.0.0.1:80"]);
    assert_eq!(frontends(&cluster.port("b", "http")).len(), 2, "the older one has it");
}

#[test]
fn the_name_stays() {
    let mut cluster = Cluster::with(|_| {});
    cluster.tracker.set_config(NodeConfig::new("another"));
    let slice = slice("web", "1").port("http", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
    cluster.apply(&[service("web", "10.0.0.1").port("http", "TCP", 80), slice]);
    assert!(cluster.port("web", "http").cluster[0].is_local);
}
