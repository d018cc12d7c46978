//! Lists, gates, problems that are reported once, and the ports of a transition.

use serde_json::json;
use switchyard_core::{
    model::IpFamily,
    objects::{Event, Kind},
    testing::{Builder, endpoint, service, service_cidr, slice},
};

use crate::support::{Cluster, fields, pool};

fn named(name: &str, n: u8) -> Builder {
    service(name, &format!("10.0.0.{n}")).port("", "TCP", 80)
}

fn local_slice(service: &str) -> Builder {
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
    cluster.apply(&[named("a", 1), named("b", 2), local_slice("a"), local_slice("b")]);
    cluster.take_changes();
    cluster.replace(Kind::Service, &[&named("b", 2), &named("c", 3)]);
    assert_eq!(cluster.programmed(), ["ns/b (TCP, IPv4)", "ns/c (TCP, IPv4)"]);
    assert_eq!(cluster.take_changes(), ["ns/a (TCP, IPv4)", "ns/c (TCP, IPv4)"]);
    cluster.replace(Kind::EndpointSlice, &[&local_slice("c")]);
    assert_eq!(pool(&cluster.port("b", "").cluster), "");
    assert_eq!(pool(&cluster.port("c", "").cluster), "10.1.0.1:8080*");
    assert_eq!(cluster.take_changes(), ["ns/b (TCP, IPv4)", "ns/c (TCP, IPv4)"]);
    // The same list again, as after a lost connection.
    cluster.replace(Kind::EndpointSlice, &[&local_slice("c")]);
    cluster.replace(Kind::Service, &[&named("c", 3), &named("b", 2)]);
    assert!(cluster.tracker.transition().is_empty());
}

#[test]
fn what_cannot_be_read_keeps_its_last_good_state() {
    let mut cluster = Cluster::new();
    let cidr = service_cidr("kubernetes", &["10.0.0.0/24"]);
    cluster.apply(&[named("a", 1), local_slice("a"), named("b", 2), cidr.clone()]);
    cluster.take_changes();
    let problems = cluster.events([unreadable(&named("a", 1))]);
    assert_eq!(
        problems[0].to_string(),
        "Service ns/a: spec.ports[0].port: invalid type: string; the object's last good state stays"
    );
    assert_eq!(cluster.events([unreadable(&named("a", 1))]), [], "said before");
    for kind in Kind::ALL {
        let malformed = vec![named("a", 1).key(), local_slice("a").key(), cidr.key()];
        cluster.events([Event::Replace { kind, objects: Vec::new(), malformed }]);
    }
    assert_eq!(cluster.programmed(), ["ns/a (TCP, IPv4)"]);
    assert_eq!(pool(&cluster.port("a", "").cluster), "10.1.0.1:8080*");
    assert_eq!(cluster.tracker.state().node.service_cidrs.v4.len(), 1);
    assert_eq!(cluster.take_changes(), ["ns/b (TCP, IPv4)"]);
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

fn take_triggers(cluster: &mut Cluster) -> Vec<String> {
    let times = cluster.tracker.trigger_times().iter().map(|trigger| match trigger.family {
        IpFamily::V4 => trigger.time.clone(),
        IpFamily::V6 => format!("{} IPv6", trigger.time),
    });
    let times = times.collect();
    cluster.tracker.mark_synced();
    times
}

#[test]
fn the_number_of_trigger_times_is_bounded() {
    let mut cluster = Cluster::new();
    cluster.replace(Kind::Service, &[&named("a", 1), &named("b", 2)]);
    cluster.replace(Kind::EndpointSlice, &[]);
    let change = |number: u8| {
        let by_turns = endpoint(&format!("10.1.0.{}", 2 + number % 2), "node-2");
        let slice = |name| local_slice(name).annotation(TRIGGER, "t").endpoint(by_turns.clone());
        [slice("a").apply(), slice("b").apply()]
    };
    cluster.events((0..=255).cycle().take(6000).flat_map(change));
    assert_eq!(take_triggers(&mut cluster).len(), 10_000);
}

#[test]
fn trigger_times_are_those_of_changes_to_be_programmed() {
    let mut cluster = Cluster::new();
    let at = |time: &str| local_slice("a").annotation(TRIGGER, time);
    cluster.replace(Kind::Service, &[&named("a", 1)]);
    // The first list: it happened before we were there.
    cluster.replace(Kind::EndpointSlice, &[&at("t0")]);
    assert_eq!(take_triggers(&mut cluster), [""; 0]);
    let more = |time: &str, n: u8| at(time).endpoint(endpoint(&format!("10.1.0.{n}"), "node-2"));
    cluster.apply(&[more("t1", 2)]);
    cluster.apply(&[more("t2", 3)]);
    assert_eq!(take_triggers(&mut cluster), ["t1", "t2"]);
    // Nothing changed but the annotation; nothing to be programmed changed.
    cluster.apply(&[more("t3", 3)]);
    let mut unused = endpoint("10.1.0.9", "node-2");
    unused["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
    cluster.apply(&[more("t4", 3).endpoint(unused)]);
    cluster.apply(&[local_slice("unknown").annotation(TRIGGER, "t5")]);
    assert_eq!(take_triggers(&mut cluster), [""; 0]);
    // A deletion has none; a list after a lost connection has.
    cluster.delete(&[at("t6")]);
    assert_eq!(take_triggers(&mut cluster), [""; 0]);
    cluster.replace(Kind::EndpointSlice, &[&at("t7")]);
    assert_eq!(take_triggers(&mut cluster), ["t7"]);
    // They survive, with the transition, a sync that failed.
    cluster.apply(&[more("t8", 2)]);
    cluster.events([]);
    cluster.events([]);
    assert_eq!(take_triggers(&mut cluster), ["t8"]);
    // Each has the family of its slice.
    let dual = service("d", "10.96.0.99,fd00::99").port("", "TCP", 80);
    let v6 = slice("d", "6").set("addressType", "IPv6").annotation(TRIGGER, "t9");
    let v6 = v6.port("", "TCP", 80).endpoint(endpoint("fd01::2", "node-2"));
    cluster.apply(&[dual, v6]);
    assert_eq!(take_triggers(&mut cluster), ["t9 IPv6"]);
}
