//! Genuine kube-proxy's rules: nothing is found in healthy ones but what kube-proxy means to do
//! otherwise, and damages are found.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig, NodePortAddressConfig},
    explain::Known,
    objects::Event,
    testing::{NODE, endpoint, service, service_cidr, slice},
};
use switchyard_kernel::nftables::Family;
use test_netns::{in_namespace, run, run_with};

use super::{Objects, Report, local_addresses, tables, tracker};
use crate::comparison::service::drained;

const RULES: &str = include_str!("kube_proxy.nft");

/// The objects that [`RULES`] are for, with annotations of a slice, or an endpoint whose slice names
/// no node.
fn objects(weights: Option<&str>, algorithm: Option<&str>, is_named: bool) -> Vec<Event> {
    let tcp = |name: &str, ip: &str| service(name, ip).port("http", "TCP", 80);
    let ends = |name: &str, local: &str| {
        let one = slice(name, "1").port("http", "TCP", 8080).endpoint(endpoint(local, NODE));
        let mut other = endpoint(if name == "lb" { "10.1.0.8" } else { "10.2.0.7" }, "other");
        if !is_named {
            other["nodeName"] = json!(null);
        }
        let all = one.endpoint(other);
        match weights {
            Some(weights) => all.annotation("switchyard/weights", weights),
            None => all,
        }
    };
    let mut web = tcp("web", "10.96.0.10").set("spec.type", "NodePort").node_port(30_080);
    if let Some(algorithm) = algorithm {
        web = web.annotation("switchyard/lb-algorithm", algorithm);
    }
    let cart = tcp("cart", "10.96.0.11")
        .set("spec.type", "NodePort")
        .node_port(30_081)
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.sessionAffinity", "ClientIP")
        .set("spec.sessionAffinityConfig.clientIP.timeoutSeconds", 600);
    let lb = tcp("lb", "10.96.0.13")
        .set("spec.type", "LoadBalancer")
        .set("spec.loadBalancerSourceRanges", json!(["198.51.100.0/24"]))
        .ingress("203.0.113.1");
    vec![
        web.apply(),
        ends("web", "10.1.0.5").apply(),
        cart.apply(),
        ends("cart", "10.1.0.5").apply(),
        tcp("idle", "10.96.0.12").set("spec.type", "NodePort").node_port(30_082).apply(),
        lb.apply(),
        ends("lb", "10.1.0.6").apply(),
        service_cidr("all", &["10.96.0.0/16"]).apply(),
    ]
}

fn compare(events: Vec<Event>, node_ports: &[NodePortAddressConfig]) -> Report {
    let pods = LocalPodsConfig::ClusterCidr(vec!["10.1.0.0/16".parse().expect("a network")]);
    let mut node = NodeConfig::new(NODE);
    node.local_pods = pods;
    node.localhost_node_ports = node_ports.contains(&NodePortAddressConfig::Localhost);
    node.node_port_addresses = node_ports.to_vec();
    let tracker = tracker(node, events);
    let state = tracker.state();
    let addresses = local_addresses();
    let ports = state.service_ports.values();
    let known: Vec<_> = Known::names(&tracker)
        .filter_map(|name| Known::service(&tracker, name, &|_| true))
        .collect();
    let drained = known.iter().flat_map(|one| &one.ports).flat_map(drained);
    let objects = Objects::new(Family::Ip, &state.node, ports, &addresses).drained(drained);
    let mut report = Report::default();
    report.compare(&tables()[0], &objects, Duration::MAX, Duration::MAX).expect("a table");
    report
}

fn load() {
    let rules = format!("table ip kube-proxy {{}}\ndelete table ip kube-proxy\n{RULES}");
    run_with("nft -f -", &rules);
}

#[test]
fn differences_of_kube_proxy_have_their_names() {
    let all = [NodePortAddressConfig::Cidr("0.0.0.0/0".parse().expect("a network"))];
    let localhost = [all[0].clone(), NodePortAddressConfig::Localhost];
    in_namespace(|| {
        load();
        for (events, node_ports, reasons) in [
            (objects(None, None, true), &all[..], &[][..]),
            (objects(Some("10.2.0.7=3"), None, true), &all, &["knows no weights"]),
            (objects(Some("10.2.0.7=0"), None, true), &all, &["knows no weights"]),
            (objects(None, Some("maglev"), true), &all, &["draws at random"]),
            (objects(None, None, false), &all, &["slice names the node"]),
            (objects(None, None, true), &localhost, &["loopback addresses from release"]),
        ] {
            let found = compare(events, node_ports);
            assert!(found.of_kube_proxy && found.is_equal(), "{reasons:?}: {found}");
            let named: BTreeSet<_> =
                found.differences.iter().filter_map(|one| one.reason).collect();
            assert_eq!(named.len(), reasons.len(), "{reasons:?}: {found}");
            let mut pairs = named.iter().zip(reasons);
            assert!(pairs.all(|(named, reason)| named.contains(reason)), "{found}");
        }
    });
}

#[test]
fn damages_of_kube_proxys_rules_are_found() {
    let all = [NodePortAddressConfig::Cidr("0.0.0.0/0".parse().expect("a network"))];
    in_namespace(|| {
        for (damage, service) in [
            ("delete element ip kube-proxy service-ips { 10.96.0.10 . tcp . 80 }", "ns/web"),
            ("delete element ip kube-proxy service-nodeports { tcp . 30081 }", "ns/cart"),
            ("delete element ip kube-proxy cluster-ips { 10.96.0.11 }", "ns/cart"),
            ("delete element ip kube-proxy no-endpoint-nodeports { tcp . 30082 }", "ns/idle"),
            ("delete element ip kube-proxy firewall-ips { 203.0.113.1 . tcp . 80 }", "ns/lb"),
            (
                "delete element ip kube-proxy hairpin-connections \
                 { 10.1.0.6 . 10.1.0.6 . tcp . 8080 }",
                "ns/lb",
            ),
            ("flush chain ip kube-proxy external-web", "ns/web"),
            (
                "add set ip kube-proxy limited { type ipv4_addr ; limit rate 1/second ; } ; \
                 add element ip kube-proxy limited { 10.96.0.11 limit rate 1/second } ; \
                 insert rule ip kube-proxy services ip daddr 10.96.0.11 ip daddr != @limited drop",
                "ns/cart",
            ),
            (
                "insert rule ip kube-proxy endpoint-cart-5 update @affinity-cart-7 { ip saddr }",
                "ns/cart",
            ),
            ("insert rule ip kube-proxy local-cart goto endpoint-cart-7", "ns/cart"),
            (
                "insert rule ip kube-proxy service-cart \
                 ip saddr @affinity-cart-5 ip saddr @affinity-cart-7 drop",
                "ns/cart",
            ),
        ] {
            load();
            run(&format!("nft {damage}"));
            let found = compare(objects(None, None, true), &all);
            let named: BTreeSet<_> =
                found.differences.iter().filter_map(|one| one.service.as_deref()).collect();
            assert!(!found.is_equal() && named.contains(service), "{damage}: {found}");
        }
    });
}
