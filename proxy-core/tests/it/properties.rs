//! Whatever happens, in whatever order: the tracker ends where a new one would.

use std::collections::BTreeSet;

use proptest::{prelude::*, sample::Index};
use switchyard_core::{
    model::{HashMap, ServicePortId},
    objects::{Event, Kind, Object},
    proxier::{Capabilities, Mode},
    state::State,
    testing::{
        arbitrary_capabilities, arbitrary_config, arbitrary_events, assert_capabilities,
        assert_invariants, assert_least_weights, final_objects, proptest_config, resolve_afresh,
    },
    track::Tracker,
};

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
fn differences(before: &State, after: &State) -> BTreeSet<ServicePortId> {
    let all = before.service_ports.keys().chain(after.service_ports.keys());
    all.filter(|id| before.service_ports.get(*id) != after.service_ports.get(*id))
        .cloned()
        .collect()
}

/// Resolves, and returns the conflicts that are reported, with the objects they are about.
fn conflicts(tracker: &mut Tracker) -> BTreeSet<(String, String)> {
    tracker.resolve().into_iter().map(|p| (p.object.to_string(), p.message)).collect()
}

proptest! {
    #![proptest_config(proptest_config(256))]

    #[test]
    fn incremental_equals_afresh(
        config in arbitrary_config(),
        capabilities in arbitrary_capabilities(),
        knows_abilities_first in any::<bool>(),
        events in arbitrary_events(40),
        interfaces in proptest::option::of(proptest::collection::vec(
            proptest::sample::select(vec!["192.0.2.9", "10.1.2.3", "127.0.0.1", "fd02::1"]),
            0..4,
        )),
        resolves in proptest::collection::vec(any::<bool>(), 40),
        order in proptest::collection::vec(any::<Index>(), 1..20),
    ) {
        let mut tracker = Tracker::new(config.clone());
        if knows_abilities_first {
            tracker.set_capabilities(capabilities, Mode::NFTABLES);
        }
        for (event, resolve) in events.iter().zip(&resolves) {
            tracker.apply(event.clone());
            if *resolve {
                tracker.resolve();
                assert_invariants(tracker.state());
                assert_least_weights(tracker.state());
            }
        }
        let objects = shuffled(final_objects(&events), &order);
        let mut afresh = Tracker::new(config.clone());
        tracker.set_capabilities(capabilities, Mode::NFTABLES);
        afresh.set_capabilities(capabilities, Mode::NFTABLES);
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
        assert_least_weights(tracker.state());
        prop_assert_eq!(tracker.state(), afresh.state());
        prop_assert_eq!(tracker.no_local_endpoints(), afresh.no_local_endpoints());
        prop_assert_eq!(tracker.unsupported(), afresh.unsupported());
        assert_capabilities(tracker.state(), &capabilities);
        tracker.request_resync();
        prop_assert_eq!(tracker.degraded(), afresh.degraded());
        tracker.mark_synced();
        tracker.set_config(config.clone());
        prop_assert_eq!(tracker.resolve(), vec![]);
        prop_assert!(tracker.transition().is_empty(), "the same configuration");
        if interfaces.is_none() {
            afresh.set_capabilities(Capabilities::KUBE_PROXY, Mode::NFTABLES);
            afresh.resolve();
            prop_assert_eq!(afresh.state(), &resolve_afresh(config, objects));
        }
    }

    #[test]
    fn transitions_cover_every_difference(
        config in arbitrary_config(),
        events in arbitrary_events(40),
        configs in proptest::collection::btree_map(0..40usize, arbitrary_config(), 0..5),
        resolves in proptest::collection::vec(prop::bool::weighted(0.8), 40),
        syncs in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let last = configs.range(..events.len()).next_back().map_or(&config, |(_, last)| last);
        let last = resolve_afresh(last.clone(), final_objects(&events));
        let ids = |tracker: &Tracker| -> BTreeSet<ServicePortId> {
            tracker.transition().ports().map(|change| change.id.clone()).collect()
        };
        let mut tracker = Tracker::new(config);
        tracker.resolve();
        prop_assert!(tracker.transition().before().is_none());
        tracker.mark_synced();
        let mut synced = tracker.state().clone();
        for (i, event) in events.into_iter().enumerate() {
            tracker.apply(event);
            if let Some(config) = configs.get(&i) {
                tracker.set_config(config.clone());
            }
            if !resolves[i] {
                continue;
            }
            let (ids_before, known) = (ids(&tracker), tracker.state().clone());
            tracker.resolve();
            assert_invariants(tracker.state());
            assert_least_weights(tracker.state());
            // What is added to the transition changed now, and nothing else.
            let added: BTreeSet<_> = ids(&tracker).difference(&ids_before).cloned().collect();
            prop_assert!(added.is_subset(&differences(&known, tracker.state())));
            // And all that differs from the last sync is in it.
            prop_assert!(differences(&synced, tracker.state()).is_subset(&ids(&tracker)));
            let change = tracker.transition();
            prop_assert!(synced.node == tracker.state().node || change.node_changed());
            let checks = &tracker.state().health_checks;
            prop_assert!(synced.health_checks == *checks || change.health_checks_changed());
            // The transition shows the state that was synced, without a copy of it.
            let before = change.before().unwrap();
            let ports: HashMap<_, _> =
                before.ports().map(|port| (port.id.clone(), port.clone())).collect();
            prop_assert_eq!(&ports, &synced.service_ports);
            prop_assert_eq!(before.node(), &synced.node);
            prop_assert_eq!(before.health_checks(), &synced.health_checks);
            for id in synced.service_ports.keys().chain(tracker.state().service_ports.keys()) {
                prop_assert_eq!(before.port(id), synced.service_ports.get(id));
            }
            for port in change.ports() {
                prop_assert_eq!(port.before, synced.service_ports.get(port.id));
                prop_assert_eq!(port.after, tracker.state().service_ports.get(port.id));
            }
            if syncs[i] {
                tracker.mark_synced();
                prop_assert!(tracker.transition().is_empty());
                synced = tracker.state().clone();
            }
        }
        tracker.resolve();
        prop_assert_eq!(tracker.state(), &last);
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
            _ => false,
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
        prop_assert!(tracker.transition().is_empty(), "{:?}", tracker.transition());
    }

    #[test]
    fn conflicts_do_not_depend_on_the_order(
        config in arbitrary_config(),
        events in arbitrary_events(30),
        order in proptest::collection::vec(any::<Index>(), 1..20),
    ) {
        let objects = shuffled(final_objects(&events), &order);
        let mut growing = Tracker::new(config.clone());
        let mut before = BTreeSet::new();
        for count in 1..=objects.len() {
            growing.apply(Event::Apply(objects[count - 1].clone()));
            let reported = conflicts(&mut growing);
            // A tracker that reads the same objects in another order and resolves once reports all
            // conflicts that there are.
            let mut afresh = Tracker::new(config.clone());
            for object in objects[..count].iter().rev() {
                afresh.apply(Event::Apply(object.clone()));
            }
            let now = conflicts(&mut afresh);
            // What is new is reported when it begins, and nothing else.
            let new: BTreeSet<_> = now.difference(&before).cloned().collect();
            prop_assert_eq!(reported, new, "after {} objects", count);
            before = now;
        }
    }
}
