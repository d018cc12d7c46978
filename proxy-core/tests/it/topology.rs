//! The endpoints that a node uses: hints, and what is done when nothing is ready.

use std::sync::Arc;

use serde_json::{Value, json};
use switchyard_core::{
    model::{IpFamily, Protocol},
    proxier::{Capabilities, Mode},
    state::ResolvedServicePort,
    testing::{Builder, endpoint, node, service, slice},
};

use crate::support::{Cluster, hinted, id_of, in_state, leaving, pool, web};

const ZONE: &str = "topology.kubernetes.io/zone";

fn not_ready(endpoint: Value) -> Value {
    in_state(endpoint, false, false, false)
}

fn of_web(endpoints: Vec<Value>) -> Builder {
    slice("web", "1").port("", "TCP", 8080).set("endpoints", endpoints)
}

/// The last parts of the addresses in the cluster pool, for a node in zone `east`.
fn used_in(zone: Option<&str>, endpoints: Vec<Value>) -> Vec<u8> {
    let mut cluster = Cluster::new();
    let mut this = node("node-1", "192.0.2.1");
    if let Some(zone) = zone {
        this = this.label(ZONE, zone);
    }
    cluster.apply(&[web(), this, of_web(endpoints)]);
    last_parts(&cluster)
}

fn last_parts(cluster: &Cluster) -> Vec<u8> {
    let last = |ip: std::net::IpAddr| match ip {
        std::net::IpAddr::V4(v4) => v4.octets()[3],
        std::net::IpAddr::V6(_) => panic!("{ip}"),
    };
    cluster.port("web", "").cluster.iter().map(|e| last(e.address.ip())).collect()
}

fn used(endpoints: Vec<Value>) -> Vec<u8> {
    used_in(Some("east"), endpoints)
}

/// The pool of a Service whose endpoints are in two slices, which are read in this order.
fn pool_of_two_slices(endpoints: [Vec<Value>; 2]) -> String {
    pool(&port_of_two_slices(web(), endpoints).cluster)
}

fn port_of_two_slices(web: Builder, endpoints: [Vec<Value>; 2]) -> Arc<ResolvedServicePort> {
    let mut cluster = Cluster::new();
    cluster.apply(&[web, node("node-1", "192.0.2.1").label(ZONE, "east")]);
    for (name, endpoints) in ["1", "2"].into_iter().zip(endpoints) {
        cluster.apply(&[slice("web", name).port("", "TCP", 8080).set("endpoints", endpoints)]);
    }
    cluster.port("web", "")
}

#[test]
fn of_two_entries_of_an_address_the_one_for_this_node_counts() {
    let (here, elsewhere) =
        (|| vec![endpoint("10.1.0.1", "node-1")], || vec![endpoint("10.1.0.1", "node-2")]);
    assert_eq!(pool_of_two_slices([here(), elsewhere()]), "10.1.0.1:8080*");
    assert_eq!(pool_of_two_slices([elsewhere(), here()]), "10.1.0.1:8080*");
    let ours = || vec![hinted(1, "node-2", &[], &["node-1"])];
    let theirs =
        || vec![hinted(1, "node-2", &[], &["node-2"]), hinted(2, "node-2", &[], &["node-2"])];
    assert_eq!(pool_of_two_slices([ours(), theirs()]), "10.1.0.1:8080");
    assert_eq!(pool_of_two_slices([theirs(), ours()]), "10.1.0.1:8080");
    // Whatever else is different.
    for (zone, other) in [("a", "b"), ("b", "a")] {
        let local = web().set("spec.internalTrafficPolicy", "Local");
        let here = vec![hinted(1, "node-1", &[zone], &[])];
        let elsewhere = vec![hinted(1, "node-2", &[other], &[])];
        let port = port_of_two_slices(local, [elsewhere, here]);
        assert_eq!(pool(&port.local), "10.1.0.1:8080*", "{zone}");
        let ours = vec![hinted(1, "node-2", &[zone], &["node-1"])];
        let theirs = vec![
            hinted(1, "node-2", &[other], &["node-2"]),
            hinted(2, "node-2", &[other], &["node-2"]),
        ];
        assert_eq!(pool_of_two_slices([theirs, ours]), "10.1.0.1:8080", "{zone}");
    }
}

#[test]
fn zone_hints_that_are_complete_are_followed() {
    let east = || hinted(1, "node-1", &["east"], &[]);
    let west = || hinted(2, "node-2", &["west"], &[]);
    let both = || hinted(3, "node-2", &["west", "east"], &[]);
    assert_eq!(used(vec![east(), west(), both()]), [1, 3]);
    // The node's zone is unknown, empty, or no one's.
    assert_eq!(used_in(None, vec![east(), west()]), [1, 2]);
    assert_eq!(used_in(Some(""), vec![east(), west(), hinted(3, "node-2", &[""], &[])]), [1, 2, 3]);
    assert_eq!(used_in(Some("north"), vec![east(), west()]), [1, 2]);
    // One ready endpoint has no hint: the controller is at work.
    assert_eq!(used(vec![east(), west(), hinted(4, "node-2", &[], &[])]), [1, 2, 4]);
    // One that is not ready may lack it, and does not count for our zone either.
    assert_eq!(used(vec![east(), west(), not_ready(hinted(4, "node-2", &[], &[]))]), [1]);
    assert_eq!(used(vec![not_ready(east()), west()]), [2]);
    assert_eq!(used(vec![leaving(east()), west()]), [2]);
}

#[test]
fn node_hints_come_before_zone_hints() {
    let here = || hinted(1, "node-1", &["east"], &["node-1"]);
    let near = || hinted(2, "node-2", &["east"], &["node-2"]);
    let far = || hinted(3, "node-3", &["west"], &["node-3"]);
    let shared = || hinted(4, "node-4", &["west"], &["node-9", "node-1"]);
    assert_eq!(used(vec![here(), near(), far()]), [1]);
    assert_eq!(used(vec![here(), near(), far(), shared()]), [1, 4]);
    // None for this node: zones.
    assert_eq!(used(vec![near(), far()]), [2]);
    // Incomplete node hints: zones.
    assert_eq!(used(vec![here(), near(), far(), hinted(5, "node-2", &["east"], &[])]), [1, 2, 5]);
    // Neither is complete.
    assert_eq!(used(vec![here(), hinted(5, "node-2", &[], &[])]), [1, 5]);
    // An unready endpoint for this node does not count.
    assert_eq!(used(vec![not_ready(here()), near(), far()]), [2]);
    // Without a zone, node hints still work.
    assert_eq!(used_in(None, vec![here(), near(), far()]), [1]);
}

#[test]
fn nothing_ready_falls_back_to_what_still_serves_anywhere() {
    let east = || hinted(1, "node-1", &["east"], &["node-1"]);
    let west = || hinted(2, "node-2", &["west"], &["node-2"]);
    assert_eq!(used(vec![leaving(east()), leaving(west())]), [1, 2]);
    assert_eq!(used(vec![not_ready(east()), leaving(west())]), [2]);
    assert_eq!(used(vec![in_state(east(), false, false, true), leaving(west())]), [2]);
    assert_eq!(used(vec![not_ready(east()), not_ready(west())]), [0u8; 0]);
    assert_eq!(used(vec![]), [0u8; 0]);
    // publishNotReadyAddresses: the controller says ready, also while it terminates.
    assert_eq!(used(vec![in_state(east(), true, false, true), leaving(west())]), [1]);
}

#[test]
fn the_local_pool_ignores_hints_and_falls_back_by_itself() {
    let local = web().set("spec.internalTrafficPolicy", "Local");
    for (endpoints, expected) in [
        // Hinted for another zone and node, but here.
        (
            vec![hinted(1, "node-1", &["west"], &["node-2"]), hinted(2, "node-2", &["east"], &[])],
            "10.1.0.1:8080*",
        ),
        // Ready elsewhere; here one that is leaving.
        (
            vec![leaving(endpoint("10.1.0.1", "node-1")), endpoint("10.1.0.2", "node-2")],
            "10.1.0.1:8080*",
        ),
        (
            vec![leaving(endpoint("10.1.0.1", "node-1")), endpoint("10.1.0.3", "node-1")],
            "10.1.0.3:8080*",
        ),
        (vec![not_ready(endpoint("10.1.0.1", "node-1")), endpoint("10.1.0.2", "node-2")], ""),
    ] {
        let mut cluster = Cluster::new();
        let this = node("node-1", "192.0.2.1").label(ZONE, "east");
        cluster.apply(&[local.clone(), this, of_web(endpoints.clone())]);
        let port = cluster.port("web", "");
        assert_eq!(pool(&port.local), expected, "{endpoints:?}");
        // Nothing leads to the cluster pool.
        assert_eq!(pool(&port.cluster), "", "{endpoints:?}");
    }
}

#[test]
fn the_zone_may_change_while_running() {
    let mut cluster = Cluster::new();
    let this = |zone: Value| node("node-1", "192.0.2.1").label(ZONE, zone);
    let endpoints = vec![hinted(1, "node-1", &["east"], &[]), hinted(2, "node-2", &["west"], &[])];
    cluster.apply(&[web(), of_web(endpoints)]);
    assert_eq!(last_parts(&cluster), [1, 2]);
    for (zone, expected) in [
        (json!("east"), &[1][..]),
        (json!("west"), &[2]),
        (json!(""), &[1, 2]),
        (json!("east"), &[1]),
        (json!(null), &[1, 2]),
        (json!("west"), &[2]),
    ] {
        cluster.take_changes();
        cluster.apply(&[this(zone)]);
        assert_eq!(last_parts(&cluster), expected);
        assert_eq!(cluster.take_changes(), ["ns/web (TCP, IPv4)"]);
    }
    // The node has not left its zone because its object is gone.
    cluster.delete(&[this(json!("west"))]);
    assert_eq!(last_parts(&cluster), [2]);
    assert_eq!(cluster.take_changes(), [""; 0]);
    // Another node's zone is nothing to us.
    cluster.apply(&[node("node-2", "192.0.2.2").label(ZONE, "east")]);
    assert_eq!(last_parts(&cluster), [2]);
}

#[test]
fn udp_flows_stay_where_they_are_served_though_new_ones_go_elsewhere() {
    let endpoints = vec![
        hinted(1, "node-1", &["east"], &[]),
        // Left out by hints, and ready without serving, as with `publishNotReadyAddresses`.
        in_state(hinted(2, "node-2", &["west"], &[]), true, false, false),
        leaving(hinted(3, "node-1", &["east"], &[])),
        in_state(hinted(4, "node-1", &["east"], &[]), false, true, false),
        not_ready(hinted(5, "node-1", &["east"], &[])),
        in_state(hinted(6, "node-1", &["east"], &[]), false, false, true),
    ];
    let all = "10.1.0.2:8080 10.1.0.3:8080* 10.1.0.4:8080*";
    // An association would not survive a readiness probe that fails once.
    let of_sctp = format!("{all} 10.1.0.5:8080* 10.1.0.6:8080*");
    for (protocol, drains_tcp, draining) in [
        (Protocol::Udp, false, all),
        (Protocol::Udp, true, all),
        (Protocol::Sctp, false, &*of_sctp),
        (Protocol::Tcp, false, ""),
        (Protocol::Tcp, true, all),
    ] {
        let mut cluster = Cluster::new();
        if drains_tcp {
            let capabilities = Capabilities::KUBE_PROXY.with_draining_tcp();
            cluster.tracker.set_capabilities(capabilities, Mode::IPVS);
        }
        let web = service("web", "10.0.0.1").port("", protocol.as_str(), 80);
        let of_web =
            slice("web", "1").port("", protocol.as_str(), 8080).set("endpoints", endpoints.clone());
        let this = node("node-1", "192.0.2.1").label(ZONE, "east");
        cluster.apply(&[web.clone(), this, of_web.clone()]);
        let id = id_of("web", "", protocol, IpFamily::V4);
        let port = cluster.find(&id).unwrap();
        assert_eq!(pool(&port.cluster), "10.1.0.1:8080*");
        assert_eq!(pool(&port.draining), draining, "{protocol}");
        let serves = |text: &str| port.serves(text.parse().unwrap());
        assert!(serves("10.1.0.1:8080"));
        assert_eq!(serves("10.1.0.3:8080"), !draining.is_empty());
        let is_kept = protocol == Protocol::Sctp;
        assert_eq!([5, 6].map(|n| serves(&format!("10.1.0.{n}:8080"))), [is_kept; 2], "{protocol}");
        assert!(!serves("10.1.0.1:80"));
        // While nobody serves: who might again.
        cluster.apply(&[of_web.clone().set("endpoints", endpoints[4..].to_vec())]);
        let port = cluster.find(&id).unwrap();
        assert!(port.cluster.is_empty());
        let is_ended = protocol == Protocol::Tcp || drains_tcp;
        let all = "10.1.0.5:8080* 10.1.0.6:8080*";
        assert_eq!(pool(&port.draining), if is_ended { "" } else { all }, "{protocol}");
        cluster.apply(&[of_web]);
        // With iTP Local the cluster pool is not used: its endpoints drain.
        cluster.apply(&[web.set("spec.internalTrafficPolicy", "Local")]);
        let port = cluster.find(&id).unwrap();
        assert_eq!((pool(&port.cluster), pool(&port.local)), ("".into(), "10.1.0.1:8080*".into()));
        assert_eq!(pool(&port.draining), draining, "{protocol}");
    }
}
