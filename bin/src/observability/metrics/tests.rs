//! The metrics of syncs and changes, as text.

use std::fmt;
use switchyard_core::{
    config::NodeConfig,
    model::{PerFamily, Protocol, ServiceName, ServicePortId, ServicePortName},
    proxier::{DegradedPort, RefusedParts, SyncReport},
    state::State,
    testing::OwnedTransition,
    track::{NoLocalEndpoints, Tracker},
};

use super::*;

fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("{series} is not in\n{text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

pub fn partial(family: IpFamily) -> OwnedTransition {
    let name = ServicePortName {
        service: ServiceName::new("ns", "web"),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    OwnedTransition::to(State::default()).port(ServicePortId { name, family }, None)
}

pub fn outcome<'a>(
    change: &'a OwnedTransition,
    report: &'a SyncReport,
    trigger_times: &'a [TriggerTime],
) -> SyncOutcome<'a> {
    let here = NoLocalEndpoints { internal: 2, external: 3 };
    SyncOutcome {
        change: change.get(),
        report,
        duration: Duration::from_millis(3),
        latency: Some(Duration::from_millis(5)),
        trigger_times,
        no_local_endpoints: PerFamily { v4: here, v6: NoLocalEndpoints::default() },
        degraded_by_backend: &[],
        unsupported: PerFamily { v4: 0, v6: 4 },
        refused: PerFamily { v4: 1, v6: 0 },
        is_part: false,
    }
}

#[test]
fn old_trigger_times_do_not_count() {
    let metrics = Metrics::for_tests();
    let change = partial(IpFamily::V6);
    let now = Timestamp::now() + Duration::from_secs(3);
    let start = metrics.process.start().unwrap();
    let before = Timestamp::from_second(start as i64 - 5).unwrap();
    let recent = (now - Duration::from_secs(2)).to_string();
    let times =
        [(IpFamily::V6, &*recent), (IpFamily::V6, &before.to_string()), (IpFamily::V6, "x")];
    let triggers = times.map(|(family, time)| TriggerTime {
        service: ServiceName::new("ns", "web"),
        family,
        time: time.to_owned(),
    });
    metrics.observe_trigger_times(&change.get(), &triggers, now);
    let text = metrics.text();
    let name = "kubeproxy_network_programming_duration_seconds";
    assert_eq!(value(&text, &format!("{name}_count{{ip_family=\"IPv6\"}}")), 1.0);
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv6\",le=\"1\"}}")), 0.0);
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv6\",le=\"3\"}}")), 1.0);
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv6\",le=\"300\"}}")), 1.0);

    // Nor do those of the other family, in a sync of both.
    let mut tracker = Tracker::new(NodeConfig::new("node-1"));
    tracker.request_resync();
    metrics.observe_trigger_times(&tracker.transition(), &triggers, now);
    let text = metrics.text();
    assert_eq!(value(&text, &format!("{name}_count{{ip_family=\"IPv6\"}}")), 2.0);
    assert!(!text.contains(&format!("{name}_count{{ip_family=\"IPv4\"}}")), "{text}");
}

#[test]
fn what_is_refused_of_a_family_is_a_failure_of_the_family() {
    let metrics = Metrics::for_tests();
    let series = |family| {
        let name = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
        let (text, series) = (metrics.text(), format!("{name}{{ip_family=\"{family}\"}}"));
        text.contains(&series).then(|| value(&text, &series))
    };
    let change = partial(IpFamily::V6);
    let port = change.get().ports().next().unwrap().id.clone();
    let parts = RefusedParts {
        ports: vec![DegradedPort { port, reason: "refused".to_owned() }],
        families: PerFamily::default(),
    };
    metrics.left_out(&ProxierError::backend(Mode::NFTABLES, "x", fmt::Error).of_parts(parts));
    assert_eq!((series("IPv4"), series("IPv6")), (None, Some(1.0)));
}

#[test]
fn a_repair_is_no_full_sync_and_no_partial_one() {
    let metrics = Metrics::for_tests();
    let mut tracker = Tracker::new(NodeConfig::new("node-1"));
    tracker.mark_synced();
    tracker.request_repair();
    metrics.observe_duration(&tracker.transition(), 0.002);
    tracker.request_resync();
    metrics.observe_duration(&tracker.transition(), 0.2);
    let text = metrics.text();
    for (name, count) in
        [("sync_proxy", 2.0), ("sync_full_proxy", 1.0), ("sync_partial_proxy", 0.0)]
    {
        let series = format!("kubeproxy_{name}_rules_duration_seconds_count{{ip_family=\"IPv6\"}}");
        assert_eq!(if text.contains(&series) { value(&text, &series) } else { 0.0 }, count);
    }
}

#[test]
fn leftovers_that_stay_are_counted() {
    let metrics = Metrics::for_tests();
    let change = OwnedTransition::to(State::default());
    let series = "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total";
    for (cleanup_failed, expected) in [(false, None), (true, Some(1.0)), (false, Some(1.0))] {
        let mut report = SyncReport::default();
        report.cleanup_failed = cleanup_failed;
        metrics.synced(&outcome(&change, &report, &[]));
        let text = metrics.text();
        let found =
            text.contains(series).then(|| value(&text, &format!("{series}{{ip_family=\"IPv6\"}}")));
        assert_eq!(found, expected);
    }
}
