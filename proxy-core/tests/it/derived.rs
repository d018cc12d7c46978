//! States that backends derive for backends beneath them.

use std::{sync::Arc, time::Duration};

use switchyard_core::{
    model::ServicePortId,
    state::ResolvedServicePort,
    testing::{NODE, endpoint, service, slice},
    transition::{DerivedState, Transition},
};

use crate::support::{Cluster, id};

/// A port in a transition: the number of endpoints before and after.
fn shown(change: &Transition<'_>) -> Vec<(ServicePortId, Option<usize>, Option<usize>)> {
    let count = |port: Option<&Arc<ResolvedServicePort>>| port.map(|port| port.cluster.len());
    change.ports().map(|port| (port.id.clone(), count(port.before), count(port.after))).collect()
}

#[test]
fn a_derived_state_has_the_changes_since_its_own_last_sync() {
    let mut cluster = Cluster::new();
    let web = service("web", "10.0.0.1").port("", "TCP", 80);
    let slice = slice("web", "1").port("", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
    cluster.apply(&[web.clone(), slice.clone()]);
    let (id, one) = (id("web", ""), cluster.port("web", ""));
    cluster.apply(&[slice.endpoint(endpoint("10.1.0.2", NODE))]);
    let two = cluster.port("web", "");

    let mut derived = DerivedState::default();
    derived.follow_node(&cluster.tracker.transition());
    derived.set_port(&id, Some(Arc::clone(&one)));
    assert!(derived.transition().before().is_none() && derived.transition().is_resync());
    assert_eq!(shown(&derived.transition()), [(id.clone(), None, Some(1))]);
    assert_eq!(derived.state().node, cluster.tracker.state().node);
    derived.mark_synced(None);
    assert!(derived.transition().is_empty());

    derived.set_port(&id, Some(Arc::new((*one).clone())));
    assert!(derived.transition().is_empty(), "an equal value is no change");
    // A sync that fails leaves the value that was synced.
    derived.set_port(&id, Some(two));
    derived.request_resync();
    derived.set_port(&id, None);
    assert_eq!(shown(&derived.transition()), [(id.clone(), Some(1), None)]);
    assert!(derived.transition().is_resync());
    assert_eq!(derived.transition().before().unwrap().port(&id), Some(&one));
    derived.mark_synced(None);

    // What the node's own transition asks for is asked beneath.
    cluster.tracker.mark_synced();
    derived.follow_node(&cluster.tracker.transition());
    assert!(derived.transition().is_empty());
    cluster.tracker.request_resync();
    derived.follow_node(&cluster.tracker.transition());
    assert!(derived.transition().is_resync() && !derived.transition().node_changed());
    derived.mark_synced(None);

    // What the backend beneath asked for is not forgotten while nothing changes.
    assert!(!derived.is_due() && derived.requeue_after().is_none());
    derived.mark_synced(Some(Duration::from_secs(3600)));
    assert!(!derived.is_due() && derived.requeue_after().is_some());
    derived.mark_synced(Some(Duration::MAX));
    assert!(!derived.is_due());
    derived.mark_synced(Some(Duration::ZERO));
    assert!(derived.is_due() && derived.transition().is_empty());
}
