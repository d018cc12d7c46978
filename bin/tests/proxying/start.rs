//! The phase between the start and the first programming: the Node is waited for, the
//! configuration is held against it, and later changes of it are followed.

use std::fs;

use api_standin::{Resource, load};
use serde_json::{Value, json};

use crate::{
    namespace::{HEALTH, METRICS, Namespace, until},
    standin::{Cluster, NODE, run},
};

fn node(ips: &[&str], pod_cidrs: &[&str]) -> Value {
    let mut node = load::node(NODE);
    let address = |ip: &&str| json!({"type": "InternalIP", "address": ip});
    node["status"]["addresses"] = ips.iter().map(address).collect();
    node["spec"]["podCIDRs"] = json!(pod_cidrs);
    node
}

/// A server with this Node and one Service.
async fn cluster(node: Value) -> Cluster {
    let cluster = Cluster::start().await;
    cluster.server.store().apply(node);
    load::fill(cluster.server.store(), 1, 1);
    cluster
}

/// The log of a program that ends by itself, with status 1.
fn failed(cluster: &Cluster, namespace: &Namespace, more: &[&str]) -> String {
    let (status, log) = cluster.run_program(namespace, more).ended();
    assert_eq!(status.code(), Some(1), "{log}");
    log
}

#[test]
fn pod_networks_are_waited_for_and_followed() {
    run(|namespace| async move {
        // What an earlier run has left must serve in the meantime.
        namespace.0.output("nft", &["add", "table", "ip", "kube-proxy"], "").unwrap();
        let rules = || namespace.list("table ip kube-proxy");
        let cluster = cluster(node(&["192.0.2.1"], &[])).await;
        let apply = |node| cluster.server.store().apply(node);
        let before = rules();
        let program = cluster.run_program(
            &namespace,
            &["--proxy-mode=nftables", "--detect-local-mode=NodeCIDR", "-v=2"],
        );
        // All Services are known, and still nothing is programmed.
        namespace.wait(METRICS, "/metrics", |_, text| {
            text.contains("kubeproxy_sync_proxy_rules_endpoint_changes_total 1\n")
        });
        assert_eq!(rules(), before);
        let status = |path| namespace.get(HEALTH, path).unwrap().0;
        assert_eq!([status("/livez"), status("/readyz")], [200, 503]);

        apply(node(&["192.0.2.1"], &["10.7.1.0/24"]));
        namespace.wait_for_service_ports(1);
        assert_eq!(status("/readyz"), 200);
        assert!(rules().contains("10.7.1.0/24"), "{}", rules());
        apply(node(&["192.0.2.1"], &["10.7.2.0/24"]));
        until("the Node's pods are known", || {
            let rules = rules();
            rules.contains("10.7.2.0/24") && !rules.contains("10.7.1.0/24")
        });
        let mut leaving = node(&["192.0.2.9"], &["10.7.2.0/24"]);
        leaving["spec"]["taints"] = json!([{"key": "ToBeDeletedByClusterAutoscaler"}]);
        apply(leaving);
        namespace.wait(HEALTH, "/healthz", |status, _| status == 503);
        assert_eq!(status("/readyz"), 200, "the pod is not what the Node is");
        assert!(cluster.server.store().delete(Resource::Nodes, "", NODE));
        apply(node(&["192.0.2.9"], &["10.7.3.0/24"]));
        namespace.wait(HEALTH, "/healthz", |status, _| status == 200);
        let (_, log) = program.terminate();
        for said in [
            "\"Node podCIDRs changed\" node=\"node-1\" \
             old=\"[10.7.1.0/24]\" new=\"[10.7.2.0/24]\"",
            "\"Node addresses changed\" node=\"node-1\"",
            "\"Node deleted\" node=\"node-1\"",
        ] {
            assert!(log.contains(said), "{said} is not in\n{log}");
        }
    });
}

#[test]
fn what_does_not_fit_the_node_is_said() {
    run(|namespace| async move {
        let cluster = cluster(node(&["192.0.2.1"], &["fd01::/64"])).await;
        let log = failed(&cluster, &namespace, &["--detect-local-mode=NodeCIDR"]);
        let error = "err=\"kube-proxy configuration is incorrect: \
                     the node's primary family is IPv4, but spec.podCIDRs of the Node is IPv6\"";
        for message in ["Error running ProxyServer", "command failed"] {
            assert!(log.contains(&format!("\"{message}\" {error}")), "{message}: {log}");
        }

        // In another mode it is only a doubt.
        let arguments = ["--nodeport-addresses=0.0.0.0/0", "--version=v1.37.0-here"];
        let program = cluster.run_program(&namespace, &arguments);
        namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
        let agent = cluster.server.user_agent().unwrap();
        assert!(agent.ends_with(" kubernetes/v1.37.0-here"), "{agent}");
        namespace
            .wait(METRICS, "/metrics", |_, text| text.contains("git_version=\"v1.37.0-here\""));
        // Rules that ask nothing of the Node do not wait for the Nodes.
        let doubt = "\"Kube-proxy configuration may be incomplete or incorrect\" err=\"the node's";
        program.wait_for_line(|line| line.starts_with('E') && line.contains(doubt));
        program.terminate();

        let ipv6_off = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
        if fs::exists(ipv6_off).unwrap_or(false) {
            namespace.0.output("sh", &["-c", &format!("echo 1 > {ipv6_off}")], "").unwrap();
            cluster.server.store().apply(node(&["fd00::1", "192.0.2.1"], &[]));
            let log = failed(&cluster, &namespace, &[]);
            assert!(log.contains("no support for primary IP family \\\"IPv6\\\""), "{log}");
        }
    });
}

#[test]
fn requests_are_paced() {
    run(|namespace| async move {
        let cluster = cluster(node(&["192.0.2.1"], &[])).await;
        let program =
            cluster.run_program(&namespace, &["--kube-api-qps=0.001", "--kube-api-burst=3"]);
        // Four watches and the Event of the start want to be asked for at once.
        until("three requests", || cluster.server.requests().len() == 3);
        // Its other servers do not wait for it.
        namespace.wait(METRICS, "/healthz", |status, _| status == 200);
        let (_, log) = program.terminate();
        assert_eq!(cluster.server.requests().len(), 3, "{:?}", cluster.server.requests());
        let waits = log.lines().filter(|line| line.contains("\"Request throttled"));
        assert_eq!(waits.count(), 2, "{log}");

        let program = cluster.run_program(&namespace, &["--kube-api-qps=-1", "--kube-api-burst=1"]);
        namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
        let (_, log) = program.terminate();
        assert!(!log.contains("Request throttled"), "{log}");
    });
}
