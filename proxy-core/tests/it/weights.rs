//! Weights of endpoints: what slices say, which shares follow, and what weight 0 means.

use serde_json::Value;
use switchyard_core::{
    model::{IpFamily, Protocol, ServiceName},
    proxier::{Capabilities, Mode},
    state::Action,
    testing::{Builder, NAMESPACE, NODE, endpoint, node, service, slice},
    track::Reason,
};

use crate::support::{Cluster, fields, hinted, id_of, leaving, pool, slice_of_web, web};

const WEIGHT: &str = "switchyard/weight";
const WEIGHTS: &str = "switchyard/weights";
const CILIUM: &str = "service.cilium.io/weight";

fn cluster() -> Cluster {
    let mut cluster = Cluster::new();
    cluster.tracker.set_capabilities(Capabilities::KUBE_PROXY.with_weights(), Mode::NFTABLES);
    cluster
}

fn here(last: u8) -> Value {
    endpoint(&format!("10.1.0.{last}"), NODE)
}

fn there(last: u8) -> Value {
    endpoint(&format!("10.1.0.{last}"), "node-2")
}

/// The cluster pool of `web` as text, without the part that all addresses have.
fn shares(cluster: &Cluster) -> String {
    pool(&cluster.port("web", "").cluster)
        .replace("10.1.0.", "")
        .replace([':', '*'], "")
        .replace("80", "")
}

/// The shares of endpoints 1 to 3 in a slice with these annotations, and the fields with problems.
fn annotated(annotations: &[(&str, &str)]) -> (String, Vec<String>) {
    let mut cluster = cluster();
    let slice = annotations
        .iter()
        .fold(slice_of_web("a", [1, 2, 3]), |made, (name, value)| made.annotation(name, *value));
    let other = slice_of_web("b", [9]);
    let problems = cluster.apply(&[web(), slice, other]);
    (shares(&cluster), fields(&problems))
}

#[test]
fn a_slice_has_a_weight() {
    assert_eq!(annotated(&[]), ("1 2 3 9".into(), vec![]));
    assert_eq!(annotated(&[(WEIGHT, " 3 ")]), ("1=3 2=3 3=3 9".into(), vec![]));
    assert_eq!(annotated(&[(CILIUM, "65535")]), ("1=65535 2=65535 3=65535 9".into(), vec![]));
    assert_eq!(annotated(&[(CILIUM, "2"), (WEIGHT, "4")]).0, "1=4 2=4 3=4 9", "ours counts");
    assert_eq!(annotated(&[(WEIGHT, "0")]).0, "9");
}

#[test]
fn an_address_has_a_weight() {
    let (shares, problems) = annotated(&[(WEIGHTS, "10.1.0.2=5,10.1.0.3 = 0 ,")]);
    assert_eq!((shares.as_str(), problems), ("1 2=5 9", vec![]));
    let (shares, problems) = annotated(&[(WEIGHTS, "10.1.0.2=5"), (WEIGHT, "2")]);
    assert_eq!((shares.as_str(), problems), ("1=2 2=5 3=2 9", vec![]));
}

#[test]
fn an_ipv6_address_has_a_weight() {
    let mut cluster = cluster();
    let slice = slice("web", "a")
        .set("addressType", "IPv6")
        .port("", "TCP", 80)
        .endpoint(endpoint("fd01::1", NODE))
        .endpoint(endpoint("fd01::2", NODE))
        .annotation(WEIGHTS, "fd01::1=7, fd01:0::2=3");
    assert_eq!(cluster.apply(&[service("web", "fd00::1").port("", "TCP", 80), slice]), []);
    let port = cluster.find(&id_of("web", "", Protocol::Tcp, IpFamily::V6)).unwrap();
    assert_eq!(pool(&port.cluster), "[fd01::1]:80*=7 [fd01::2]:80*=3");
}

#[test]
fn bad_weights_are_problems_and_the_rest_counts() {
    for bad in ["", "x", "-1", "+1", "65536", "1.5", "99999999999999999999"] {
        let field = vec![format!("EndpointSlice ns/web-a: metadata.annotations[{WEIGHT}]")];
        assert_eq!(annotated(&[(WEIGHT, bad)]), ("1 2 3 9".into(), field), "{bad}");
    }
    for bad in ["10.1.0.1", "10.1.0.1=", "10.1.0.1=x", "10.1.0.1:5", "=5", "web=5", "10.1.0.9=5"] {
        let mut cluster = cluster();
        let text = format!("10.1.0.2=5, {bad}, 10.1.0.3=4");
        let slice = slice_of_web("a", [1, 2, 3]).annotation(WEIGHTS, text).annotation(WEIGHT, "2");
        let problems = cluster.apply(&[web(), slice]);
        let [problem] = problems.as_slice() else { panic!("{bad}: {problems:?}") };
        assert_eq!(problem.field, "metadata.annotations[switchyard/weights]");
        assert_eq!(problem.reason, Reason::Invalid);
        assert!(problem.message.starts_with(&format!("`{bad}` ")), "{}", problem.message);
        assert_eq!(shares(&cluster), "1=2 2=5 3=4", "{bad}");
    }
    let (shares, problems) = annotated(&[(WEIGHTS, "10.1.0.1=2,10.1.0.1=3")]);
    assert_eq!((shares.as_str(), problems.len()), ("1=2 2 3 9", 1), "the first counts");
}

#[test]
fn weights_have_no_common_divisor() {
    let (shares, _) = annotated(&[(WEIGHTS, "10.1.0.1=6,10.1.0.2=9,10.1.0.3=12")]);
    assert_eq!(shares, "1=6 2=9 3=12 9", "9 has weight 1");
    let mut cluster = cluster();
    let slice =
        slice_of_web("a", [1, 2, 3]).annotation(WEIGHTS, "10.1.0.1=6,10.1.0.2=9,10.1.0.3=12");
    cluster.apply(&[web(), slice.clone()]);
    assert_eq!(self::shares(&cluster), "1=2 2=3 3=4");
    cluster.take_changes();
    // What is the same share is no change.
    cluster.apply(&[slice.annotation(WEIGHTS, "10.1.0.1=2,10.1.0.2=3,10.1.0.3=4")]);
    assert_eq!(cluster.take_changes(), [""; 0]);
    cluster.apply(&[slice_of_web("a", [1, 2, 3]).annotation(WEIGHT, "60000")]);
    assert_eq!(self::shares(&cluster), "1 2 3");
    assert_eq!(cluster.take_changes(), ["ns/web (TCP, IPv4)"]);
}

#[test]
fn each_pool_has_weights_of_its_own() {
    let mut cluster = cluster();
    let service = web()
        .set("spec.type", "NodePort")
        .set("spec.externalTrafficPolicy", "Local")
        .node_port(30000);
    let mine = slice_of_web("a", [1, 2]).annotation(WEIGHTS, "10.1.0.1=2,10.1.0.2=4");
    let other = slice("web", "b").port("", "TCP", 80).endpoint(there(3));
    cluster.apply(&[service, mine, other]);
    let port = cluster.port("web", "");
    assert_eq!(pool(&port.cluster), "10.1.0.1:80*=2 10.1.0.2:80*=4 10.1.0.3:80");
    assert_eq!(pool(&port.local), "10.1.0.1:80* 10.1.0.2:80*=2");
}

#[test]
fn the_order_of_slices_does_not_matter() {
    for names in [["a", "b"], ["b", "a"]] {
        let mut cluster = cluster();
        let light = slice_of_web(names[0], [1]).annotation(WEIGHT, "2");
        let heavy = slice_of_web(names[1], [1]).annotation(WEIGHT, "5");
        cluster.apply(&[web(), light, heavy, slice_of_web("c", [9])]);
        assert_eq!(shares(&cluster), "1=5 9");
    }
    // The rank of an endpoint comes first.
    for names in [["a", "b"], ["b", "a"]] {
        let mut cluster = cluster();
        let ready = slice_of_web(names[0], [1]).annotation(WEIGHT, "2");
        let gone = slice("web", names[1]).port("", "TCP", 80).endpoint(leaving(here(1)));
        cluster.apply(&[web(), ready, gone.annotation(WEIGHT, "5"), slice_of_web("c", [9])]);
        assert_eq!(shares(&cluster), "1=2 9");
    }
}

#[test]
fn weight_zero_takes_no_new_connections_and_keeps_flows() {
    let mut cluster = cluster();
    let udp = service("web", "10.0.0.1").port("", "UDP", 80);
    let slice = slice("web", "a").port("", "UDP", 80).endpoint(here(1)).endpoint(here(2));
    cluster.apply(&[udp, slice.annotation(WEIGHTS, "10.1.0.1=0")]);
    let port = cluster.find(&id_of("web", "", Protocol::Udp, IpFamily::V4)).unwrap();
    assert_eq!(pool(&port.cluster), "10.1.0.2:80*");
    assert_eq!(pool(&port.draining), "10.1.0.1:80*");
    assert!(port.serves("10.1.0.1:80".parse().unwrap()));
}

fn route(cluster: &Cluster) -> Action {
    cluster.port("web", "").frontends[0].action
}

#[test]
fn only_weight_zero_is_as_nothing_ready() {
    let mut cluster = cluster();
    let slice = slice_of_web("a", [1, 2]).annotation(WEIGHT, "0");
    cluster.apply(&[web(), slice.clone()]);
    assert_eq!(route(&cluster), Action::Reject);
    let local = web().set("spec.internalTrafficPolicy", "Local");
    cluster.apply([&local]);
    assert_eq!(route(&cluster), Action::Reject);
    let elsewhere = Builder::endpoint(self::slice("web", "b").port("", "TCP", 80), there(3));
    cluster.apply([&elsewhere]);
    assert_eq!(route(&cluster), Action::Drop, "another node has an endpoint");
    cluster.apply([&elsewhere.annotation(WEIGHT, "0")]);
    assert_eq!(route(&cluster), Action::Reject, "that takes no connections either");
}

#[test]
fn terminating_endpoints_step_in_for_weight_zero() {
    let mut cluster = cluster();
    let slice = slice("web", "a")
        .port("", "TCP", 80)
        .endpoint(here(1))
        .endpoint(leaving(here(2)))
        .endpoint(leaving(here(3)));
    cluster.apply(&[web(), slice.annotation(WEIGHTS, "10.1.0.1=0,10.1.0.3=0")]);
    assert_eq!(shares(&cluster), "2", "but not those of weight 0 themselves");
}

#[test]
fn zones_with_weight_zero_alone_are_no_black_holes() {
    let this = node(NODE, "192.0.2.1").label("topology.kubernetes.io/zone", "east");
    let slice = slice("web", "a")
        .port("", "TCP", 80)
        .endpoint(hinted(1, "node-2", &["east"], &[]))
        .endpoint(hinted(2, "node-2", &["west"], &[]))
        .endpoint(there(3));
    let used = |weights: &str| {
        let mut cluster = cluster();
        cluster.apply(&[web(), this.clone(), slice.clone().annotation(WEIGHTS, weights)]);
        shares(&cluster)
    };
    assert_eq!(used("10.1.0.3=1"), "1 2 3", "one has no hint");
    assert_eq!(used("10.1.0.3=0"), "1", "its hint is missed no more");
    assert_eq!(used("10.1.0.3=0,10.1.0.1=0"), "2", "nothing is left in the zone");
}

#[test]
fn nodes_with_weight_zero_alone_are_no_black_holes() {
    let slice = slice("web", "a")
        .port("", "TCP", 80)
        .endpoint(hinted(1, NODE, &[], &[NODE]))
        .endpoint(hinted(2, "node-2", &[], &["node-2"]));
    let used = |weights: &str| {
        let mut cluster = cluster();
        cluster.apply(&[web(), slice.clone().annotation(WEIGHTS, weights)]);
        shares(&cluster)
    };
    assert_eq!((used("10.1.0.1=1"), used("10.1.0.1=0")), ("1".into(), "2".into()));
}

#[test]
fn health_checks_do_not_count_weight_zero() {
    let mut cluster = cluster();
    let balanced = web()
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.healthCheckNodePort", 31000);
    cluster.apply(&[balanced, slice_of_web("a", [1, 2, 3]).annotation(WEIGHTS, "10.1.0.2=0")]);
    let check = cluster.tracker.state().health_checks[&ServiceName::new(NAMESPACE, "web")];
    assert_eq!(check.local_endpoints.v4, Some(2));
}

#[test]
fn a_backend_without_weights_spreads_evenly_and_drains() {
    let mut cluster = Cluster::new();
    cluster.tracker.set_capabilities(Capabilities::KUBE_PROXY, Mode::IPTABLES);
    let slice = slice_of_web("a", [1, 2, 3]);
    let weighted = slice.clone().annotation(WEIGHTS, "10.1.0.1=0,10.1.0.2=3");
    let problems = cluster.apply(&[web(), weighted]);
    assert_eq!(shares(&cluster), "2 3");
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!((&problem.object, problem.reason), (&web().key(), Reason::Unsupported));
    assert_eq!(problem.field, "metadata.annotations[switchyard/weight]");
    assert_eq!(
        problem.message,
        "the EndpointSlices give endpoints unequal weights, which cannot be programmed in iptables \
         mode; connections are spread evenly, and weight 0 drains"
    );
    assert_eq!(cluster.tracker.unsupported().v4, 1);
    // Weights that are alike, or 0, are no problem.
    for fine in ["10.1.0.1=3,10.1.0.2=3,10.1.0.3=3", "10.1.0.1=0"] {
        assert_eq!(cluster.apply(&[slice.clone().annotation(WEIGHTS, fine)]), []);
        assert_eq!(cluster.tracker.unsupported().v4, 0, "{fine}");
    }
}
