//! A node that is configured otherwise while it runs.

use proptest::prelude::*;
use serde_json::json;
use switchyard_core::{
    config::{NodeConfig, NodePortAddressConfig},
    objects::Event,
    state::NodePortAddresses,
    testing::{
        arbitrary_config, arbitrary_events, assert_invariants, assert_least_weights, final_objects,
        proptest_config, resolve_afresh, service,
    },
    track::Tracker,
};

use crate::{
    properties::differences,
    support::{Cluster, fields, frontends},
};

/// An input of a tracker.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there are a few of them")]
enum Step {
    Event(Event),
    Config(NodeConfig),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let configs = proptest::collection::vec((0..30usize, arbitrary_config()), 1..5);
    (arbitrary_events(30), configs).prop_map(|(events, configs)| {
        let mut steps: Vec<Step> = events.into_iter().map(Step::Event).collect();
        for (place, config) in configs {
            steps.insert(place.min(steps.len()), Step::Config(config));
        }
        steps
    })
}

proptest! {
    #![proptest_config(proptest_config(256))]

    #[test]
    fn it_ends_where_a_new_tracker_would(
        first in arbitrary_config(),
        steps in steps(),
        syncs in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let mut tracker = Tracker::new(first.clone());
        let (mut last, mut events) = (first, Vec::new());
        tracker.resolve();
        tracker.mark_synced();
        let mut synced = tracker.state().clone();
        for (step, sync) in steps.into_iter().zip(syncs) {
            match step {
                Step::Event(event) => {
                    events.push(event.clone());
                    tracker.apply(event);
                }
                Step::Config(config) => {
                    last = config.clone();
                    tracker.set_config(config);
                }
            }
            if sync {
                tracker.resolve();
                assert_invariants(tracker.state());
assert_least_weights(tracker.state());
                // The transition has all that differs from the last sync, so that a backend which
                // renders nothing else is up to date.
                let change = tracker.transition();
                let ids = change.ports().map(|port| port.id.clone()).collect();
                prop_assert!(differences(&synced, tracker.state()).is_subset(&ids));
                prop_assert!(synced.node == tracker.state().node || change.node_changed());
                let checks = &tracker.state().health_checks;
                prop_assert!(synced.health_checks == *checks || change.health_checks_changed());
                tracker.mark_synced();
                synced = tracker.state().clone();
            }
        }
        tracker.resolve();
        prop_assert_eq!(tracker.state(), &resolve_afresh(last, final_objects(&events)));
    }

    #[test]
    fn the_same_configuration_changes_nothing(
        config in arbitrary_config(),
        events in arbitrary_events(20),
    ) {
        let mut tracker = Tracker::new(config.clone());
        for event in events {
            tracker.apply(event);
        }
        tracker.resolve();
        tracker.mark_synced();
        tracker.set_config(config);
        prop_assert_eq!(tracker.resolve(), vec![]);
        prop_assert!(tracker.transition().is_empty(), "{:?}", tracker.transition());
    }
}

#[test]
fn only_what_the_configuration_decides_is_synced() {
    let mut cluster = Cluster::with(|_| {});
    let web = service("web", "10.0.0.1").port("http", "TCP", 80);
    let shop = service("shop", "10.0.0.2")
        .port("http", "TCP", 80)
        .set("spec.externalIPs", json!(["192.0.2.1"]));
    cluster.apply(&[web, shop]);
    cluster.take_changes();

    let base = NodeConfig::new(switchyard_core::testing::NODE);
    let set = |cluster: &mut Cluster, config: &NodeConfig| {
        cluster.tracker.set_config(config.clone());
        cluster.events([])
    };
    let only = NodePortAddressConfig::Cidr("192.0.2.0/24".parse().unwrap());
    let mut node_ports = base.clone();
    node_ports.node_port_addresses = vec![only];

    set(&mut cluster, &node_ports);
    assert!(cluster.tracker.transition().node_changed());
    assert_eq!(cluster.take_changes(), [""; 0], "no Service depends on it");
    let served = &cluster.tracker.state().node.node_ports.v4;
    assert!(matches!(served, NodePortAddresses::Only(ips) if ips.is_empty()), "{served:?}");

    // The gate takes a listener away, and gives it back.
    let mut gated = base.clone();
    gated.external_ips = false;

    set(&mut cluster, &gated);
    assert_eq!(frontends(&cluster.port("shop", "http")), ["clusterIP 10.0.0.2:80"]);
    assert_eq!(cluster.take_changes(), ["ns/shop:http (TCP, IPv4)"]);
    set(&mut cluster, &base);
    let both = ["clusterIP 10.0.0.2:80", "externalIP 192.0.2.1:80"];
    assert_eq!(frontends(&cluster.port("shop", "http")), both);
}

#[test]
fn a_gate_decides_conflicts_too() {
    let mut cluster = Cluster::with(|config| config.external_ips = false);
    let claim = |name: &str, ip: &str| {
        service(name, ip)
            .port("http", "TCP", 80)
            .set("spec.externalIPs", json!(["192.0.2.1"]))
            .set("metadata.creationTimestamp", format!("2026-01-01T00:00:0{}Z", name.len()))
    };
    assert_eq!(cluster.apply(&[claim("aa", "10.0.0.1"), claim("b", "10.0.0.2")]), []);
    cluster.tracker.set_config(NodeConfig::new(switchyard_core::testing::NODE));
    let problems = cluster.events([]);
    assert_eq!(fields(&problems), ["Service ns/aa: spec.externalIPs"]);
    assert_eq!(frontends(&cluster.port("aa", "http")), ["clusterIP 10.0.0.1:80"]);
    assert_eq!(frontends(&cluster.port("b", "http")).len(), 2, "the older one has it");
}

#[test]
fn the_name_stays() {
    let mut cluster = Cluster::with(|_| {});
    cluster.tracker.set_config(NodeConfig::new("another"));
    let slice = switchyard_core::testing::slice("web", "1")
        .port("http", "TCP", 8080)
        .endpoint(switchyard_core::testing::endpoint("10.1.0.1", switchyard_core::testing::NODE));
    cluster.apply(&[service("web", "10.0.0.1").port("http", "TCP", 80), slice]);
    assert!(cluster.port("web", "http").cluster[0].is_local);
}
