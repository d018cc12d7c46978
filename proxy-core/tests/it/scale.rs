//! Large inputs: that they work, and stay proportional. No timing is asserted.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use switchyard_core::{
    objects::{Event, Kind, Object},
    testing::{endpoint, service, slice},
};

use crate::support::{Cluster, fields};

#[test]
fn a_service_may_have_a_hundred_thousand_endpoints() {
    let mut cluster = Cluster::new();
    let address = |i: u32| Ipv4Addr::from(0x0a01_0000 + i).to_string();
    let slices: Vec<Object> = (0..1000u32)
        .map(|number| {
            let endpoints: Vec<Value> = (0..100)
                .map(|i| endpoint(&address(number * 100 + i), &format!("node-{}", number % 50)))
                .collect();
            slice("big", &number.to_string())
                .port("", "TCP", 8080)
                .set("endpoints", json!(endpoints))
                .object()
        })
        .collect();
    cluster.apply(&[service("big", "10.0.0.1").port("", "TCP", 80)]);
    let malformed = Vec::new();
    let kind = Kind::EndpointSlice;
    cluster.events([Event::Replace { kind, objects: slices, malformed }]);
    let port = cluster.port("big", "");
    assert_eq!(port.cluster.len(), 100_000);
    // Numbers 1, 51, 101 ... are on this node.
    assert_eq!(port.cluster.iter().filter(|endpoint| endpoint.is_local).count(), 2_000);
    cluster.delete(&[slice("big", "7")]);
    assert_eq!(cluster.port("big", "").cluster.len(), 99_900);
}

#[test]
fn a_service_may_have_twenty_thousand_ports() {
    let ports: Vec<Value> =
        (1..=20_001).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let many = service("many", "10.0.0.1").set("spec.ports", json!(ports));
    let mut cluster = Cluster::new();
    assert_eq!(fields(&cluster.apply([&many])), ["Service ns/many: spec.ports[20000]"]);
    assert_eq!(cluster.programmed().len(), 20_000);
    cluster.take_changes();
    assert_eq!(cluster.apply(&[many.set("spec.ports.0.port", 30_000)]), []);
    assert_eq!(cluster.take_changes(), ["ns/many:p1 (TCP, IPv4)"]);
}

#[test]
fn five_thousand_services_may_claim_the_same_address() {
    let mut cluster = Cluster::new();
    let claim = |i: u32| {
        service(&format!("s{i}"), &Ipv4Addr::from(0x0a60_0000 + i).to_string())
            .set("spec.externalIPs", json!(["192.0.2.1"]))
            .port("", "TCP", 80)
            .object()
    };
    let problems = cluster.events((0..5_000).map(|i| Event::Apply(claim(i))));
    assert_eq!(problems.len(), 4_999);
    let owners = cluster.tracker.state().service_ports.values().filter(|p| p.frontends.len() == 2);
    assert_eq!(owners.count(), 1);
}
