//! Frontends come, go and move.

use switchyard_core::{
    config::{NodeConfig, NodePortAddressConfig},
    testing::{Builder, NODE, endpoint, node, service, slice},
};
use test_netns::run;

use super::{
    support::{Cluster, deleted, dns, in_namespace, slice6},
    table::{add, assert_entries, udp},
};

const CLIENT: &str = "198.51.100.9:40000";
const POD: &str = "10.1.0.1:5353";

fn node_port(port: i64) -> Builder {
    dns().set("spec.type", "NodePort").node_port(port)
}

fn balanced(ip: &str) -> Builder {
    dns().set("spec.type", "LoadBalancer").ingress(ip)
}

fn pod() -> Builder {
    pod_at("10.1.0.1")
}

fn pod_at(ip: &str) -> Builder {
    slice("dns", "a").port("", "UDP", 5353).endpoint(endpoint(ip, "node-1"))
}

#[test]
fn a_service_takes_the_flows_of_all_its_frontends_along() {
    in_namespace(|| {
        let service = balanced("203.0.113.1")
            .node_port(30053)
            .set("spec.externalIPs", serde_json::json!(["203.0.113.50"]));
        let mut cluster = Cluster::with([&service, &pod()]);
        add(&[
            udp(CLIENT, "10.0.0.10:53", POD),
            udp(CLIENT, "203.0.113.1:53", POD),
            udp(CLIENT, "203.0.113.50:53", POD),
            udp(CLIENT, "192.0.2.1:30053", POD),
            udp(CLIENT, "127.0.0.1:30053", POD),
        ]);
        // Somebody else's redirection, and a flow that no one redirects.
        let others = [
            udp("198.51.100.9:40001", "203.0.113.50:53", "10.9.9.9:53"),
            udp("198.51.100.9:40001", "192.0.2.1:30053", "192.0.2.1:30053"),
        ];
        add(&others);
        assert_eq!(deleted(&cluster.delete([&service])), 5);
        assert_entries(&others);
    });
}

#[test]
fn what_changes_while_a_family_is_left_out_is_done_when_it_is_back() {
    in_namespace(|| {
        let v6 = |name, ip| service(name, ip).port("", "UDP", 53);
        let [gone, stays] = [v6("gone", "2001:db8::10"), v6("stays", "2001:db8::11")];
        let pods = |last: &[&str]| {
            let slice = slice6("stays", "a").port("", "UDP", 5353);
            last.iter().fold(slice, |slice, ip| slice.endpoint(endpoint(ip, "node-1")))
        };
        let gone_pod =
            slice6("gone", "a").port("", "UDP", 5353).endpoint(endpoint("fd00::1", "node-1"));
        let both = pods(&["fd00::1", "fd00::2"]);
        let mut cluster = Cluster::with([&gone, &stays, &gone_pod, &both, &dns(), &pod()]);
        let (client, pod1, pod2) = ("[2001:db8::9]:4000", "[fd00::1]:5353", "[fd00::2]:5353");
        let kept = udp(client, "[2001:db8::11]:53", pod2);
        let of_v6 = [
            kept,
            udp(client, "[2001:db8::10]:53", pod1),
            udp("[2001:db8::9]:4001", "[2001:db8::11]:53", pod1),
        ];
        add(&of_v6);
        add(&[udp(CLIENT, "10.0.0.10:53", POD)]);
        cluster.leave_v6_out(true);
        // The rules of IPv6 are as they were, and would make the same flows again.
        cluster.change([&pods(&["fd00::2"])], [&gone, &dns()]);
        assert_eq!(deleted(&cluster.wait()), 1, "of IPv4");
        assert_eq!(deleted(&cluster.repair()), 0);
        assert_entries(&of_v6);
        cluster.leave_v6_out(false);
        cluster.sync();
        assert_eq!(deleted(&cluster.wait()), 2);
        assert_entries(&[kept]);
    });
}

#[test]
fn a_port_takes_its_flows_along_and_leaves_the_others() {
    in_namespace(|| {
        let two_ports = service("dns", "10.0.0.10").port("a", "UDP", 53).port("b", "UDP", 54);
        let slice = slice("dns", "a")
            .port("a", "UDP", 5353)
            .port("b", "UDP", 5354)
            .endpoint(endpoint("10.1.0.1", "node-1"));
        let mut cluster = Cluster::with([&two_ports, &slice]);
        let kept = udp(CLIENT, "10.0.0.10:53", POD);
        let stale = udp(CLIENT, "10.0.0.10:54", "10.1.0.1:5354");
        let one_port = service("dns", "10.0.0.10").port("a", "UDP", 53);
        cluster.assert_ends(&[kept], &[stale], [&one_port]);
    });
}

#[test]
fn a_port_that_is_only_renamed_keeps_its_flows() {
    in_namespace(|| {
        let named = |name| {
            let slice =
                slice("dns", "a").port(name, "UDP", 5353).endpoint(endpoint("10.1.0.1", "node-1"));
            [service("dns", "10.0.0.10").port(name, "UDP", 53), slice]
        };
        let mut cluster = Cluster::with(&named("old"));
        cluster.assert_ends(&[udp(CLIENT, "10.0.0.10:53", POD)], &[], &named("new"));
    });
}

#[test]
fn a_node_port_moves() {
    in_namespace(|| {
        let mut cluster = Cluster::with([&node_port(30053), &pod()]);
        let kept = [
            udp(CLIENT, "10.0.0.10:53", POD),
            // Remote hosts, with either port number, redirected by someone else or not at all.
            udp(CLIENT, "198.51.100.1:30053", "198.51.100.1:30053"),
            udp(CLIENT, "198.51.100.2:30053", POD),
            udp(CLIENT, "198.51.100.1:30054", "198.51.100.1:30054"),
            // Where node ports are not served.
            udp(CLIENT, "127.0.0.1:30054", "127.0.0.1:30054"),
        ];
        let stale = [
            udp(CLIENT, "192.0.2.1:30053", POD),
            udp(CLIENT, "192.0.2.1:30054", "192.0.2.1:30054"),
        ];
        cluster.assert_ends(&kept, &stale, [&node_port(30054)]);
    });
}

#[test]
fn an_address_that_serves_node_ports_from_now_on_ends_flows_that_nobody_redirected() {
    in_namespace(|| {
        let mut config = NodeConfig::new(NODE);
        config.node_port_addresses = vec![NodePortAddressConfig::Primary];
        let mut cluster = Cluster::of(config);
        cluster.apply([&node_port(30053), &pod(), &node(NODE, "192.0.2.2")]);
        let stale = udp(CLIENT, "192.0.2.1:30053", "192.0.2.1:30053");
        let kept = [
            udp("198.51.100.9:40001", "192.0.2.1:30053", POD),
            udp(CLIENT, "192.0.2.1:30054", "192.0.2.1:30054"),
            udp(CLIENT, "10.0.0.10:53", "10.0.0.10:53"),
        ];
        cluster.assert_ends(&kept, &[stale], [&node(NODE, "192.0.2.1")]);
    });
}

#[test]
fn a_node_port_at_an_address_that_is_local_by_a_route() {
    in_namespace(|| {
        run("ip route add local 203.0.113.7 dev lo");
        run("ip route add local 203.0.113.128/25 dev lo");
        let mut cluster = Cluster::with([&node_port(30053), &pod()]);
        let remote = udp(CLIENT, "203.0.113.8:30053", POD);
        let here = ["203.0.113.7:30053", "203.0.113.200:30053"].map(|to| udp(CLIENT, to, POD));
        cluster.assert_ends(&[remote], &here, [&pod_at("10.1.0.2")]);
    });
}

#[test]
fn a_node_port_of_ipv6() {
    in_namespace(|| {
        let service = service("dns", "fd00::10")
            .port("", "UDP", 53)
            .set("spec.type", "NodePort")
            .node_port(30053);
        let slice = slice6("dns", "a").port("", "UDP", 5353);
        let one = slice.clone().endpoint(endpoint("fd01::1", "node-1"));
        let mut cluster = Cluster::with([&service, &one]);
        let client = "[2001:db8:9::9]:40000";
        let remote = udp(client, "[2001:db8:1::1]:30053", "[fd01::1]:5353");
        run("ip -6 route add local 2001:db8:2::/64 dev lo");
        let here = ["[2001:db8::1]:30053", "[2001:db8:2::7]:30053"]
            .map(|to| udp(client, to, "[fd01::1]:5353"));
        let two = slice.endpoint(endpoint("fd01::2", "node-1"));
        cluster.assert_ends(&[remote], &here, [&two]);
    });
}

#[test]
fn a_load_balancers_address_moves() {
    in_namespace(|| {
        let mut cluster = Cluster::with([&balanced("203.0.113.1"), &pod()]);
        let kept = udp(CLIENT, "10.0.0.10:53", POD);
        let stale =
            [udp(CLIENT, "203.0.113.1:53", POD), udp(CLIENT, "203.0.113.2:53", "203.0.113.2:53")];
        cluster.assert_ends(&[kept], &stale, [&balanced("203.0.113.2")]);
    });
}

#[test]
fn an_address_moves_to_another_service() {
    in_namespace(|| {
        let other = service("other", "10.0.0.20").port("", "UDP", 53);
        let other_with = other.clone().set("spec.type", "LoadBalancer").ingress("203.0.113.1");
        let other_pod =
            slice("other", "a").port("", "UDP", 53).endpoint(endpoint("10.1.0.2", "node-1"));
        let mut cluster = Cluster::with([&balanced("203.0.113.1"), &pod(), &other, &other_pod]);
        let good = udp("198.51.100.9:40001", "203.0.113.1:53", "10.1.0.2:53");
        let stale = udp(CLIENT, "203.0.113.1:53", POD);
        cluster.assert_ends(&[good], &[stale], [&dns(), &other_with]);
    });
}

#[test]
fn an_address_of_the_node_that_another_service_has_is_no_node_port() {
    in_namespace(|| {
        // The same port number on the node's own address, which is an external IP as well.
        let external = service("other", "10.0.0.20")
            .port("", "UDP", 30053)
            .set("spec.externalIPs", serde_json::json!(["192.0.2.1"]));
        let external_pod =
            slice("other", "a").port("", "UDP", 53).endpoint(endpoint("10.1.0.2", "node-1"));
        let mut cluster = Cluster::with([&external, &external_pod, &node_port(30053), &pod()]);
        let kept = udp(CLIENT, "192.0.2.1:30053", "10.1.0.2:53");
        let stale = udp(CLIENT, "127.0.0.1:30053", POD);
        cluster.assert_ends(&[kept], &[stale], [&pod_at("10.1.0.2")]);
        // Not even when both are gone at once: each takes its own.
        assert_eq!(deleted(&cluster.delete([&external, &node_port(30053)])), 1);
        assert_entries(&[]);
    });
}
