//! Answers to load balancers about a Service (`healthCheckNodePort`).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use switchyard_core::{
    model::{PerFamily, ServiceName},
    proxier::{DegradedPort, Mode, ProxierError, RefusedParts},
    state::HealthCheck,
    testing::{Builder, NAMESPACE, endpoint, service, slice},
};

use crate::support::{Cluster, fields, in_state, leaving};

fn balanced(ips: &str) -> Builder {
    service("web", ips)
        .port("http", "TCP", 80)
        .port("dns", "UDP", 53)
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", "Local")
        .set("spec.healthCheckNodePort", 31000)
}

fn of_web(suffix: &str, port: &str, protocol: &str, endpoints: &[Value]) -> Builder {
    let slice = slice("web", suffix).port(port, protocol, 8080);
    endpoints.iter().fold(slice, |slice, endpoint| slice.endpoint(endpoint.clone()))
}

/// Port and counts.
fn check(cluster: &Cluster) -> Option<(u16, Option<usize>, Option<usize>)> {
    let checks = &cluster.tracker.state().health_checks;
    let HealthCheck { port, local_endpoints: PerFamily { v4, v6 } } =
        checks.get(&ServiceName::new(NAMESPACE, "web"))?;
    Some((*port, *v4, *v6))
}

#[test]
fn ready_local_endpoints_count_once_over_all_ports() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.apply(&[balanced("10.0.0.1")]), []);
    assert_eq!(check(&cluster), Some((31000, Some(0), None)), "its one family");
    let here = |ip: &str| endpoint(ip, "node-1");
    cluster.apply(&[
        of_web("1", "http", "TCP", &[here("10.1.0.1"), here("10.1.0.2")]),
        of_web("2", "dns", "UDP", &[here("10.1.0.2"), here("10.1.0.3")]),
        // Of no port that the Service has.
        of_web("3", "other", "TCP", &[here("10.1.0.9")]),
    ]);
    assert_eq!(check(&cluster), Some((31000, Some(3), None)));
    cluster.apply(&[of_web(
        "1",
        "http",
        "TCP",
        &[
            leaving(here("10.1.0.1")),
            in_state(here("10.1.0.4"), false, true, false),
            endpoint("10.1.2.1", "node-2"),
        ],
    )]);
    assert_eq!(check(&cluster), Some((31000, Some(2), None)), "those of the other port are left");
    cluster.delete(&[balanced("10.0.0.1")]);
    assert_eq!(check(&cluster), None);
}

#[test]
fn families_count_apart() {
    let mut cluster = Cluster::new();
    let v6 = slice("web", "v6")
        .set("addressType", "IPv6")
        .port("http", "TCP", 8080)
        .endpoint(endpoint("fd01::1", "node-1"))
        .endpoint(endpoint("fd01::2", "node-1"));
    cluster.apply(&[balanced("10.0.0.1,fd00::1"), v6]);
    assert_eq!(check(&cluster), Some((31000, Some(0), Some(2))));
}

#[test]
fn only_load_balancers_with_the_local_policy_ask() {
    let mut cluster = Cluster::new();
    for (field, value) in [
        ("spec.type", "NodePort"),
        ("spec.type", "ClusterIP"),
        ("spec.externalTrafficPolicy", "Cluster"),
    ] {
        assert_eq!(cluster.apply(&[balanced("10.0.0.1").set(field, value)]), []);
        assert_eq!(check(&cluster), None, "{field}: {value}");
    }
    for number in [0, -1, 65536] {
        let mut cluster = Cluster::new();
        let broken = balanced("10.0.0.1").set("spec.healthCheckNodePort", number);
        let problems = cluster.apply(&[broken]);
        assert_eq!(fields(&problems), ["Service ns/web: spec.healthCheckNodePort"], "{number}");
        assert_eq!(check(&cluster), None);
        assert_eq!(cluster.programmed().len(), 2, "the rest is used");
    }
}

#[test]
fn a_count_that_changes_alone_is_news() {
    let mut cluster = Cluster::new();
    let local = of_web("1", "http", "TCP", &[endpoint("10.1.0.1", "node-1")]);
    // Nothing but cluster IPs, and no local pool: what is programmed stays the same.
    let not_ready = of_web("1", "http", "TCP", &[leaving(endpoint("10.1.0.1", "node-1"))]);
    let only_cluster_ip = balanced("10.0.0.1").set(
        "spec.ports",
        json!([
            {"name": "http", "protocol": "TCP", "port": 80},
        ]),
    );
    cluster.apply(&[only_cluster_ip, local.clone()]);
    cluster.take_changes();
    cluster.apply(&[not_ready]);
    let change = cluster.tracker.transition();
    assert_eq!(change.ports().len(), 0, "{change:?}");
    assert!(change.health_checks_changed() && !change.is_empty());
    assert_eq!(check(&cluster), Some((31000, Some(0), None)));
    cluster.take_changes();
    assert!(cluster.tracker.transition().is_empty());
    cluster.apply(&[local]);
    assert!(cluster.tracker.transition().health_checks_changed());
}

#[test]
fn a_node_that_refuses_a_port_has_no_endpoints_of_the_service() {
    let mut cluster = Cluster::new();
    let local = of_web("1", "http", "TCP", &[endpoint("10.1.0.1", "node-1")]);
    cluster.apply(&[balanced("10.0.0.1"), local]);
    assert_eq!(check(&cluster), Some((31000, Some(1), None)));
    cluster.take_changes();
    let port = cluster.tracker.state().service_ports.keys().next().unwrap().clone();
    let refuse = |cluster: &mut Cluster, reason: &str| {
        let ports = vec![DegradedPort { port: port.clone(), reason: reason.into() }];
        let parts = RefusedParts { ports, ..RefusedParts::default() };
        let error = ProxierError::backend(Mode::NFTABLES, "no", "full").of_parts(parts);
        cluster.tracker.withhold(&error, Instant::now()).unwrap()
    };
    let problems = refuse(&mut cluster, "line 7 is refused");
    assert_eq!(problems.len(), 1);
    assert_eq!(check(&cluster), Some((31000, Some(0), None)));
    assert!(cluster.tracker.transition().health_checks_changed());

    cluster.tracker.advance(Instant::now() + Duration::from_secs(1));
    assert_eq!(check(&cluster), Some((31000, Some(1), None)), "it is tried");
    assert_eq!(refuse(&mut cluster, "line 8 is refused"), [], "it is the same problem");
    assert_eq!(check(&cluster), Some((31000, Some(0), None)));
}

/// Its rules are as they were before it was refused.
#[test]
fn a_node_that_refuses_a_family_has_the_endpoints_that_were_programmed() {
    let of_v6 =
        of_web("6", "http", "TCP", &[endpoint("fd01::1", "node-1")]).set("addressType", "IPv6");
    let of_v4 = of_web("1", "http", "TCP", &[endpoint("10.1.0.1", "node-1")]);
    let dual = balanced("10.0.0.1,fd00::1");
    for (before, expected) in
        [(None, 0), (Some([dual.clone()].as_slice()), 0), (Some(&[dual.clone(), of_v6.clone()]), 1)]
    {
        let mut cluster = Cluster::new();
        if let Some(before) = before {
            cluster.apply(before);
            cluster.take_changes();
        }
        cluster.apply(&[dual.clone(), of_v4.clone(), of_v6.clone()]);
        for _ in 0..2 {
            assert_eq!(check(&cluster), Some((31000, Some(1), Some(1))), "it is tried");
            let families = PerFamily { v4: None, v6: Some("no IPv6".into()) };
            let parts = RefusedParts { families, ..RefusedParts::default() };
            let error = ProxierError::backend(Mode::NFTABLES, "no", "IPv6").of_parts(parts);
            cluster.tracker.withhold(&error, Instant::now()).unwrap();
            let left_out = Some((31000, Some(1), Some(expected)));
            assert_eq!(check(&cluster), left_out);
            // A sync of the other family, a change, and another attempt.
            cluster.take_changes();
            cluster.apply(&[of_web("2", "dns", "UDP", &[endpoint("10.1.0.1", "node-1")])]);
            assert_eq!(check(&cluster), left_out);
            cluster.tracker.advance(Instant::now() + Duration::from_secs(100));
        }
    }
}
