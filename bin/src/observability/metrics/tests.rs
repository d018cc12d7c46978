//! The metrics of syncs and changes, as text.

use switchyard_core::{
    model::{PerFamily, Protocol, ServiceName, ServicePortId, ServicePortName},
    objects::ObjectKey,
    proxier::{RefusedParts, SyncReport},
    state::State,
    testing::OwnedTransition,
    track::NoLocalEndpoints,
};

use super::*;

fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("{series} is not in\n{text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn partial(family: IpFamily) -> OwnedTransition {
    let name = ServicePortName {
        service: ServiceName::new("ns", "web"),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    OwnedTransition::to(State::default()).port(ServicePortId { name, family }, None)
}

fn outcome<'a>(
    change: &'a OwnedTransition,
    report: &'a SyncReport,
    trigger_times: &'a [(ServiceName, String)],
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
fn a_sync_is_told_as_kube_proxy_tells_it() {
    let metrics = Metrics::for_tests();
    metrics.changed(Kind::Service);
    metrics.changed(Kind::EndpointSlice);
    metrics.changed(Kind::EndpointSlice);
    metrics.changed(Kind::Node);
    let pending = "kubeproxy_sync_proxy_rules_endpoint_changes_pending";
    assert_eq!(value(&metrics.text(), pending), 0.0, "nothing was asked for yet");
    metrics.sync_requested();
    let text = metrics.text();
    assert_eq!(value(&text, pending), 2.0);
    assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_total"), 2.0);
    assert_eq!(
        value(&text, "kubeproxy_sync_proxy_rules_service_changes_total"),
        2.0,
        "in both families"
    );
    assert!(!text.contains("kubeproxy_sync_proxy_rules_duration_seconds"), "{text}");

    let mut report = SyncReport::default();
    report.bytes = 1000;
    report.messages = 7;
    report.commit = Duration::from_millis(1);
    let trigger =
        [(Timestamp::now() - Duration::from_secs(0)).to_string(), "2001-01-01T00:00:00Z".into()];
    let trigger = trigger.map(|time| (ServiceName::new("ns", "web"), time));
    metrics.synced(&outcome(&partial(IpFamily::V4), &report, &trigger));
    let text = metrics.text();
    assert_eq!(value(&text, pending), 0.0);
    let name = "kubeproxy_sync_proxy_rules_duration_seconds";
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv4\",le=\"0.002\"}}")), 0.0);
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv4\",le=\"0.004\"}}")), 1.0);
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv4\",le=\"16.384\"}}")), 1.0);
    assert_eq!(
        value(
            &text,
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"
        ),
        1.0
    );
    assert!(!text.contains("sync_full_proxy_rules_duration_seconds_count"), "{text}");
    assert!(!text.contains("duration_seconds_count{ip_family=\"IPv6\"}"), "{text}");
    let local = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    assert_eq!(
        value(&text, &format!("{local}{{ip_family=\"IPv4\",traffic_policy=\"external\"}}")),
        3.0
    );
    assert_eq!(
        value(&text, &format!("{local}{{ip_family=\"IPv6\",traffic_policy=\"internal\"}}")),
        0.0
    );
    let since =
        value(&text, "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv6\"}");
    assert!(since > 1.6e9, "{since}");
    assert_eq!(value(&text, "switchyard_transaction_bytes_sum"), 1000.0);
    assert_eq!(value(&text, "switchyard_transaction_messages_sum"), 7.0);
    assert_eq!(value(&text, "switchyard_kernel_commit_duration_seconds_sum"), 0.001);
    assert_eq!(value(&text, "switchyard_change_latency_seconds_sum"), 0.005);
}

#[test]
fn old_trigger_times_do_not_count() {
    let metrics = Metrics::for_tests();
    let change = partial(IpFamily::V6);
    let now = Timestamp::now() + Duration::from_secs(3);
    let start = metrics.process_start().unwrap();
    let before = Timestamp::from_second(start as i64 - 5).unwrap();
    let times = [(now - Duration::from_secs(2)).to_string(), before.to_string(), "x".into()];
    metrics.observe_trigger_times(&change.get(), times.iter().map(String::as_str), now);
    let text = metrics.text();
    let name = "kubeproxy_network_programming_duration_seconds";
    assert_eq!(value(&text, &format!("{name}_count{{ip_family=\"IPv6\"}}")), 1.0);
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv6\",le=\"1\"}}")), 0.0);
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv6\",le=\"3\"}}")), 1.0);
    assert_eq!(value(&text, &format!("{name}_bucket{{ip_family=\"IPv6\",le=\"300\"}}")), 1.0);
}

#[test]
fn failures_and_rejections_are_counted() {
    let metrics = Metrics::for_tests();
    let change = OwnedTransition::to(State::default()).comparing();
    let error = ProxierError::unusable(Mode::NFTABLES, "nothing");
    metrics.sync_failed(&error, &change.get(), 0.1);
    let families = PerFamily { v4: None, v6: Some("why".to_owned()) };
    let parts = RefusedParts { ports: Vec::new(), families };
    metrics.left_out(&ProxierError::backend(Mode::NFTABLES, "no", "why").of_parts(parts));
    metrics.rejected(&Problem {
        object: ObjectKey {
            kind: Kind::EndpointSlice,
            namespace: "ns".into(),
            name: "web-1".into(),
        },
        field: "endpoints[0]".into(),
        message: "no".into(),
        reason: switchyard_core::track::Reason::Invalid,
    });
    let text = metrics.text();
    let failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
    assert_eq!(value(&text, &format!("{failures}{{ip_family=\"IPv4\"}}")), 1.0);
    assert_eq!(value(&text, &format!("{failures}{{ip_family=\"IPv6\"}}")), 2.0);
    assert_eq!(
        value(&text, "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"),
        1.0
    );
    assert_eq!(
        value(
            &text,
            "switchyard_objects_rejected_total{kind=\"EndpointSlice\",reason=\"invalid\"}"
        ),
        1.0
    );
    assert_eq!(value(&text, "switchyard_build_info{version=\"0.1.0\"}"), 1.0);
}

#[test]
fn two_of_them_do_not_collide() {
    let (one, two) = (Metrics::for_tests(), Metrics::for_tests());
    one.changed(Kind::Service);
    assert_eq!(value(&two.text(), "kubeproxy_sync_proxy_rules_service_changes_total"), 0.0);
}

#[test]
fn only_watches_that_were_heard_from_are_told() {
    let metrics = Metrics::for_tests();
    metrics.watches_heard(|kind| (kind == Kind::Node).then_some(Duration::from_millis(1500)));
    let text = metrics.text();
    assert_eq!(value(&text, "switchyard_watch_silence_seconds{kind=\"Node\"}"), 1.5);
    assert!(!text.contains("{kind=\"Service\"}"), "{text}");
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
