//! Single properties of syncs.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};
use switchyard_core::{
    proxier::SyncReport,
    state::{Action, FrontendAddress},
    testing::{NODE, conformance::cluster, node as node_object, service, web, web_slice},
};
use switchyard_kernel::ipvs::{RealServer, VirtualServer};

use super::{endpoints_of, model::Model, node, selector, start, weights, with_endpoints};
use crate::{
    IpvsConfig,
    proxier::{draining::MOST_LOOKS, settings::seconds},
};

/// The addresses of Service ports that the rules lead to endpoints.
pub(super) fn translated(model: &Model, sync: usize) -> Vec<String> {
    let held = model.lock();
    let frontends = held.rules[sync].values().flat_map(|port| &port.frontends);
    let translated = frontends.filter(|frontend| matches!(frontend.action, Action::Pool { .. }));
    let mut ips: Vec<String> = translated.map(|f| f.at.ip().unwrap().to_string()).collect();
    ips.sort();
    ips
}

#[test]
fn rules_translate_what_is_not_bound_yet() {
    let model = Model::default();
    // An earlier first sync was interrupted.
    model.lock().bound.insert(IpAddr::from([10, 96, 0, 4]));
    node(&model).sync(cluster());
    assert_eq!(translated(&model, 0), ["10.96.0.1", "fd00::4"]);
    assert_eq!(translated(&model, 1), [""; 0]);
    assert_eq!(model.lock().rules.len(), 2);
    // Another process delivers at once.
    let mut node = node(&model);
    node.sync(cluster());
    assert_eq!((translated(&model, 2), model.lock().rules.len()), (vec![], 3));
    // What is new is delivered at once, also when everything is compared.
    node.tracker.request_resync();
    node.sync(with_endpoints("new", "10.96.0.9", &[9]));
    assert_eq!((translated(&model, 3), model.lock().rules.len()), (vec![], 4));
}

#[test]
fn a_parameter_that_cannot_be_set_is_fatal_only_at_the_start() {
    let nowhere = tempfile::tempdir().unwrap().path().to_owned();
    let model = Model::default();
    model.lock().parameters = Some(nowhere.clone());
    let mut fresh = node(&model);
    fresh.apply(web());
    assert!(format!("{:?}", fresh.try_sync().unwrap_err()).contains("conntrack"));
    model.lock().parameters = None;
    let mut config = IpvsConfig::default();
    config.timeouts.tcp = Duration::from_secs(720 * 3600);
    let mut node = model.node(config);
    node.sync(web());
    model.lock().parameters = Some(nowhere);
    model.lock().refuse_timeouts = true;
    node.apply([web_slice(&[2])]);
    let warnings = node.full().warnings;
    for part in ["conntrack to 1", "cannot set the timeouts of IPVS"] {
        assert!(warnings.iter().any(|warning| warning.contains(part)), "{warnings:?}");
    }
    assert_eq!(weights(&model, [10, 96, 0, 1], 80)[1], (2, 1), "the sync goes on");
    assert_eq!(node.full().warnings, [""; 0], "it was reported");
}

/// A Service whose load balancer IP is also that of the API server.
#[test]
fn an_address_of_the_api_server_is_never_bound() {
    let model = Model::default();
    let api = IpAddr::from([192, 0, 2, 1]);
    let config = IpvsConfig::default();
    let known = config.never_bound.clone();
    let mut node = model.node(config);
    let [made, endpoints] = with_endpoints("evil", "10.96.0.9", &[9]);
    node.sync([made, endpoints]);
    let evil = service("evil", "10.96.0.9").port("http", "TCP", 80);
    let evil = evil.set("spec.externalIPs", vec!["192.0.2.1"]).apply();
    let degraded = |report: SyncReport| -> Vec<String> {
        report.degraded.into_iter().map(|port| port.reason).collect()
    };
    assert_eq!(degraded(node.sync([evil])), [""; 0]);
    assert!(model.lock().bound.contains(&api), "whose it is was not known");
    known.lock().insert(api);
    let found = degraded(node.sync([]));
    assert!(
        found.len() == 1 && found[0].contains("192.0.2.1 is an address of the API"),
        "{found:?}"
    );
    assert_eq!(degraded(node.full()), [""; 0], "it was reported");
    let held = model.lock();
    assert!(!held.bound.contains(&api) && held.bound.contains(&IpAddr::from([10, 96, 0, 9])));
    // Virtual servers get what the node itself sends, too, and rules could refuse it.
    assert!(held.server([192, 0, 2, 1], 80).is_none() && held.server([10, 96, 0, 9], 80).is_some());
    let mut frontends = held.rules.last().unwrap().values().flat_map(|port| &port.frontends);
    assert!(frontends.all(|frontend| matches!(frontend.at, FrontendAddress::ClusterIp(_))));
}

/// Two Services at one address and port of the node: the one that has the address by itself wins,
/// whichever comes first and whichever changes.
#[test]
fn an_address_beats_a_node_port() {
    let at_node = [192, 168, 0, 1];
    let by_port = service("port", "10.96.0.8").set("spec.type", "NodePort");
    let by_port = by_port.port("http", "TCP", 80).node_port(30_080).apply();
    let by_address = service("address", "10.96.0.9").port("http", "TCP", 30_080);
    let by_address = by_address.set("spec.externalIPs", vec!["192.168.0.1"]).apply();
    let both = [
        (by_port, endpoints_of("port", &[8], &[])),
        (by_address, endpoints_of("address", &[9], &[])),
    ];
    for order in [[0, 1], [1, 0]] {
        let model = Model::default();
        let ip = IpAddr::from(at_node);
        model.lock().elsewhere.insert(ip);
        let config = IpvsConfig::default();
        let never_bound = config.never_bound.clone();
        let mut node = model.node(config);
        node.sync([node_object(NODE, "192.168.0.1").apply()]);
        node.tracker.set_interface_addresses([ip]);
        for which in order {
            let (service, endpoints) = both[which].clone();
            node.sync([service, endpoints]);
        }
        let takes_new = || {
            let mut found = weights(&model, at_node, 30_080);
            found.retain(|(_, weight)| *weight > 0);
            found
        };
        assert_eq!(takes_new(), [(9, 1)], "{order:?}");
        let listed = model.lock().listed;
        node.sync([endpoints_of("port", &[10, 12], &[]), endpoints_of("address", &[8], &[])]);
        assert_eq!(takes_new(), [(8, 1)], "{order:?}");
        assert_eq!(model.lock().listed, listed, "only what changes is programmed");
        // At an address where only the node port is served, nothing beats it.
        never_bound.lock().insert(ip);
        assert!(node.sync([]).drift.is_none());
        assert_eq!(takes_new(), [(10, 1), (12, 1)], "{order:?}");
        never_bound.lock().clear();
        assert!(node.sync([]).drift.is_none());
        assert_eq!(takes_new(), [(8, 1)], "{order:?}");
        node.sync([service("address", "10.96.0.9").delete()]);
        assert_eq!(takes_new(), [(10, 1), (12, 1)], "{order:?}");
        assert!(node.full().drift.is_none());
    }
}

#[test]
fn less_than_a_second_is_not_none() {
    let of = |millis| seconds(Duration::from_millis(millis));
    assert_eq!([of(0), of(1), of(1000), of(1001)], [0, 1, 1, 2]);
}

/// A connection to an endpoint that a weight leaves out lasts; one to an endpoint that is gone, as
/// long as the limit.
#[test]
fn only_endpoints_that_are_gone_have_a_limit() {
    let left_out = endpoints_of("web", &[1, 2], &[("switchyard/weights", "10.244.0.1=0")]);
    for (change, is_limited) in [(left_out, false), (endpoints_of("web", &[2], &[]), true)] {
        let (_, mut node) = start();
        node.sync(web());
        node.sync([change]);
        let selector = selector([10, 96, 0, 1], 80);
        let address = ([10, 244, 0, 1], 80).into();
        let busy = RealServer { active: 1, ..RealServer::new(address, 0) };
        let later = Instant::now() + Duration::from_secs(25 * 3600);
        let look = node.proxier.draining.look(&selector, &[busy], later);
        assert_eq!(look.over.contains(&address), is_limited);
    }
}

#[test]
fn rules_that_cannot_remember_clients_have_no_affinity() {
    for lacks_affinity in [false, true] {
        let model = Model::default();
        model.lock().lacks_affinity = lacks_affinity;
        let mut node = node(&model);
        let local = service("web", "10.0.0.1").port("http", "TCP", 80).ingress("192.0.2.1");
        let local = local.set("spec.type", "LoadBalancer").set("spec.sessionAffinity", "ClientIP");
        let local = local.set("spec.externalTrafficPolicy", "Local");
        let local = local.set("spec.healthCheckNodePort", 30_000).apply();
        node.sync([local, endpoints_of("web", &[1], &[])]);
        let held = model.lock();
        let mut ports = held.rules.last().unwrap().values();
        assert_eq!(ports.any(|port| port.affinity.is_some()), !lacks_affinity);
        let is_persistent = |server: &VirtualServer| server.flags & VirtualServer::PERSISTENT != 0;
        assert!(held.servers.values().all(|(server, _)| is_persistent(server)));
    }
}

#[test]
fn rules_of_another_kind_are_a_warning() {
    let model = Model::default();
    model.lock().is_of_kube_proxy = true;
    let warnings = node(&model).sync(cluster()).warnings;
    assert!(
        warnings.len() == 1 && warnings[0].contains("in place of those of iptables"),
        "{warnings:?}"
    );
    assert_eq!(node(&model).sync(cluster()).warnings, [""; 0]);
}

/// As after a rollout of many Services.
#[test]
fn draining_holds_up_nobody() {
    let (model, mut node) = start();
    let many = || {
        (1..=MOST_LOOKS + 9).map(|n| (format!("s{n}"), format!("10.97.{}.{}", n / 200, n % 200)))
    };
    node.sync(many().flat_map(|(name, ip)| with_endpoints(&name, &ip, &[2, 4])));
    node.sync(many().map(|(name, _)| endpoints_of(&name, &[2], &[])));
    node.proxier.draining.hasten();
    for (looks, is_over) in [(MOST_LOOKS, false), (9, true)] {
        let listed = model.lock().listed_reals;
        let wait = node.sync([]).requeue_after;
        assert_eq!(model.lock().listed_reals, listed + looks);
        assert_eq!(wait == Some(Duration::ZERO), !is_over, "{wait:?}");
    }
}

/// While everything is compared, changes wait for a part.
#[test]
fn what_is_watched_by_nobody_is_compared_in_parts() {
    let (model, mut node) = start();
    let ip = |n: usize| format!("10.97.{}.{}", n / 200, n % 200);
    node.sync((1..=12).flat_map(|n| with_endpoints(&format!("s{n}"), &ip(n), &[2])));
    node.proxier.checkup.part = 5;
    model.lock().servers.values_mut().for_each(|(_, reals)| {
        reals.values_mut().for_each(|weight| *weight = 7);
    });
    let listed = model.lock().listed;
    node.tracker.request_checkup();
    let (mut looks, mut drift) = (Vec::new(), 0);
    for endpoints in [&[2][..], &[2], &[2, 4], &[2], &[2]] {
        let before = model.lock().listed_reals;
        let report = node.sync([endpoints_of("s1", endpoints, &[])]);
        let is_over = report.requeue_after != Some(Duration::ZERO);
        looks.push((model.lock().listed_reals - before, is_over));
        drift += report.drift.objects;
    }
    assert_eq!(looks, [(0, false), (0, false), (5, false), (5, false), (2, true)]);
    assert_eq!((drift, model.lock().listed), (12, listed));
    let held = model.lock();
    assert!(held.servers.values().all(|(_, reals)| reals.values().all(|weight| *weight < 2)));
}

/// `ipvsadm -C`, and then something changes.
#[test]
fn what_a_change_finds_deleted_is_drift() {
    let (model, mut node) = start();
    node.sync(cluster());
    let others = model.lock().servers.len() - 1;
    model.lock().servers.clear();
    let report = node.sync([web_slice(&[2])]);
    assert_eq!(report.drift.objects, others, "{report:?}");
}
