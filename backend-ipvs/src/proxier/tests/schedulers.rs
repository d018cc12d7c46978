//! Schedulers of virtual servers.

use std::time::Duration;
use switchyard_core::{
    objects::Event,
    testing::{service, web, web_slice},
};
use switchyard_kernel::ipvs::VirtualServer;

use super::{
    endpoints_of, model::Model, node, scheduler, selector, start, weights, with_endpoints,
};
use crate::{IpvsConfig, Scheduler, proxier::schedulers};

/// A Service without weights has kube-proxy's scheduler. One that heeds weights spreads connections
/// alike once they are equal again, also for a program that starts then.
#[test]
fn a_scheduler_changes_once_weights_differ() {
    for (plain, weighted) in [("rr", "wrr"), ("lc", "wlc")] {
        let model = Model::default();
        let config = || IpvsConfig { scheduler: plain.into(), ..IpvsConfig::default() };
        let web = || with_endpoints("web", "10.96.0.1", &[1, 2, 3]);
        let mut node = model.node(config());
        node.sync(web());
        assert_eq!(scheduler(&model, [10, 96, 0, 1]), plain);
        for weights in ["10.244.0.1=1,10.244.0.2=10", "10.244.0.1=5", ""] {
            node.sync([endpoints_of("web", &[1, 2, 3], &[("switchyard/weights", weights)])]);
            assert!(node.full().drift.is_none());
            assert_eq!(scheduler(&model, [10, 96, 0, 1]), weighted);
        }
        let mut node = model.node(config());
        for _ in 0..2 {
            assert!(node.sync(web()).drift.is_none());
        }
        let held = scheduler(&model, [10, 96, 0, 1]);
        assert_eq!((held.as_str(), model.lock().rescheduled), (weighted, 1));
        // A virtual server that is added has the plain one.
        node.sync(with_endpoints("new", "10.96.0.11", &[9]));
        assert_eq!(scheduler(&model, [10, 96, 0, 11]), plain);
    }
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
    assert!(held.servers.values().all(|(server, _)| server.scheduler == "rr" && server.flags == 0));
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
    model.lock().missing = [Scheduler::Maglev, Scheduler::RoundRobin].into();
    let mut node = node(&model);
    let asks = |name: &str, ip: &str| {
        let [_, endpoints] = with_endpoints(name, ip, &[9]);
        let service = service(name, ip).port("http", "TCP", 80);
        [service.annotation("switchyard/lb-algorithm", "maglev").apply(), endpoints]
    };
    node.sync(web());
    assert_eq!(scheduler(&model, [10, 96, 0, 1]), "wrr");
    let tried = model.lock().tried;
    assert_eq!(tried, 2, "rr, and wrr instead");
    let report = node.sync(asks("hashed", "10.96.0.9"));
    assert_eq!((report.degraded.len(), model.lock().tried > tried), (1, true), "{report:?}");
    assert!(
        report.degraded[0].reason.contains("ip_vs_mh is missing); connections are spread by `wrr`")
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
    assert_eq!(scheduler(&model, [10, 96, 0, 1]), "wrr", "which does the same");
    node.full();
    assert_eq!(model.lock().tried, tried + 2);
    node.sync(with_endpoints("new", "10.96.0.11", &[9]));
    assert_eq!(scheduler(&model, [10, 96, 0, 11]), "rr");
}

/// Persistence and flags change without a scheduler.
#[test]
fn other_properties_change_at_once() {
    let (model, mut node) = start();
    node.sync(web());
    let sticky = service("web", "10.96.0.1").port("http", "TCP", 80);
    node.sync([sticky.set("spec.sessionAffinity", "ClientIP").apply()]);
    let flags = model.lock().server([10, 96, 0, 1], 80).unwrap().0.flags;
    assert_eq!((flags, model.lock().rescheduled), (VirtualServer::PERSISTENT, 0));
}

/// `rmmod ip_vs_rr`, once nothing uses it.
#[test]
fn a_scheduler_that_is_gone_is_replaced() {
    let (model, mut node) = start();
    node.sync(web());
    let mut held = model.lock();
    held.servers.clear();
    held.missing.insert(Scheduler::RoundRobin);
    drop(held);
    assert_eq!(node.full().degraded, []);
    assert_eq!(scheduler(&model, [10, 96, 0, 1]), "wrr");
}

/// The same where a virtual server is there and gets the scheduler, which was tried before; and a
/// refusal for another reason is that of the Service.
#[test]
fn a_scheduler_that_cannot_be_changed_to_stops_no_other_service() {
    let (model, mut node) = start();
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
