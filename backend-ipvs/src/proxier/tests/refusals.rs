//! Refusals of the kernel, and of the rules beneath.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};
use switchyard_core::{
    model::IpFamily,
    proxier::SyncReport,
    testing::{conformance::cluster, service, web, web_slice},
};

use super::{cases::translated, endpoints_of, model::Model, node, start, weights, with_endpoints};
use crate::IpvsConfig;

#[test]
fn rules_that_are_refused_cost_only_what_needs_them() {
    let (model, mut node) = start();
    node.sync(cluster());
    let new = with_endpoints("new", "10.96.0.9", &[9]);
    model.lock().refuse_rules = Some((0, None));
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

/// Those of before serve, and virtual servers were programmed.
#[test]
fn rules_that_are_refused_at_the_end_are_tried_again() {
    let (model, mut node) = start();
    node.sync(with_endpoints("web", "10.96.0.1", &[1, 2, 3]));
    // In a change, in the comparison that follows, and in another process.
    for (step, endpoints) in [&[2, 4][..], &[4], &[2]].into_iter().enumerate() {
        let leaving = known(&model);
        model.lock().refuse_rules = Some((1, None));
        node.apply([endpoints_of("web", endpoints, &[])]);
        match step {
            0 => {}
            1 => node.tracker.request_resync(),
            _ => {
                node.proxier = model.open(IpvsConfig::default());
                node.tracker.forget_synced();
            }
        }
        let report = node.try_sync().expect("all but the last rules");
        assert!(report.cleanup_failed, "{report:?}");
        assert!(report.requeue_after <= Some(Duration::from_secs(1)), "{report:?}");
        let mut chosen = weights(&model, [10, 96, 0, 1], 80);
        chosen.retain(|(_, weight)| *weight > 0);
        let chosen: Vec<u8> = chosen.into_iter().map(|(last, _)| last).collect();
        assert_eq!(chosen, endpoints);
        assert!(known(&model).is_superset(&leaving), "{step}");
        model.lock().refuse_rules = None;
        node.sync([]);
        assert_eq!(known(&model).into_iter().collect::<Vec<_>>(), endpoints);
        assert!(node.full().drift.is_none());
    }
}

/// The endpoints that rules know, by the last numbers of their addresses.
fn known(model: &Model) -> BTreeSet<u8> {
    let held = model.lock();
    let ports = held.rules.last().unwrap().values();
    let pools = ports.flat_map(|port| [&port.cluster, &port.local, &port.draining]);
    let addresses = pools.flat_map(|pool| pool.iter()).map(|endpoint| endpoint.address.ip());
    addresses.map(|ip| ip.to_string().rsplit('.').next().unwrap().parse().unwrap()).collect()
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
        node.proxier.removal.due = Some(Instant::now());
        let report = node.sync([]);
        let pause = node.proxier.removal.due.unwrap().saturating_duration_since(Instant::now());
        assert!(pause > Duration::from_secs(60 * (minutes - 1)), "{report:?} {pause:?}");
    }
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
    let (model, mut node) = start();
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

/// Each change would take as long as a comparison.
#[test]
fn what_cannot_be_deleted_is_left_until_the_next_attempt() {
    let (model, mut node) = start();
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
    let (model, mut node) = start();
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

/// The monitor would report every address that comes to the node or goes from it.
#[test]
fn a_family_that_is_left_out_is_not_missing_on_the_device() {
    let model = Model::default();
    model.lock().refuse_ipv6 = true;
    // An address that kube-proxy left there.
    model.lock().bound.insert("fd00::99".parse().unwrap());
    let mut node = node(&model);
    node.sync(cluster());
    assert!(!node.tracker.transition().programs(IpFamily::V6));
    assert_eq!(*node.proxier.bound.lock(), model.lock().bound);
    node.sync([service("web", "10.96.0.1").delete()]);
    assert_eq!(*node.proxier.bound.lock(), model.lock().bound);
    model.lock().refuse_ipv6 = false;
    node.sync([]);
    assert!(node.tracker.transition().programs(IpFamily::V6));
    assert_eq!(*node.proxier.bound.lock(), model.lock().bound);
}

/// The kernel makes the routes of IPv6 after it has added the addresses.
#[test]
fn the_rules_translate_until_packets_come_to_the_address() {
    let model = Model::default();
    let late: IpAddr = "fd00::4".parse().unwrap();
    model.lock().unrouted.insert(late);
    let mut node = node(&model);
    let translated = || {
        let last = model.lock().rules.len() - 1;
        translated(&model, last)
    };
    let is_soon = |report: &SyncReport| {
        report.cleanup_failed
            && report.requeue_after.is_some_and(|after| after <= Duration::from_secs(4))
    };
    let report = node.sync(cluster());
    assert!(is_soon(&report), "{report:?}");
    assert_eq!(translated(), ["fd00::4"]);
    // Other syncs do not wait for it.
    node.sync([web_slice(&[2])]);
    for _ in 0..2 {
        let report = node.full();
        assert!(is_soon(&report) && report.drift.is_none(), "{report:?}");
        assert_eq!(translated(), ["fd00::4"]);
    }
    assert_eq!(model.lock().waited, 1);
    model.lock().unrouted.clear();
    assert!(!node.full().cleanup_failed);
    assert_eq!(translated(), [""; 0]);
    // What comes and goes later is waited for as well, and not missed once it is gone.
    model.lock().unrouted.insert("fd00::9".parse().unwrap());
    let new = service("new", "10.96.0.9,fd00::9").port("http", "TCP", 80);
    let report = node.sync([new.apply()]);
    assert!(is_soon(&report) && model.lock().waited == 2, "{report:?}");
    node.sync([new.delete()]);
    assert!(!node.full().cleanup_failed);
}

/// Nothing would answer there.
#[test]
fn an_address_whose_virtual_server_is_refused_is_not_bound() {
    let (model, mut node) = start();
    node.sync(with_endpoints("other", "10.96.0.9", &[9]));
    model.lock().refuse = Some(0);
    node.tracker.request_resync();
    let report = node.sync(web());
    assert_eq!(report.degraded.len(), 1, "{report:?}");
    assert!(!model.lock().ever_bound.contains(&IpAddr::from([10, 96, 0, 1])));
    node.sync([]);
    assert!(model.lock().bound.contains(&IpAddr::from([10, 96, 0, 1])));
}
