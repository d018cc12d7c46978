//! Addresses of Services that are the node's own.

use std::net::TcpListener;

use switchyard_core::testing::{NODE, endpoint, service, slice};
use switchyard_userspace::CaptureMode;
use test_netns::wait::until_ok;

use crate::common::{
    Node, answers, in_namespace, run, servers, settings, start, switch_ipv6, web, web_slice,
};

/// Runs a test on a node that has a Service with an endpoint.
fn with_node(test: fn(Node)) {
    in_namespace(move || {
        let mut node = start(settings(CaptureMode::Addresses));
        servers(&[2]);
        node.sync([web().apply(), web_slice(&[2])]);
        test(node);
    });
}

fn owned() -> String {
    run("ip -brief addr show dev switchyard0")
}

#[test]
fn every_address_of_a_service_leads_to_the_endpoints() {
    with_node(|mut node| {
        for address in ["10.96.0.1:80", "192.0.2.1:30080"] {
            assert_eq!(answers(address, 2), [Some(2); 2], "{address}");
        }
        assert_eq!(answers("10.96.0.1:81", 1), [None]);
        node.sync([web_slice(&[])]);
        assert_eq!(answers("10.96.0.1:80", 1), [None], "no endpoint");
        assert!(owned().contains("10.96.0.1/32"));
        node.sync([web().delete()]);
        assert!(!owned().contains("10.96.0.1"));
    });
}

#[test]
fn an_address_that_is_refused_costs_its_service_port_alone() {
    with_node(|mut node| {
        switch_ipv6("switchyard0", false);
        let dual = service("dual", "10.96.0.4,fd00::4").port("", "TCP", 80);
        let [v4, v6] =
            [("4", "IPv4", "192.0.2.2"), ("6", "IPv6", "fd01::1")].map(|(name, kind, ip)| {
                let made = slice("dual", name).set("addressType", kind).port("", "TCP", 8080);
                made.endpoint(endpoint(ip, NODE)).apply()
            });
        let report = node.sync([dual.apply(), v4, v6, web().delete()]);
        let [skipped] = report.degraded.as_slice() else { panic!("{:?}", report.degraded) };
        assert_eq!(skipped.port.to_string(), "ns/dual (TCP, IPv6)");
        assert!(skipped.reason.contains("fd00::4: "), "{}", skipped.reason);
        assert!(report.requeue_after.is_some());
        assert_eq!(answers("10.96.0.4:80", 1), [Some(2)]);
        assert!(!owned().contains("10.96.0.1/32"), "what is gone is removed");
        switch_ipv6("switchyard0", true);
        assert_eq!(node.sync([]).degraded, []);
        assert!(owned().contains("fd00::4"));
    });
}

#[test]
fn a_refused_address_is_reported_though_sockets_can_be_opened_anywhere() {
    with_node(|mut node| {
        switch_ipv6("switchyard0", false);
        std::fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").expect("the kernel has it");
        let dual = service("dual", "10.96.0.4,fd00::4").port("", "TCP", 80);
        let idle = service("idle", "fd00::5").port("", "TCP", 80);
        let made = slice("dual", "6").set("addressType", "IPv6").port("", "TCP", 8080);
        let report = node.sync([
            dual.apply(),
            idle.apply(),
            made.endpoint(endpoint("fd01::1", NODE)).apply(),
        ]);
        let mut ports: Vec<_> =
            report.degraded.iter().map(|skipped| skipped.port.to_string()).collect();
        ports.sort();
        assert_eq!(ports, ["ns/dual (TCP, IPv6)", "ns/idle (TCP, IPv6)"]);
        assert!(report.requeue_after.is_some());
        assert!(node.sync([]).requeue_after.is_some());
        switch_ipv6("switchyard0", true);
        let report = node.sync([]);
        assert_eq!((report.degraded, report.requeue_after), (vec![], None));
        assert!(owned().contains("fd00::4") && owned().contains("fd00::5"));
        assert!(TcpListener::bind("[fd00::4]:80").is_err(), "the proxy listens there");
    });
}

#[test]
fn an_address_that_another_device_has_is_not_added() {
    with_node(|mut node| {
        run("ip addr add 203.0.113.5/32 dev lo");
        let outside = web().set("spec.externalIPs", serde_json::json!(["203.0.113.5"]));
        node.sync([outside.apply()]);
        assert_eq!(answers("203.0.113.5:80", 1), [Some(2)]);
        assert!(!owned().contains("203.0.113.5"));
        node.sync([web().apply()]);
        assert!(
            run("ip addr show dev lo").contains("203.0.113.5"),
            "another program's address stays"
        );
    });
}

#[test]
fn a_port_in_use_is_reported_and_tried_again() {
    with_node(|mut node| {
        let server = TcpListener::bind("192.0.2.1:30081").unwrap();
        let taken = service("taken", "10.96.0.2").port("", "TCP", 80).node_port(30081);
        let report = node.sync([taken.apply()]);
        assert_eq!(report.degraded.len(), 0, "without endpoints, nothing listens");
        let endpoints = slice("taken", "1").port("", "TCP", 8080);
        let endpoint = endpoint("192.0.2.2", "node-1");
        let report = node.sync([endpoints.endpoint(endpoint).apply()]);
        let [skipped] = report.degraded.as_slice() else { panic!("{:?}", report.degraded) };
        assert!(skipped.reason.contains("192.0.2.1:30081"), "{}", skipped.reason);
        assert!(report.requeue_after.is_some());
        assert_eq!(answers("10.96.0.2:80", 1), [Some(2)], "its other address is served");
        drop(server);
        // A program that another test is about to start may have the socket for a moment longer.
        until_ok(|| {
            let report = node.sync([]);
            match report.degraded.is_empty() && report.requeue_after.is_none() {
                true => Ok(()),
                false => Err(format!("{:?}", report.degraded)),
            }
        });
        assert_eq!(answers("192.0.2.1:30081", 1), [Some(2)]);
    });
}
