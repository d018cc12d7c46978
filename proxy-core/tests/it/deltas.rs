//! Lists, gates, problems that are said once, and what a delta says.

use proxy_core::{
    objects::{Event, Kind},
    state::Delta,
    testing::{Builder, endpoint, service, service_cidr, slice},
};
use serde_json::json;

use crate::support::{Cluster, fields, id, pool};

fn named(name: &str, n: u8) -> Builder {
    service(name, &format!("10.0.0.{n}")).port("", "TCP", 80)
}

fn of(service: &str) -> Builder {
    slice(service, "1").port("", "TCP", 8080).endpoint(endpoint("10.1.0.1", "node-1"))
}

const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

fn unreadable(of: &Builder) -> Event {
    Event::Malformed {
        object: of.key(),
        field: "spec.ports[0].port".to_owned(),
        message: "invalid type: string".to_owned(),
    }
}

#[test]
fn nothing_counts_before_services_and_slices_are_listed() {
    let mut cluster = Cluster::new();
    assert!(!cluster.tracker.is_synced());
    cluster.replace(Kind::Node, &[]);
    cluster.replace(Kind::ServiceCidr, &[]);
    cluster.apply(&[named("a", 1)]);
    cluster.replace(Kind::EndpointSlice, &[]);
    assert!(!cluster.tracker.is_synced());
    cluster.replace(Kind::Service, &[]);
    assert!(cluster.tracker.is_synced());
    assert_eq!(cluster.programmed(), [""; 0]);
}

#[test]
fn what_a_list_lacks_is_gone() {
    let mut cluster = Cluster::new();
    cluster.apply(&[named("a", 1), named("b", 2), of("a"), of("b")]);
    cluster.take_delta();
    cluster.replace(Kind::Service, &[&named("b", 2), &named("c", 3)]);
    assert_eq!(cluster.programmed(), ["ns/b (TCP, IPv4)", "ns/c (TCP, IPv4)"]);
    assert_eq!(cluster.take_delta(), ["ns/a (TCP, IPv4)", "ns/c (TCP, IPv4)"]);
    cluster.replace(Kind::EndpointSlice, &[&of("c")]);
    assert_eq!(pool(&cluster.port("b", "").cluster), "");
    assert_eq!(pool(&cluster.port("c", "").cluster), "10.1.0.1:8080*");
    assert_eq!(cluster.take_delta(), ["ns/b (TCP, IPv4)", "ns/c (TCP, IPv4)"]);
    // The same list again, as after a lost connection.
    cluster.replace(Kind::EndpointSlice, &[&of("c")]);
    cluster.replace(Kind::Service, &[&named("c", 3), &named("b", 2)]);
    assert!(cluster.tracker.delta().is_empty());
}

#[test]
fn what_cannot_be_read_keeps_its_last_good_state() {
    let mut cluster = Cluster::new();
    let cidr = service_cidr("kubernetes", &["10.0.0.0/24"]);
    cluster.apply(&[named("a", 1), of("a"), named("b", 2), cidr.clone()]);
    cluster.take_delta();
    let problems = cluster.events([unreadable(&named("a", 1))]);
    assert_eq!(
        problems[0].to_string(),
        "Service ns/a: spec.ports[0].port: invalid type: string; the object's last good state stays"
    );
    assert_eq!(cluster.events([unreadable(&named("a", 1))]), [], "said before");
    for kind in Kind::ALL {
        let malformed = vec![named("a", 1).key(), of("a").key(), cidr.key()];
        cluster.events([Event::Replace { kind, objects: Vec::new(), malformed }]);
    }
    assert_eq!(cluster.programmed(), ["ns/a (TCP, IPv4)"]);
    assert_eq!(pool(&cluster.port("a", "").cluster), "10.1.0.1:8080*");
    assert_eq!(cluster.tracker.state().node.service_cidrs.v4.len(), 1);
    assert_eq!(cluster.take_delta(), ["ns/b (TCP, IPv4)"]);
    // Readable again, then not: said again. Gone: gone.
    cluster.apply(&[named("a", 1)]);
    assert_eq!(cluster.events([unreadable(&named("a", 1))]).len(), 1);
    cluster.delete(&[named("a", 1)]);
    assert_eq!(cluster.programmed(), [""; 0]);
}

#[test]
fn problems_of_what_a_list_lacks_are_forgotten() {
    let mut cluster = Cluster::new();
    // Nothing of it can be used: it is not among the Services.
    let broken = named("bad", 1).set("spec.clusterIPs", json!(["x"]));
    assert_eq!(fields(&cluster.apply([&broken])), ["Service ns/bad: spec.clusterIPs[0]"]);
    assert_eq!(cluster.replace(Kind::Service, &[&broken]), []);
    assert_eq!(cluster.replace(Kind::Service, &[]), []);
    assert_eq!(cluster.replace(Kind::Service, &[&broken]).len(), 1);
    // A further mistake is news, the known one is not.
    let worse = broken.set("spec.externalIPs", json!(["y"]));
    assert_eq!(fields(&cluster.apply(&[worse])), ["Service ns/bad: spec.externalIPs[0]"]);
}

#[test]
fn a_delta_has_what_changed_and_nothing_else() {
    let mut cluster = Cluster::new();
    let two = service("two", "10.0.0.2,fd00::2").port("a", "TCP", 80).port("b", "UDP", 81);
    cluster.apply(&[named("one", 1), two.clone(), of("one"), of("two")]);
    let delta = cluster.tracker.delta().clone();
    assert!(delta.full, "the first one compares everything");
    assert!(delta.node);
    assert_eq!(
        cluster.take_delta(),
        [
            "ns/one (TCP, IPv4)",
            "ns/two:a (TCP, IPv4)",
            "ns/two:a (TCP, IPv6)",
            "ns/two:b (UDP, IPv4)",
            "ns/two:b (UDP, IPv6)"
        ]
    );
    // The informers' resync: the same again.
    cluster.apply(&[named("one", 1), two.clone(), of("one"), of("two")]);
    assert!(cluster.tracker.delta().is_empty());
    // Changes that no proxy reads.
    let annotated = two.clone().annotation("touched", "yes").label("team", "blue");
    cluster.apply(&[annotated, of("one").annotation("touched", "yes")]);
    assert!(cluster.tracker.delta().is_empty());
    // One port of one family.
    cluster.apply(&[slice("two", "2").port("b", "UDP", 53).endpoint(endpoint("10.1.0.2", "x"))]);
    assert_eq!(cluster.take_delta(), ["ns/two:b (UDP, IPv4)"]);
    // An endpoint that is not used, of a Service nobody knows.
    cluster.apply(&[of("unknown")]);
    assert!(cluster.tracker.delta().is_empty());
}

#[test]
fn a_delta_lasts_until_it_is_synced() {
    let mut cluster = Cluster::new();
    cluster.apply(&[named("a", 1), named("b", 2)]);
    cluster.take_delta();
    cluster.apply(&[of("a")]);
    cluster.apply(&[of("b")]);
    cluster.delete(&[named("a", 1)]);
    assert_eq!(cluster.take_delta(), ["ns/a (TCP, IPv4)", "ns/b (TCP, IPv4)"]);
    assert!(cluster.tracker.delta().is_empty());
    cluster.tracker.request_full();
    assert!(cluster.tracker.delta().full && !cluster.tracker.delta().is_empty());
    cluster.events([]);
    assert!(cluster.tracker.delta().full);
    cluster.tracker.mark_synced();
    assert!(!cluster.tracker.delta().full);
}

#[test]
fn trigger_times_are_those_of_changes_to_be_programmed() {
    let mut cluster = Cluster::new();
    let at = |time: &str| of("a").annotation(TRIGGER, time);
    cluster.replace(Kind::Service, &[&named("a", 1)]);
    // The first list: it happened before we were there.
    cluster.replace(Kind::EndpointSlice, &[&at("t0")]);
    assert_eq!(cluster.tracker.mark_synced(), [""; 0]);
    let more = |time: &str, n: u8| at(time).endpoint(endpoint(&format!("10.1.0.{n}"), "node-2"));
    cluster.apply(&[more("t1", 2)]);
    cluster.apply(&[more("t2", 3)]);
    assert_eq!(cluster.tracker.mark_synced(), ["t1", "t2"]);
    // Nothing changed but the annotation; nothing to be programmed changed.
    cluster.apply(&[more("t3", 3)]);
    let mut unused = endpoint("10.1.0.9", "node-2");
    unused["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
    cluster.apply(&[more("t4", 3).endpoint(unused)]);
    cluster.apply(&[of("unknown").annotation(TRIGGER, "t5")]);
    assert_eq!(cluster.tracker.mark_synced(), [""; 0]);
    // A deletion has none; a list after a lost connection has.
    cluster.delete(&[at("t6")]);
    assert_eq!(cluster.tracker.mark_synced(), [""; 0]);
    cluster.replace(Kind::EndpointSlice, &[&at("t7")]);
    assert_eq!(cluster.tracker.mark_synced(), ["t7"]);
    // They survive, with the delta, a sync that failed.
    cluster.apply(&[more("t8", 2)]);
    cluster.events([]);
    cluster.events([]);
    assert_eq!(cluster.tracker.mark_synced(), ["t8"]);
}

#[test]
fn merged_deltas_have_both() {
    let delta = |service: &str, node, full| Delta {
        service_ports: [id(service, "")].into(),
        node,
        health_checks: node,
        full,
    };
    let mut merged = Delta::default();
    merged.merge(delta("a", true, false));
    merged.merge(delta("b", false, true));
    merged.merge(Delta::default());
    let both = Delta {
        service_ports: [id("a", ""), id("b", "")].into(),
        node: true,
        health_checks: true,
        full: true,
    };
    assert_eq!(merged, both);
}
