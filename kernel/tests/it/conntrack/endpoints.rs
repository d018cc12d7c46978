//! Endpoints come and go.

use std::net::SocketAddr;

use serde_json::{Value, json};
use switchyard_core::testing::{Builder, endpoint, node, service, slice};

use super::{
    support::{Cluster, deleted, dns, in_namespace, slice6},
    table::{Flow, add, assert_entries, flow, udp},
};

fn served_by(endpoints: &[Value]) -> Builder {
    slice("dns", "a").port("", "UDP", 5353).set("endpoints", json!(endpoints))
}

fn ready(ip: &str) -> Value {
    endpoint(ip, "node-1")
}

fn terminating(ip: &str, serving: bool) -> Value {
    let mut endpoint = endpoint(ip, "node-1");
    endpoint["conditions"] = json!({"ready": false, "serving": serving, "terminating": true});
    endpoint
}

fn unready(ip: &str) -> Value {
    let mut unready = ready(ip);
    unready["conditions"] = json!({"ready": false, "serving": false, "terminating": false});
    unready
}

const CLIENT: &str = "10.1.9.9:40000";
const FRONTEND: &str = "10.0.0.10:53";
const ONE: &str = "10.1.0.1:5353";
const TWO: &str = "10.1.0.2:5353";

/// Entries that are no one's business here: to other addresses, ports and protocols, to the
/// endpoints themselves.
fn unrelated() -> Vec<Flow> {
    vec![
        udp(CLIENT, "10.0.0.11:53", ONE),
        udp(CLIENT, "10.0.0.10:54", ONE),
        udp(CLIENT, "198.51.100.7:53", "198.51.100.7:53"),
        udp(CLIENT, ONE, ONE),
        udp("10.0.0.10:53", "10.1.9.8:40000", "10.1.9.8:40000"),
        flow("TCP", CLIENT, FRONTEND, ONE),
        flow("SCTP", CLIENT, FRONTEND, ONE),
    ]
}

#[test]
fn flows_go_when_their_endpoint_goes_in_every_family_and_protocol() {
    type Slice = fn(&str, &str) -> Builder;
    let v4 = (slice as Slice, "10.0.0.10", CLIENT, ["10.1.0.1", "10.1.0.2"]);
    let v6 = (slice6 as Slice, "fd00::10", "[fd01::9]:40000", ["fd01::1", "fd01::2"]);
    for (protocol, case) in [("UDP", v4), ("SCTP", v4), ("UDP", v6), ("SCTP", v6)] {
        in_namespace(|| {
            let (slice, ip, client, endpoints) = case;
            let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port).to_string();
            let (to, other, by) = (&at(ip, 53), &at(ip, 54), endpoints.map(|ip| at(ip, 5353)));
            let service = service("dns", ip).port("", protocol, 53);
            let slice = slice("dns", "a").port("", protocol, 5353);
            let [one, two] = endpoints.map(ready);
            let mut cluster =
                Cluster::with([&service, &slice.clone().endpoint(one).endpoint(two.clone())]);
            let to_one = flow(protocol, client, to, &by[0]);
            let to_two = flow(protocol, &client.replace("40000", "40001"), to, &by[1]);
            let others =
                ["TCP", "UDP", "SCTP"].map(|protocol| flow(protocol, client, other, &by[0]));
            let tcp = flow("TCP", client, to, &by[0]);
            let kept = [&[to_two, tcp], &others[..]].concat();
            if protocol == "SCTP" {
                // An association would not outlive its entry.
                let beside = slice.clone().endpoint(unready(endpoints[0])).endpoint(two.clone());
                cluster.assert_ends(&[&kept[..], &[to_one]].concat(), &[], [&beside]);
                assert_eq!(deleted(&cluster.apply([&slice.endpoint(two)])), 1, "{to}");
                return assert_entries(&kept);
            }
            cluster.assert_ends(&kept, &[to_one], [&slice.endpoint(two)]);
        });
    }
}

#[test]
fn unrelated_entries_stay() {
    in_namespace(|| {
        let mut cluster = Cluster::with([&dns(), &served_by(&[ready("10.1.0.1")])]);
        let stale = [udp(CLIENT, FRONTEND, ONE)];
        cluster.assert_ends(&unrelated(), &stale, [&served_by(&[ready("10.1.0.2")])]);
        assert_eq!(deleted(&cluster.delete([&dns(), &served_by(&[])])), 0);
        assert_entries(&unrelated());
    });
}

#[test]
fn an_endpoint_that_moves_to_another_port_is_another() {
    in_namespace(|| {
        let mut cluster = Cluster::with([&dns(), &served_by(&[ready("10.1.0.1")])]);
        let moved = slice("dns", "a").port("", "UDP", 5354).endpoint(ready("10.1.0.1"));
        cluster.assert_ends(&[], &[udp(CLIENT, FRONTEND, ONE)], [&moved]);
    });
}

#[test]
fn flows_stay_while_their_endpoint_serves_though_it_terminates() {
    in_namespace(|| {
        let mut cluster =
            Cluster::with([&dns(), &served_by(&[ready("10.1.0.1"), ready("10.1.0.2")])]);
        let flows = [udp(CLIENT, FRONTEND, ONE), udp("10.1.9.9:40001", FRONTEND, TWO)];
        add(&flows);
        let draining = served_by(&[terminating("10.1.0.1", true), ready("10.1.0.2")]);
        assert_eq!(deleted(&cluster.apply([&draining])), 0);
        // Another change of the Service does not end them either.
        let more =
            served_by(&[terminating("10.1.0.1", true), ready("10.1.0.2"), ready("10.1.0.3")]);
        cluster.apply([&more]);
        cluster.apply([&draining]);
        assert_entries(&flows);
        let over = served_by(&[terminating("10.1.0.1", false), ready("10.1.0.2")]);
        assert_eq!(deleted(&cluster.apply([&over])), 1);
        assert_entries(&flows[1..]);
    });
}

#[test]
fn flows_stay_though_topology_sends_new_ones_elsewhere() {
    in_namespace(|| {
        let hinted = |ip: &str, zone: &str| {
            let mut endpoint = ready(ip);
            endpoint["hints"] = json!({"forZones": [{"name": zone}]});
            endpoint
        };
        let node = node("node-1", "192.0.2.1")
            .set("metadata/labels/topology.kubernetes.io~1zone", "north");
        let mut cluster =
            Cluster::with([&node, &dns(), &served_by(&[ready("10.1.0.1"), ready("10.1.0.2")])]);
        let flows = [udp(CLIENT, FRONTEND, ONE), udp("10.1.9.9:40001", FRONTEND, TWO)];
        add(&flows);
        let zones = served_by(&[hinted("10.1.0.1", "south"), hinted("10.1.0.2", "north")]);
        cluster.apply([&zones]);
        assert_entries(&flows);
        cluster.apply([&served_by(&[hinted("10.1.0.2", "north")])]);
        assert_entries(&flows[1..]);
    });
}

#[test]
fn flows_stay_though_the_policy_refuses_new_ones() {
    in_namespace(|| {
        let elsewhere = endpoint("10.1.0.1", "node-2");
        let mut cluster = Cluster::with([&dns(), &served_by(&[elsewhere])]);
        let local = dns().set("spec.internalTrafficPolicy", "Local");
        cluster.assert_ends(&[udp(CLIENT, FRONTEND, ONE)], &[], [&local]);
    });
}

#[test]
fn flows_stay_with_an_endpoint_while_nobody_serves() {
    let unready = unready("10.1.0.1");
    let local = dns().set("spec.internalTrafficPolicy", "Local");
    for ends in 0..5 {
        in_namespace(|| {
            let mut cluster = Cluster::with([&dns(), &served_by(&[ready("10.1.0.1")])]);
            let flow = udp(CLIENT, FRONTEND, ONE);
            add(&[flow]);
            let nobody = served_by(std::slice::from_ref(&unready));
            assert_eq!(cluster.apply([&nobody]), []);
            assert_eq!(cluster.apply([&served_by(&[ready("10.1.0.1")])]).len(), 1);
            cluster.apply([&nobody]);
            cluster.restart();
            cluster.apply([]);
            assert_entries(&[flow]);
            let reports = match ends {
                0 => cluster.apply([&served_by(&[ready("10.1.0.2")])]),
                // It gets no new flows from this node.
                1 => cluster.apply([&local, &served_by(&[endpoint("10.1.0.2", "node-2")])]),
                2 => cluster.delete([&dns()]),
                3 => cluster.apply([&served_by(&[])]),
                _ => {
                    cluster.resolve([&served_by(&[])]);
                    cluster.restart();
                    cluster.apply([])
                }
            };
            assert_eq!(deleted(&reports), 1, "{ends}");
        });
    }
}

#[test]
fn the_first_endpoint_ends_flows_that_nobody_redirected() {
    // The Service is there before, or comes with it.
    for before in [&[dns()][..], &[]] {
        in_namespace(|| {
            let mut cluster = Cluster::with(before);
            let (other, stale) =
                (udp(CLIENT, "10.0.0.10:54", "10.0.0.10:54"), udp(CLIENT, FRONTEND, FRONTEND));
            let first = served_by(&[ready("10.1.0.1")]);
            cluster.assert_ends(&[other], &[stale], [&dns(), &first]);
        });
    }
}

#[test]
fn nothing_is_asked_when_nothing_can_be_stale() {
    in_namespace(|| {
        let web = service("web", "10.0.0.20").port("", "TCP", 80);
        let web_slice = slice("web", "a").port("", "TCP", 80);
        let mut cluster = Cluster::with([&dns(), &served_by(&[ready("10.1.0.1")]), &web]);
        // A second endpoint.
        assert_eq!(cluster.apply([&served_by(&[ready("10.1.0.1"), ready("10.1.0.2")])]), []);
        // TCP, whatever happens to it.
        assert_eq!(cluster.apply([&web_slice.clone().endpoint(ready("10.1.0.5"))]), []);
        assert_eq!(cluster.delete([&web_slice, &web]), []);
        // Another policy.
        assert_eq!(cluster.apply([&dns().set("spec.sessionAffinity", "ClientIP")]), []);
    });
}

#[test]
fn flows_to_endpoints_of_both_pools_stay() {
    in_namespace(|| {
        let lb = dns()
            .set("spec.type", "LoadBalancer")
            .set("spec.externalTrafficPolicy", "Local")
            .set("spec.healthCheckNodePort", 32000)
            .ingress("203.0.113.1");
        let two = [endpoint("10.1.0.1", "node-1"), endpoint("10.1.0.2", "node-2")];
        let mut cluster =
            Cluster::with([&lb, &served_by(&[two[0].clone(), two[1].clone(), ready("10.1.0.3")])]);
        let flows =
            [udp(CLIENT, "203.0.113.1:53", ONE), udp("10.1.9.9:40001", "203.0.113.1:53", TWO)];
        let stale = udp("10.1.9.9:40002", "203.0.113.1:53", "10.1.0.3:5353");
        cluster.assert_ends(&flows, &[stale], [&served_by(&two)]);
    });
}
