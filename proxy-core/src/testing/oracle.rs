//! Invariants.

use std::collections::{BTreeMap, HashSet};

use crate::{
    config::NodeConfig,
    model::{IpFamily, LbAlgorithm, PerFamily, Protocol, parse_cidr, parse_ip},
    objects::{Event, Kind, Object, ObjectKey},
    proxier::Capabilities,
    state::{Action, Masquerade, NodePortAddresses, Pool, PoolKind, ResolvedServicePort, State},
    track::Tracker,
};

/// The objects that exist after `events`, in the order of their keys. A Node that was deleted is
/// among them as it last was: the tracker keeps what it knew about the node it runs on.
pub fn final_objects(events: &[Event]) -> Vec<Object> {
    let mut objects: BTreeMap<ObjectKey, Object> = BTreeMap::new();
    for event in events {
        match event {
            Event::Apply(object) => set(&mut objects, object),
            Event::Delete(key) if key.kind == Kind::Node => {}
            Event::Delete(key) => {
                objects.remove(key);
            }
            Event::Replace { kind, objects: listed, malformed } => {
                let stays = |key: &ObjectKey| key.kind == Kind::Node || malformed.contains(key);
                objects.retain(|key, _| key.kind != *kind || stays(key));
                listed.iter().for_each(|object| set(&mut objects, object));
            }
            Event::Listed(_) | Event::Malformed { .. } => {}
        }
    }
    objects.into_values().collect()
}

/// Adds an object, or replaces it. A Node keeps what it stated before behind what it states now:
/// the first address and pod network of each family count.
fn set(objects: &mut BTreeMap<ObjectKey, Object>, object: &Object) {
    let before = objects.insert(object.key(), object.clone());
    if let (Some(Object::Node(before)), Some(Object::Node(node))) =
        (before, objects.get_mut(&object.key()))
    {
        let addresses = before.status.addresses.into_iter();
        node.status.addresses.extend(addresses.filter(|a| parse_ip(&a.address).is_ok()));
        let pod_cidrs = before.spec.pod_cidrs.into_iter();
        node.spec.pod_cidrs.extend(pod_cidrs.filter(|text| parse_cidr(text).is_ok()));
    }
}

/// The state that a new tracker resolves from `objects`, in this order.
pub fn resolve_afresh(config: NodeConfig, objects: Vec<Object>) -> State {
    let mut tracker = Tracker::new(config);
    for object in objects {
        tracker.apply(Event::Apply(object));
    }
    tracker.resolve();
    tracker.state().clone()
}

/// Checks what [`crate::state`] says about every state. Panics if something does not hold.
#[track_caller]
pub fn assert_invariants(state: &State) {
    let mut listeners = HashSet::new();
    for (id, port) in &state.service_ports {
        assert_eq!(*id, port.id);
        assert!(!port.frontends.is_empty(), "{id} has no frontend");
        assert!(is_sorted_set(&port.frontends), "frontends of {id}: {:?}", port.frontends);
        for frontend in &port.frontends {
            assert_ne!(frontend.port, 0, "{id}");
            let at = (frontend.at.ip(), id.family, id.name.protocol, frontend.port);
            assert!(listeners.insert(at), "{at:?} belongs to two, one is {id}");
            assert!(
                frontend.at.ip().is_none_or(|ip| IpFamily::of(&ip) == id.family),
                "{id}: {frontend:?}"
            );
            if let Some(sources) = &frontend.allowed_sources {
                assert!(!sources.is_empty(), "{id}: {frontend:?}");
                assert!(is_without_overlaps(sources, id.family), "{id}: {sources:?}");
                assert!(sources.iter().all(|net| net.prefix_len() > 0), "{id}: {sources:?}");
            }
            assert_action(port, frontend.action, state);
        }
        assert_pool(port, PoolKind::Cluster);
        assert_pool(port, PoolKind::Local);
        assert!(port.local.iter().all(|endpoint| endpoint.is_local), "{id}: {:?}", port.local);
        assert_draining(port);
    }
    for (name, check) in &state.health_checks {
        assert_ne!(check.port, 0, "{name}");
        assert_ne!(check.local_endpoints, PerFamily::default(), "{name} has no family");
    }
    for family in IpFamily::ALL {
        let ranges = state.node.service_cidrs.get(family);
        assert!(is_without_overlaps(ranges, family), "{ranges:?}");
    }
}

/// Checks that weights have no common divisor, which holds as long as no endpoint gets a growing
/// share. Panics otherwise.
#[track_caller]
pub fn assert_least_weights(state: &State) {
    for port in
        state.service_ports.values().filter(|p| p.lb_algorithm != LbAlgorithm::WeightedOverflow)
    {
        for kind in [PoolKind::Cluster, PoolKind::Local] {
            let pool = port.pool(kind);
            let divides_all = |divisor: u32| pool.iter().all(|e| e.weight % divisor == 0);
            let lightest = pool.iter().map(|endpoint| endpoint.weight).min().unwrap_or(1);
            assert!(!(2..=lightest).any(divides_all), "{kind:?} of {}: {pool:?}", port.id);
        }
    }
}

/// Checks that a state asks for nothing but what a backend can program. Panics otherwise.
#[track_caller]
pub fn assert_capabilities(state: &State, capabilities: &Capabilities) {
    for (id, port) in &state.service_ports {
        let (most, size) = (
            capabilities.most_endpoints(port.lb_algorithm),
            port.cluster.len().max(port.local.len()),
        );
        assert!(0 < most && size <= most, "{id}: {size} endpoints by {}", port.lb_algorithm);
        let is_even = port.reachable().all(|endpoint| endpoint.weight == 1);
        assert!(is_even || capabilities.has_weights(), "{id}: {:?}", port.cluster);
        let is_known = id.name.protocol != Protocol::Tcp || capabilities.drains_tcp();
        assert!(is_known || port.draining.is_empty(), "{id}: {:?}", port.draining);
    }
    for addresses in [&state.node.node_ports.v4, &state.node.node_ports.v6] {
        let is_list = matches!(addresses, NodePortAddresses::Only(_));
        let is_programmable = is_list && !addresses.has_loopback();
        assert!(is_programmable || !capabilities.lists_node_ports(), "{addresses:?}");
    }
}

#[track_caller]
fn assert_action(port: &ResolvedServicePort, action: Action, state: &State) {
    let id = &port.id;
    match action {
        Action::Pool { pool, masquerade } => {
            assert!(!port.pool(pool).is_empty(), "{id} routes to the empty pool {pool:?}");
            let knows = |local_pods: &PerFamily<_>| Option::is_some(local_pods.get(id.family));
            assert!(
                masquerade != Masquerade::ExceptLocalPods || knows(&state.node.local_pods),
                "{id} excepts local pods, which are unknown"
            );
        }
        Action::ExternalLocal => {
            assert!(!port.cluster.is_empty(), "{id} is ExternalLocal with an empty cluster pool");
        }
        Action::Reject | Action::Drop => {}
        Action::Delivered { .. } | Action::DeliveredLocal => panic!("{id} is delivered elsewhere"),
    }
}

#[track_caller]
fn assert_pool(port: &ResolvedServicePort, kind: PoolKind) {
    let pool: &Pool = port.pool(kind);
    assert!(is_sorted_set(pool), "{kind:?} of {}: {pool:?}", port.id);
    let addresses: HashSet<_> = pool.iter().map(|endpoint| endpoint.address).collect();
    assert_eq!(addresses.len(), pool.len(), "{kind:?} of {}: {pool:?}", port.id);
    assert!(
        pool.iter().all(|e| IpFamily::of(&e.address.ip()) == port.id.family),
        "{kind:?} of {}: {pool:?}",
        port.id
    );
    assert!(pool.iter().all(|e| e.weight > 0), "{kind:?} of {}: {pool:?}", port.id);
    let is_used = port.frontends.iter().any(|frontend| match frontend.action {
        Action::Pool { pool, .. } => pool == kind,
        Action::ExternalLocal => true,
        _ => false,
    });
    assert!(is_used || pool.is_empty(), "nothing uses {kind:?} of {}: {pool:?}", port.id);
}

#[track_caller]
fn assert_draining(port: &ResolvedServicePort) {
    let (id, draining) = (&port.id, &port.draining);
    assert!(is_sorted_set(draining), "{id}: {draining:?}");
    assert!(draining.iter().all(|endpoint| endpoint.weight == 1), "{id}: {draining:?}");
    let pooled: HashSet<_> = port.reachable().map(|endpoint| endpoint.address).collect();
    assert!(draining.iter().all(|e| !pooled.contains(&e.address)), "{id}: {draining:?}");
    assert!(port.reachable().chain(&**draining).all(|e| port.serves(e.address)), "{id}");
}

/// Whether `items` are sorted, and each is there once.
fn is_sorted_set<T: Ord>(items: &[T]) -> bool {
    items.is_sorted_by(|a, b| a < b)
}

fn is_without_overlaps(nets: &[ipnet::IpNet], family: IpFamily) -> bool {
    nets.is_sorted_by(|a, b| a < b && !a.contains(b) && !b.contains(a))
        && nets.iter().all(|net| IpFamily::of_net(net) == family && *net == net.trunc())
}
