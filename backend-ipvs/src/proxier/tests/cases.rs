//! Single properties of syncs.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use switchyard_core::{
    objects::Event,
    proxier::SyncReport,
    state::{Action, FrontendAddress},
    testing::{
        NODE, Stepped, conformance::cluster, endpoint, node as node_object, service, slice, web,
        web_slice,
    },
};
use switchyard_netlink::ipvs::{RealServer, Selector, VirtualServer};

use super::model::Model;
use crate::{
    IpvsConfig, Scheduler,
    proxier::{IpvsProxier, draining::MOST_LOOKS, schedulers, settings::seconds},
};

fn node(model: &Model) -> Stepped<IpvsProxier> {
    model.node(IpvsConfig::default())
}

fn selector(ip: [u8; 4], port: u16) -> Selector {
    Selector::Address { protocol: 6, ip: ip.into(), port }
}

/// A Service with a TCP port 80 and endpoints of these last numbers.
fn with_endpoints(name: &str, ip: &str, endpoints: &[u8]) -> [Event; 2] {
    let service = service(name, ip).port("http", "TCP", 80);
    [service.apply(), endpoints_of(name, endpoints, &[])]
}

fn endpoints_of(name: &str, endpoints: &[u8], annotations: &[(&str, &str)]) -> Event {
    let mut slice = slice(name, "a").port("http", "TCP", 80);
    for last in endpoints {
        slice = slice.endpoint(endpoint(&format!("10.244.0.{last}"), NODE));
    }
    for (name, value) in annotations {
        slice = slice.annotation(name, *value);
    }
    slice.apply()
}

/// The weights of a virtual server, by the last numbers of the addresses of real servers; 0 for
/// those that drain.
fn weights(model: &Model, ip: [u8; 4], port: u16) -> Vec<(u8, u32)> {
    let held = model.lock();
    let (_, reals) = held.server(ip, port).expect("a virtual server");
    let last = |ip: IpAddr| ip.to_string().rsplit('.').next().unwrap().parse().unwrap();
    reals.iter().map(|(address, weight)| (last(address.ip()), *weight)).collect()
}

fn scheduler(model: &Model, ip: [u8; 4]) -> String {
    model.lock().server(ip, 80).expect("a virtual server").0.scheduler.clone()
}

#[test]
fn rules_that_are_refused_cost_only_what_needs_them() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(cluster());
    let new = with_endpoints("new", "10.96.0.9", &[9]);
    model.lock().refuse_rules = Some(None);
    node.apply(new.into_iter().chain([web_slice(&[2, 4])]));
    node.try_sync().unwrap_err();
    // Endpoints come and go. What is new has neither a virtual server nor an address yet.
    assert_eq!(weights(&model, [10, 96, 0, 1], 80), [(1, 0), (2, 1), (3, 0), (4, 1)]);
    let ip = IpAddr::from([10, 96, 0, 9]);
    let has_new = || model.lock().server([10, 96, 0, 9], 80).is_some();
    assert!(!has_new() && !model.lock().bound.contains(&ip));
    // What is gone is gone, and nothing is bound by a process that has seen no rules accepted.
    node.apply([service("idle", "10.96.0.5").delete()]);
    model.lock().bound.remove(&IpAddr::from([10, 96, 0, 4]));
    node.proxier = model.open(IpvsConfig::default());
    node.tracker.forget_synced();
    node.try_sync().unwrap_err();
    let bound: Vec<String> = model.lock().bound.iter().map(IpAddr::to_string).collect();
    assert_eq!(bound, ["10.96.0.1", "fd00::4"]);
    model.lock().refuse_rules = None;
    node.sync([]);
    assert!(has_new() && model.lock().bound.contains(&ip));
}

/// The addresses of Service ports that the rules lead to endpoints.
fn translated(model: &Model, sync: usize) -> Vec<String> {
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
fn a_scheduler_never_changes_for_weights() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(web());
    for weights in ["10.244.0.1=1,10.244.0.2=10", "10.244.0.1=5", ""] {
        node.sync([endpoints_of("web", &[1, 2, 3], &[("switchyard/weights", weights)])]);
        node.full();
        assert_eq!(scheduler(&model, [10, 96, 0, 1]), "wrr");
    }
    assert_eq!(model.lock().rescheduled, 0);
}

/// kube-proxy's `rr` does the same as `wrr` as long as weights are equal.
#[test]
fn a_scheduler_that_was_taken_over_changes_once_weights_differ() {
    let model = Model::default();
    node(&model).sync(web());
    model.lock().servers.get_mut(&selector([10, 96, 0, 1], 80)).unwrap().0.scheduler = "rr".into();
    let mut node = node(&model);
    for _ in 0..2 {
        assert!(node.sync(web()).drift.is_none());
        assert_eq!(scheduler(&model, [10, 96, 0, 1]), "rr");
    }
    let uneven = [("switchyard/weights", "10.244.0.1=3")];
    node.sync([endpoints_of("web", &[1, 2, 3], &uneven)]);
    assert_eq!(scheduler(&model, [10, 96, 0, 1]), "wrr");
    node.sync(web());
    assert_eq!((scheduler(&model, [10, 96, 0, 1]), model.lock().rescheduled), ("wrr".into(), 1));
}

#[test]
fn schedulers_of_many_change_over_several_syncs() {
    let model = Model::default();
    let count = 2 * schedulers::MOST + 3;
    let events: Vec<Event> = (1..=count)
        .flat_map(|n| with_endpoints(&format!("s{n}"), &format!("10.96.1.{n}"), &[7]))
        .collect();
    let mut first = model.node(IpvsConfig { scheduler: "sh".into(), ..IpvsConfig::default() });
    first.sync(events.clone());
    let mut node = node(&model);
    node.apply(events);
    // Also when everything is compared, and while they change.
    let first = node.try_sync().unwrap();
    assert_eq!(model.lock().rescheduled, schedulers::MOST);
    assert!(first.requeue_after.is_some_and(|after| after < Duration::from_secs(1)), "{first:?}");
    assert!(node.full().drift.is_none());
    assert_eq!(model.lock().rescheduled, schedulers::MOST, "the pause is not over");
    node.proxier.schedulers.hasten();
    assert!(node.full().drift.is_none());
    assert_eq!(model.lock().rescheduled, 2 * schedulers::MOST);
    node.proxier.schedulers.hasten();
    let last = format!("s{count}");
    node.apply([endpoints_of(&last, &[7, 8], &[]), service("s2", "10.96.1.2").delete()]);
    let last = node.try_sync().unwrap();
    assert_eq!((model.lock().rescheduled, last.requeue_after), (count, None));
    let held = model.lock();
    assert!(
        held.servers.values().all(|(server, _)| server.scheduler == "wrr" && server.flags == 0)
    );
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
    let mut node = node(&model);
    node.sync(web());
    model.lock().parameters = Some(nowhere);
    node.apply([web_slice(&[2])]);
    let warnings = node.full().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("conntrack to 1")), "{warnings:?}");
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
        let mut node = node(&model);
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
        node.sync([service("address", "10.96.0.9").delete()]);
        assert_eq!(takes_new(), [(10, 1), (12, 1)], "{order:?}");
        assert!(node.full().drift.is_none());
    }
}

/// `dh` has one real server for all clients of an address, and refuses them while it takes no new
/// connections.
#[test]
fn real_servers_of_dh_do_not_drain() {
    let model = Model::default();
    let mut node = model.node(IpvsConfig { scheduler: "dh".into(), ..IpvsConfig::default() });
    node.sync(web());
    node.sync([web_slice(&[2])]);
    assert_eq!(weights(&model, [10, 96, 0, 1], 80), [(2, 1)]);
    // Nor do those that a comparison finds.
    let real = ([10, 244, 0, 9], 80).into();
    model.lock().servers.get_mut(&selector([10, 96, 0, 1], 80)).unwrap().1.insert(real, 1);
    node.full();
    assert_eq!(weights(&model, [10, 96, 0, 1], 80), [(2, 1)]);
}

#[test]
fn schedulers_are_tried_and_tried_again() {
    let model = Model::default();
    model.lock().missing = [Scheduler::Maglev, Scheduler::WeightedRoundRobin].into();
    let mut node = node(&model);
    let asks = |name: &str, ip: &str| {
        let [_, endpoints] = with_endpoints(name, ip, &[9]);
        let service = service(name, ip).port("http", "TCP", 80);
        [service.annotation("switchyard/lb-algorithm", "maglev").apply(), endpoints]
    };
    node.sync(web());
    assert_eq!(scheduler(&model, [10, 96, 0, 1]), "rr");
    let tried = model.lock().tried;
    assert_eq!(tried, 2, "wrr, and rr instead");
    let report = node.sync(asks("hashed", "10.96.0.9"));
    assert_eq!((report.degraded.len(), model.lock().tried > tried), (1, true), "{report:?}");
    assert!(
        report.degraded[0].reason.contains("ip_vs_mh is missing); connections are spread by `rr`")
    );
    let tried = model.lock().tried;
    let report = node.sync(asks("also", "10.96.0.10"));
    assert_eq!((report.degraded.len(), model.lock().tried), (1, tried), "it is known");
    assert_eq!(node.full().degraded, [], "reported");
    model.lock().missing.clear();
    node.full();
    assert_eq!(model.lock().tried, tried, "an attempt may take long");
    for further in 1..=2 {
        node.proxier.basis.tried.hasten();
        assert!(node.full().drift.is_none());
        assert_eq!(model.lock().tried, tried + further, "one in a sync");
    }
    assert_eq!(scheduler(&model, [10, 96, 0, 9]), "mh");
    assert_eq!(scheduler(&model, [10, 96, 0, 1]), "rr", "which does the same");
    node.full();
    assert_eq!(model.lock().tried, tried + 2);
    node.sync(with_endpoints("new", "10.96.0.11", &[9]));
    assert_eq!(scheduler(&model, [10, 96, 0, 11]), "wrr");
}

/// Persistence and flags change without a scheduler.
#[test]
fn other_properties_change_at_once() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(web());
    let sticky = service("web", "10.96.0.1").port("http", "TCP", 80);
    node.sync([sticky.set("spec.sessionAffinity", "ClientIP").apply()]);
    let flags = model.lock().server([10, 96, 0, 1], 80).unwrap().0.flags;
    assert_eq!((flags, model.lock().rescheduled), (VirtualServer::PERSISTENT, 0));
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
        let model = Model::default();
        let mut node = node(&model);
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

/// It may wait for locks, and for sets that rules of other programs use.
#[test]
fn rules_that_cannot_be_removed_are_not_removed_at_each_sync() {
    let model = Model::default();
    model.lock().refuse_removal = true;
    let mut node = node(&model);
    let report = node.sync(cluster());
    assert!(report.cleanup_failed && report.requeue_after.is_some(), "{report:?}");
    for last in 5..9 {
        assert!(node.sync([web_slice(&[2, last])]).cleanup_failed);
    }
    assert_eq!(model.lock().removals, 1);
    for minutes in [2, 4] {
        node.proxier.removal_due = Some(Instant::now());
        let report = node.sync([]);
        let pause = node.proxier.removal_due.unwrap().saturating_duration_since(Instant::now());
        assert!(pause > Duration::from_secs(60 * (minutes - 1)), "{report:?} {pause:?}");
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

#[test]
fn a_refused_endpoint_costs_itself() {
    let model = Model::default();
    model.lock().bad.insert([10, 244, 0, 2].into());
    let mut node = node(&model);
    let report = node.sync(web());
    let [degraded] = report.degraded.as_slice() else { panic!("{report:?}") };
    assert!(degraded.reason.contains("add the real server 10.244.0.2:80"), "{degraded:?}");
    assert_eq!(weights(&model, [10, 96, 0, 1], 80), [(1, 1), (3, 1)]);
    assert!(model.lock().bound.contains(&IpAddr::from([10, 96, 0, 1])));
    let again = node.full();
    assert!(again.drift.is_none() && again.degraded.is_empty(), "{again:?}");
    let listed = model.lock().listed;
    node.sync([web_slice(&[2, 3])]);
    node.sync([web_slice(&[2, 3, 4])]);
    assert_eq!(model.lock().listed, listed, "only what changes is programmed");
    assert_eq!(weights(&model, [10, 96, 0, 1], 80), [(1, 0), (3, 1), (4, 1)]);
    // Without any endpoint, nothing answers at the address.
    model.lock().bad.extend([[10, 244, 0, 5], [10, 244, 0, 6]].map(IpAddr::from));
    let report = node.sync(with_endpoints("bad", "10.96.0.9", &[5, 6]));
    assert!(!report.degraded.is_empty());
    assert!(!model.lock().ever_bound.contains(&IpAddr::from([10, 96, 0, 9])));
    model.lock().bad.clear();
    node.full();
    assert_eq!(weights(&model, [10, 96, 0, 1], 80), [(1, 0), (2, 1), (3, 1), (4, 1)]);
    assert_eq!(weights(&model, [10, 96, 0, 9], 80), [(5, 1), (6, 1)]);
}

/// Whoever may write EndpointSlices could have everything compared all the time.
#[test]
fn an_endpoint_that_is_refused_in_a_change_costs_itself() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(web());
    model.lock().bad.insert([10, 244, 0, 7].into());
    let listed = model.lock().listed;
    let report = node.sync([web_slice(&[1, 2, 3, 7, 8])]);
    assert_eq!(model.lock().listed, listed, "only what changes is programmed");
    assert_eq!(report.degraded.len(), 1, "{report:?}");
    let all = [(1, 1), (2, 1), (3, 1), (8, 1)];
    assert_eq!(weights(&model, [10, 96, 0, 1], 80), all);
    // It comes and goes, and others that are refused come as well.
    model.lock().bad.insert([10, 244, 0, 9].into());
    for numbers in
        [&[1, 2, 3, 8][..], &[1, 2, 3, 7, 8], &[1, 2, 3, 7, 8, 9], &[1, 2, 3, 8], &[1, 2, 3, 9, 8]]
    {
        node.sync([web_slice(numbers)]);
        assert_eq!(model.lock().listed, listed, "{numbers:?}: only what changes is programmed");
        assert_eq!(weights(&model, [10, 96, 0, 1], 80), all);
    }
    // As with a Service that comes and goes.
    for _ in 0..2 {
        node.sync(with_endpoints("bad", "10.96.0.9", &[2, 7]));
        node.sync([service("bad", "10.96.0.9").delete()]);
        assert_eq!(model.lock().listed, listed, "only what changes is programmed");
    }
    // Nothing is left: the Service port is refused as a whole.
    let report = node.sync([web_slice(&[7, 9])]);
    assert!(model.lock().listed > listed, "{report:?}");
    node.sync([web_slice(&[1, 2, 3, 7, 8])]);
    let again = node.full();
    assert!(again.drift.is_none() && again.degraded.is_empty(), "{again:?}");
    model.lock().bad.clear();
    node.full();
    assert_eq!(weights(&model, [10, 96, 0, 1], 80).len(), all.len() + 1);
}

/// As after a rollout of many Services.
#[test]
fn draining_holds_up_nobody() {
    let model = Model::default();
    let mut node = node(&model);
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
    let model = Model::default();
    let mut node = node(&model);
    let ip = |n: usize| format!("10.97.{}.{}", n / 200, n % 200);
    node.sync((1..=12).flat_map(|n| with_endpoints(&format!("s{n}"), &ip(n), &[2])));
    node.proxier.checkup.part = 5;
    model.lock().servers.values_mut().for_each(|(_, reals)| {
        reals.values_mut().for_each(|weight| *weight = 7);
    });
    let listed = model.lock().listed;
    node.tracker.request_checkup();
    let (mut looks, mut drift) = (Vec::new(), 0);
    for endpoints in [&[2][..], &[2, 4], &[2], &[2]] {
        let before = model.lock().listed_reals;
        let report = node.sync([endpoints_of("s1", endpoints, &[])]);
        let is_over = report.requeue_after != Some(Duration::ZERO);
        looks.push((model.lock().listed_reals - before, is_over));
        drift += report.drift.objects;
    }
    assert_eq!(looks, [(0, false), (5, false), (5, false), (2, true)]);
    assert_eq!((drift, model.lock().listed), (12, listed));
    let held = model.lock();
    assert!(held.servers.values().all(|(_, reals)| reals.values().all(|weight| *weight < 2)));
}

/// `ipvsadm -C`, and then something changes.
#[test]
fn what_a_change_finds_deleted_is_drift() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(cluster());
    let others = model.lock().servers.len() - 1;
    model.lock().servers.clear();
    let report = node.sync([web_slice(&[2])]);
    assert_eq!(report.drift.objects, others, "{report:?}");
}

/// Each change would take as long as a comparison.
#[test]
fn what_cannot_be_deleted_is_left_until_the_next_attempt() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(cluster());
    model.lock().refuse_deletion = true;
    node.apply([service("web", "10.96.0.1").delete()]);
    assert!(node.try_sync().unwrap().cleanup_failed);
    let listed = model.lock().listed;
    for last in 5..8 {
        assert!(node.sync(with_endpoints("more", "10.96.0.9", &[last])).cleanup_failed);
    }
    assert_eq!(model.lock().listed, listed);
    let again = node.full();
    assert!(again.cleanup_failed && again.drift.is_none(), "{again:?}");
    model.lock().refuse_deletion = false;
    assert!(!node.full().cleanup_failed);
    assert!(model.lock().server([10, 96, 0, 1], 80).is_none());
}

/// New connections go on to an endpoint that is gone.
#[test]
fn a_refused_drain_is_tried_again_soon() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(web());
    model.lock().refuse_draining = true;
    for wait in [1, 2, 4] {
        node.apply([web_slice(&[2])]);
        node.tracker.request_resync();
        let report = node.try_sync().unwrap();
        let after = report.requeue_after.unwrap();
        assert!(after <= Duration::from_secs(wait), "{after:?}");
    }
    model.lock().refuse_draining = false;
    assert!(!node.full().cleanup_failed);
    assert_eq!(weights(&model, [10, 96, 0, 1], 80), [(1, 0), (2, 1), (3, 0)]);
}

/// `rmmod ip_vs_wrr`, once nothing uses it.
#[test]
fn a_scheduler_that_is_gone_is_replaced() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(web());
    let mut held = model.lock();
    held.servers.clear();
    held.missing.insert(Scheduler::WeightedRoundRobin);
    drop(held);
    assert_eq!(node.full().degraded, []);
    assert_eq!(scheduler(&model, [10, 96, 0, 1]), "rr");
}

/// The same where a virtual server is there and gets the scheduler, which was tried before; and a
/// refusal for another reason is that of the Service.
#[test]
fn a_scheduler_that_cannot_be_changed_to_stops_no_other_service() {
    let model = Model::default();
    let mut node = node(&model);
    let asking = |algorithm: &str| {
        let web = service("web", "10.96.0.1").port("http", "TCP", 80);
        web.annotation("switchyard/lb-algorithm", algorithm).apply()
    };
    let slice = || endpoints_of("web", &[1, 2, 3], &[]);
    for algorithm in ["source-hash", "round-robin"] {
        node.sync([asking(algorithm), slice()]);
        node.proxier.schedulers.hasten();
    }
    let before = scheduler(&model, [10, 96, 0, 1]);
    model.lock().missing.insert(Scheduler::SourceHash);
    let report = node.sync([asking("source-hash")]);
    assert_ne!(scheduler(&model, [10, 96, 0, 1]), "sh", "{report:?}");
    model.lock().missing.clear();
    node.sync([asking("round-robin")]);
    node.proxier.schedulers.hasten();
    assert_eq!(scheduler(&model, [10, 96, 0, 1]), before);
    model.lock().refuse = Some(0);
    let report = node.sync([asking("maglev")]);
    assert_eq!(report.degraded.len(), 1, "the Service is named: {report:?}");
}

/// Nothing would answer there.
#[test]
fn an_address_whose_virtual_server_is_refused_is_not_bound() {
    let model = Model::default();
    let mut node = node(&model);
    node.sync(with_endpoints("other", "10.96.0.9", &[9]));
    model.lock().refuse = Some(0);
    node.tracker.request_resync();
    let report = node.sync(web());
    assert_eq!(report.degraded.len(), 1, "{report:?}");
    assert!(!model.lock().ever_bound.contains(&IpAddr::from([10, 96, 0, 1])));
    node.sync([]);
    assert!(model.lock().bound.contains(&IpAddr::from([10, 96, 0, 1])));
}
