//! The handling of traffic: every combination of policies, endpoints and local detection.

use serde_json::json;
use switchyard_core::{
    config::LocalPodsConfig,
    state::{Action, FrontendAddress, Masquerade, PoolKind},
    testing::{Builder, endpoint, service, slice},
};

use crate::support::{Cluster, leaving, pool};

/// The endpoints that exist.
#[derive(Clone, Copy, Debug, PartialEq)]
enum There {
    Nothing,
    Elsewhere,
    Here,
    Both,
}

fn endpoints(there: There) -> Builder {
    let mut made = slice("web", "1").port("", "TCP", 8080);
    if matches!(there, There::Here | There::Both) {
        made = made.endpoint(endpoint("10.1.0.1", "node-1"));
    }
    if matches!(there, There::Elsewhere | There::Both) {
        made = made.endpoint(endpoint("10.1.0.2", "node-2"));
    }
    made
}

fn web(external_local: bool, internal_local: bool) -> Builder {
    let policy = |is_local: bool| if is_local { "Local" } else { "Cluster" };
    service("web", "10.0.0.1")
        .set("spec.type", "LoadBalancer")
        .set("spec.externalTrafficPolicy", policy(external_local))
        .set("spec.internalTrafficPolicy", policy(internal_local))
        .port("", "TCP", 80)
}

fn cluster(masquerade_all: bool, has_detector: bool) -> Cluster {
    Cluster::with(|config| {
        config.masquerade_all = masquerade_all;
        if has_detector {
            let nets = vec!["10.1.0.0/16".parse().unwrap()];
            config.local_pods = LocalPodsConfig::ClusterCidr(nets);
        }
    })
}

const LOCAL: &str = "10.1.0.1:8080*";
const REMOTE: &str = "10.1.0.2:8080";
const ALL: &str = "10.1.0.1:8080* 10.1.0.2:8080";

#[test]
fn every_combination() {
    for masquerade_all in [false, true] {
        for has_detector in [false, true] {
            for external_local in [false, true] {
                for internal_local in [false, true] {
                    for there in [There::Nothing, There::Elsewhere, There::Here, There::Both] {
                        let mut cluster = cluster(masquerade_all, has_detector);
                        cluster.apply(&[
                            web(external_local, internal_local)
                                .node_port(30080)
                                .ingress("192.0.2.7")
                                .set("spec.externalIPs", json!(["192.0.2.9"])),
                            endpoints(there),
                        ]);
                        let what = format!(
                            "masqueradeAll {masquerade_all}, detector {has_detector}, \
                             eTP Local {external_local}, iTP Local {internal_local}, {there:?}"
                        );
                        let masquerade = match (masquerade_all, has_detector) {
                            (true, _) => Masquerade::Always,
                            (false, true) => Masquerade::ExceptLocalPods,
                            (false, false) => Masquerade::Never,
                        };
                        let internal = match (internal_local, there) {
                            (_, There::Nothing) => Action::Reject,
                            (true, There::Elsewhere) => Action::Drop,
                            (true, _) => Action::Pool { pool: PoolKind::Local, masquerade },
                            (false, _) => Action::Pool { pool: PoolKind::Cluster, masquerade },
                        };
                        let external = match (external_local, there) {
                            (_, There::Nothing) => Action::Reject,
                            (true, _) => Action::ExternalLocal,
                            (false, _) => Action::Pool {
                                pool: PoolKind::Cluster,
                                masquerade: Masquerade::Always,
                            },
                        };
                        let port = cluster.port("web", "");
                        assert_eq!(port.frontends.len(), 4, "{what}");
                        for frontend in &port.frontends {
                            let wanted = match frontend.at {
                                FrontendAddress::ClusterIp(_) => internal,
                                _ => external,
                            };
                            assert_eq!(frontend.action, wanted, "{what}: {:?}", frontend.at);
                        }
                        let all = match there {
                            There::Nothing => "",
                            There::Elsewhere => REMOTE,
                            There::Here => LOCAL,
                            There::Both => ALL,
                        };
                        let local = match (external_local || internal_local, there) {
                            (true, There::Here | There::Both) => LOCAL,
                            _ => "",
                        };
                        assert_eq!(pool(&port.cluster), all, "{what}");
                        assert_eq!(pool(&port.local), local, "{what}");
                        let counts = cluster.tracker.no_local_endpoints().v4;
                        let lacks = usize::from(there == There::Elsewhere);
                        assert_eq!(counts.internal, lacks * usize::from(internal_local), "{what}");
                        assert_eq!(counts.external, lacks * usize::from(external_local), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn pools_are_made_only_for_traffic_that_uses_them() {
    let only = |service: Builder, there| {
        let mut cluster = Cluster::new();
        cluster.apply(&[service, endpoints(there)]);
        let port = cluster.port("web", "");
        let counts = cluster.tracker.no_local_endpoints().v4;
        (pool(&port.cluster), pool(&port.local), port.frontends[0].action, counts.external)
    };
    let masquerade = Masquerade::ExceptLocalPods;
    let to = |pool| Action::Pool { pool, masquerade };
    // iTP Local, and nothing external.
    assert_eq!(
        only(web(false, true), There::Both),
        (String::new(), LOCAL.into(), to(PoolKind::Local), 0)
    );
    assert_eq!(
        only(web(false, true), There::Elsewhere),
        (String::new(), String::new(), Action::Drop, 0)
    );
    // eTP Local of a Service that nothing external leads to.
    assert_eq!(
        only(web(true, false), There::Both),
        (ALL.into(), String::new(), to(PoolKind::Cluster), 0)
    );
    assert_eq!(only(web(true, false), There::Elsewhere).3, 0);
    // The external addresses are of the other family.
    let v6_only = web(true, false).ingress("2001:db8::7");
    assert_eq!(only(v6_only, There::Both).1, "");
}

#[test]
fn the_external_policy_needs_a_type_that_has_one() {
    let route = |service: Builder| {
        let mut cluster = Cluster::new();
        cluster.apply(&[service, endpoints(There::Elsewhere)]);
        cluster.port("web", "").frontends[1].action
    };
    let everyone = Action::Pool { pool: PoolKind::Cluster, masquerade: Masquerade::Always };
    for (kind, expected) in [
        ("LoadBalancer", Action::ExternalLocal),
        ("NodePort", Action::ExternalLocal),
        // Left over from when it had another type.
        ("ClusterIP", everyone),
        ("", everyone),
    ] {
        let service = web(true, false).node_port(30080).set("spec.type", kind);
        assert_eq!(route(service), expected, "{kind}");
    }
    let external_ip = web(true, false)
        .set("spec.type", "ClusterIP")
        .set("spec.externalIPs", json!(["192.0.2.9"]));
    assert_eq!(route(external_ip), Action::ExternalLocal);
}

#[test]
fn endpoints_that_only_terminate_still_serve_every_policy() {
    let leaving = leaving(endpoint("10.1.0.2", "node-2"));
    let mut cluster = Cluster::new();
    let slice = slice("web", "1").port("", "TCP", 8080).endpoint(leaving);
    cluster.apply(&[web(true, true).node_port(30080), slice]);
    let port = cluster.port("web", "");
    assert_eq!(pool(&port.cluster), REMOTE);
    let routes: Vec<Action> = port.frontends.iter().map(|frontend| frontend.action).collect();
    assert_eq!(routes, [Action::Drop, Action::ExternalLocal]);
    let counts = cluster.tracker.no_local_endpoints();
    assert_eq!((counts.v4.internal, counts.v4.external), (1, 1));
    assert_eq!(counts.v6, Default::default());
    // And the counts go with the Service.
    cluster.delete(&[web(true, true)]);
    assert_eq!(cluster.tracker.no_local_endpoints(), Default::default());
}
