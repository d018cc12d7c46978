//! Whatever happens, in whatever order: the tracker ends where a new one would.

use std::collections::BTreeSet;

use proptest::{prelude::*, sample::Index};
use proxy_core::{
    model::ServicePortId,
    objects::{Event, Kind, Object},
    state::State,
    testing::{
        arbitrary_config, arbitrary_events, assert_invariants, final_objects, resolve_afresh,
    },
    track::Tracker,
};

pub(crate) fn config() -> ProptestConfig {
    // PROPTEST_CASES asks for more.
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

/// The same objects in another order, one that `keys` decides.
fn shuffled(mut objects: Vec<Object>, keys: &[Index]) -> Vec<Object> {
    if keys.is_empty() || objects.is_empty() {
        return objects;
    }
    for i in 0..objects.len() {
        let other = keys[i % keys.len()].index(objects.len());
        objects.swap(i, other);
    }
    objects
}

/// The ports that differ between two states.
pub(crate) fn differences(before: &State, after: &State) -> BTreeSet<ServicePortId> {
    let all = before.service_ports.keys().chain(after.service_ports.keys());
    all.filter(|id| before.service_ports.get(*id) != after.service_ports.get(*id))
        .cloned()
        .collect()
}

/// What each object is problematic about.
fn conflicts(tracker: &mut Tracker) -> BTreeSet<(String, String)> {
    tracker.resolve().into_iter().map(|p| (p.object.to_string(), p.message)).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn incremental_equals_afresh(
        config in arbitrary_config(),
        events in arbitrary_events(40),
        interfaces in proptest::option::of(proptest::collection::vec(
            proptest::sample::select(vec!["192.0.2.9", "10.1.2.3", "127.0.0.1", "fd02::1"]),
            0..4,
        )),
        resolves in proptest::collection::vec(any::<bool>(), 40),
        order in proptest::collection::vec(any::<Index>(), 1..20),
    ) {
        let mut tracker = Tracker::new(config.clone());
        for (event, resolve) in events.iter().zip(&resolves) {
            tracker.apply(event.clone());
            if *resolve {
                tracker.resolve();
                assert_invariants(tracker.state());
            }
        }
        let objects = shuffled(final_objects(&events), &order);
        let mut afresh = Tracker::new(config.clone());
        for object in objects.clone() {
            afresh.apply(Event::Apply(object));
        }
        if let Some(interfaces) = &interfaces {
            let ips = || interfaces.iter().map(|ip| ip.parse().unwrap());
            tracker.set_interface_addresses(ips());
            afresh.set_interface_addresses(ips());
        }
        tracker.resolve();
        afresh.resolve();
        assert_invariants(tracker.state());
        prop_assert_eq!(tracker.state(), afresh.state());
        prop_assert_eq!(tracker.no_local_endpoints(), afresh.no_local_endpoints());
        if interfaces.is_none() {
            prop_assert_eq!(tracker.state(), &resolve_afresh(config, objects));
        }
    }

    #[test]
    fn deltas_cover_every_difference(
        config in arbitrary_config(),
        events in arbitrary_events(40),
        syncs in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let mut tracker = Tracker::new(config);
        tracker.resolve();
        tracker.mark_synced();
        let mut synced = tracker.state().clone();
        for (event, sync) in events.into_iter().zip(syncs) {
            let before = tracker.state().clone();
            tracker.apply(event);
            let delta_before = tracker.delta().service_ports.clone();
            tracker.resolve();
            // What is added to the delta changed now, and nothing else.
            let added: BTreeSet<_> =
                tracker.delta().service_ports.difference(&delta_before).cloned().collect();
            prop_assert!(added.is_subset(&differences(&before, tracker.state())));
            // And all that differs from the last sync is in it.
            prop_assert!(
                differences(&synced, tracker.state()).is_subset(&tracker.delta().service_ports)
            );
            prop_assert!(synced.node == tracker.state().node || tracker.delta().node);
            let checks = &tracker.state().health_checks;
            prop_assert!(synced.health_checks == *checks || tracker.delta().health_checks);
            if sync {
                tracker.mark_synced();
                prop_assert!(tracker.delta().is_empty());
                synced = tracker.state().clone();
            }
        }
    }

    #[test]
    fn saying_it_again_changes_nothing(
        config in arbitrary_config(),
        mut events in arbitrary_events(30),
    ) {
        // Objects that become readable again, and a Node that comes back, may have known problems
        // said again.
        events.retain(|event| match event {
            Event::Apply(_) => true,
            Event::Delete(key) => key.kind != Kind::Node,
            Event::Replace { kind, .. } => *kind != Kind::Node,
            Event::Malformed { .. } => false,
        });
        let mut tracker = Tracker::new(config);
        for event in &events {
            tracker.apply(event.clone());
        }
        tracker.resolve();
        tracker.mark_synced();
        for object in final_objects(&events) {
            prop_assert_eq!(tracker.apply(Event::Apply(object.clone())), vec![], "{:?}", object);
        }
        prop_assert_eq!(tracker.resolve(), vec![]);
        prop_assert!(tracker.delta().is_empty(), "{:?}", tracker.delta());
    }

    #[test]
    fn conflicts_do_not_depend_on_the_order(
        config in arbitrary_config(),
        events in arbitrary_events(30),
        order in proptest::collection::vec(any::<Index>(), 1..20),
    ) {
        let objects = final_objects(&events);
        let mut one = Tracker::new(config.clone());
        for object in objects.clone() {
            one.apply(Event::Apply(object));
        }
        let mut other = Tracker::new(config);
        // All that was ever said about a listener; only what holds at the end must be the same.
        let mut said = BTreeSet::new();
        for object in shuffled(objects, &order) {
            other.apply(Event::Apply(object));
            said.extend(conflicts(&mut other));
        }
        let one = conflicts(&mut one);
        prop_assert!(one.is_subset(&said), "{one:?} is not within {said:?}");
    }
}
