//! Listeners that several Services claim.

use serde_json::json;
use switchyard_core::{
    objects::Kind,
    testing::{Builder, service},
    track::Problem,
};

use crate::support::{Cluster, fields, frontends};

/// A Service with TCP port 80, created on this day.
fn on_day(name: &str, ip: &str, day: u8) -> Builder {
    service(name, ip)
        .set("metadata.creationTimestamp", format!("2026-01-{day:02}T00:00:00Z"))
        .port("", "TCP", 80)
}

fn external(builder: Builder, ip: &str) -> Builder {
    builder.set("spec.externalIPs", json!([ip]))
}

fn messages(problems: &[Problem]) -> Vec<String> {
    let mut all: Vec<String> = problems.iter().map(ToString::to_string).collect();
    all.sort();
    all
}

#[test]
fn the_older_service_has_the_address_whoever_came_first() {
    let old = external(on_day("old", "10.0.0.1", 1), "192.0.2.1");
    let new = external(on_day("new", "10.0.0.2", 2), "192.0.2.1");
    let said = "Service ns/new: spec.externalIPs: 192.0.2.1 port 80 (TCP) belongs to Service \
                ns/old; it is not served for this one";
    for order in [[&old, &new], [&new, &old]] {
        let mut cluster = Cluster::new();
        let mut problems = cluster.apply([order[0]]);
        problems.extend(cluster.apply([order[1]]));
        assert_eq!(messages(&problems), [said]);
        let expected = ["clusterIP 10.0.0.1:80", "externalIP 192.0.2.1:80"];
        assert_eq!(frontends(&cluster.port("old", "")), expected);
        assert_eq!(frontends(&cluster.port("new", "")), ["clusterIP 10.0.0.2:80"]);
        // Said once.
        assert_eq!(cluster.apply(order), []);
        assert_eq!(cluster.apply([&new.clone().port("b", "TCP", 81)]), [], "still the same one");
        cluster.apply([&new]);
        // The loser gets it when the winner goes, and loses it when it comes back.
        cluster.take_changes();
        assert_eq!(cluster.delete([&old]), []);
        let expected = ["clusterIP 10.0.0.2:80", "externalIP 192.0.2.1:80"];
        assert_eq!(frontends(&cluster.port("new", "")), expected);
        assert_eq!(cluster.take_changes(), ["ns/new (TCP, IPv4)", "ns/old (TCP, IPv4)"]);
        assert_eq!(messages(&cluster.apply([&old])), [said]);
        assert_eq!(frontends(&cluster.port("new", "")), ["clusterIP 10.0.0.2:80"]);
    }
}

#[test]
fn nobody_takes_over_a_cluster_ip() {
    let thief = external(on_day("thief", "10.0.0.1", 1), "10.0.0.2")
        .ingress("10.0.0.2")
        .set("spec.type", "LoadBalancer");
    let victim = on_day("victim", "10.0.0.2", 9);
    for order in [[&thief, &victim], [&victim, &thief]] {
        let mut cluster = Cluster::new();
        cluster.apply([order[0]]);
        cluster.apply([order[1]]);
        assert_eq!(frontends(&cluster.port("victim", "")), ["clusterIP 10.0.0.2:80"]);
        assert_eq!(frontends(&cluster.port("thief", "")), ["clusterIP 10.0.0.1:80"]);
    }
    // The cluster IP of a port that the Service does not have is not claimed by it.
    let mut cluster = Cluster::new();
    cluster.apply([&thief, &service("victim", "10.0.0.2").port("", "TCP", 81)]);
    assert_eq!(
        frontends(&cluster.port("thief", "")),
        ["clusterIP 10.0.0.1:80", "loadBalancer 10.0.0.2:80"],
        "named twice by the same Service: served once"
    );
}

#[test]
fn load_balancer_addresses_come_before_external_ips() {
    let mut cluster = Cluster::new();
    let by_status = on_day("status", "10.0.0.1", 9).ingress("192.0.2.1");
    let by_spec = external(on_day("spec", "10.0.0.2", 1), "192.0.2.1");
    let problems = cluster.apply([&by_spec, &by_status]);
    assert_eq!(fields(&problems), ["Service ns/spec: spec.externalIPs"]);
    assert_eq!(cluster.port("status", "").frontends.len(), 2);
}

#[test]
fn node_ports_ports_and_families_conflict_apart() {
    let with = |name: &str, ip: &str, day: u8| on_day(name, ip, day).node_port(30080);
    let mut cluster = Cluster::new();
    let problems = cluster.apply([&with("a", "10.0.0.1", 2), &with("b", "10.0.0.2", 1)]);
    assert_eq!(
        messages(&problems),
        ["Service ns/a: spec.ports: node port 30080 (TCP) belongs to Service ns/b; it is not \
          served for this one"]
    );
    // The other family, the other protocol.
    assert_eq!(cluster.apply([&with("six", "fd00::1", 3)]), []);
    let udp = service("udp", "10.0.0.4").port("", "UDP", 80).node_port(30080);
    assert_eq!(cluster.apply([&udp]), []);
    // Within one Service: two names for one port.
    let twice = service("twice", "10.0.0.5").port("a", "TCP", 80).port("b", "TCP", 80);
    assert_eq!(fields(&cluster.apply([&twice])), ["Service ns/twice: spec.clusterIPs"]);
    assert_eq!(frontends(&cluster.port("twice", "a")), ["clusterIP 10.0.0.5:80"]);
    assert!(!cluster.programmed().contains(&"ns/twice:b (TCP, IPv4)".to_owned()));
}

#[test]
fn among_equals_the_name_decides_and_the_unknown_age_comes_last() {
    let shares = |name: &str, created: serde_json::Value| {
        service(name, "10.0.0.1").set("metadata.creationTimestamp", created).port("", "TCP", 80)
    };
    let mut cluster = Cluster::new();
    cluster.apply([&shares("a", json!(null)), &shares("z", json!("2026-01-01T00:00:00Z"))]);
    assert_eq!(cluster.programmed(), ["ns/z (TCP, IPv4)"]);
    cluster.apply([&shares("y", json!("2026-01-01T00:00:00Z"))]);
    assert_eq!(cluster.programmed(), ["ns/y (TCP, IPv4)"]);
    // Deleted and made again between two looks: it is younger now.
    cluster.apply([&shares("y", json!("2026-01-02T00:00:00Z"))]);
    assert_eq!(cluster.programmed(), ["ns/z (TCP, IPv4)"]);
}

#[test]
fn every_loser_is_told_who_has_it_now() {
    let at = |name: &str, day| external(on_day(name, &format!("10.0.0.{day}"), day), "192.0.2.1");
    let (first, second, third) = (at("first", 1), at("second", 2), at("third", 3));
    let mut cluster = Cluster::new();
    cluster.apply([&first, &second, &third]);
    let problems = cluster.replace(Kind::Service, &[&second, &third]);
    assert_eq!(
        messages(&problems),
        ["Service ns/third: spec.externalIPs: 192.0.2.1 port 80 (TCP) belongs to Service \
          ns/second; it is not served for this one"]
    );
    assert_eq!(cluster.replace(Kind::Service, &[&third]), []);
    assert_eq!(cluster.port("third", "").frontends.len(), 2);
}

#[test]
fn addresses_that_one_service_has_are_one_problem() {
    let ips: Vec<String> = (1..=200).map(|n| format!("192.0.2.{n}")).collect();
    let names = |name, ip, day| on_day(name, ip, day).set("spec.externalIPs", json!(ips));
    let mut cluster = Cluster::new();
    assert_eq!(cluster.apply([&names("old", "10.0.0.1", 1)]), []);
    let said = "192.0.2.1 port 80 (TCP) and 199 more belong to Service ns/old; they are not served";
    let problems = cluster.apply([&names("new", "10.0.0.2", 2)]);
    assert_eq!(problems.len(), 1);
    assert!(problems[0].message.starts_with(said), "{problems:?}");
}
