//! Frontends that may have stale flows after a sync: frontends that were added or removed, and
//! frontends whose endpoints were removed.

use std::{net::SocketAddr, sync::Arc};

use switchyard_core::{
    model::PerFamily,
    state::{Pool, ResolvedServicePort},
    transition::Transition,
};

use crate::conntrack::{
    Group,
    job::Listener,
    queue::{Queue, Waiting},
};

/// Queues the frontends that may have stale flows after a sync. After a first sync, and if the
/// kernel did not hold what was synced before, those are all frontends; if other addresses serve
/// node ports, all node ports. What changes in a family that the sync leaves out is queued when a
/// sync programs the family: until then, packets make the same flows again.
pub(crate) fn queue_frontends(change: &Transition<'_>, queue: &Queue) {
    let (changed, left_out): (Vec<_>, Vec<_>) = change
        .ports()
        .filter(|port| Group::from_port(port.id).is_some())
        .partition(|port| change.programs(port.id.family));
    let mut waiting = queue.lock();
    for port in left_out {
        if let Some(before) = port.before {
            waiting.leave_out(before);
        }
    }
    let taken_back = waiting.take_back(|family| change.programs(family));
    let all = waiting.take_doubt(|family| change.programs(family));
    let none = PerFamily::default();
    let moved = waiting.serve_node_ports(&change.after().node.node_ports, |f| change.programs(f));
    if changed.is_empty() && taken_back.is_empty() && all == none && moved == none {
        return;
    }
    // First all removals, so that a frontend that moved to another Service port counts as added.
    for before in &taken_back {
        queue_removed(before, change.after().service_ports.get(&before.id), &mut waiting);
    }
    for port in &changed {
        if let Some(before) = port.before {
            queue_removed(before, port.after, &mut waiting);
        }
    }
    for port in &changed {
        if let Some(after) = port.after {
            queue_present(after, port.before.map(Arc::as_ref), &mut waiting);
        }
    }
    if all != none || moved != none {
        for port in change.after().service_ports.values() {
            if *all.get(port.id.family) {
                queue_present(port, None, &mut waiting);
            } else if *moved.get(port.id.family) {
                queue_node_ports(port, &mut waiting);
            }
        }
    }
    drop(waiting);
    queue.wake();
}

fn has_listener(port: &ResolvedServicePort, at: Listener) -> bool {
    port.frontends.iter().any(|frontend| Listener::from_frontend(frontend) == at)
}

/// Queues the listeners that `old` had and `new` has not.
fn queue_removed(
    old: &Arc<ResolvedServicePort>,
    new: Option<&Arc<ResolvedServicePort>>,
    waiting: &mut Waiting,
) {
    let Some(group) = Group::from_port(&old.id) else { return };
    for at in old.frontends.iter().map(Listener::from_frontend) {
        if !new.is_some_and(|new| has_listener(new, at)) {
            waiting.lane(group).lost(at, old);
        }
    }
}

/// Queues the listeners of `new` that are new, or all if an endpoint was removed.
fn queue_present(
    new: &Arc<ResolvedServicePort>,
    old: Option<&ResolvedServicePort>,
    waiting: &mut Waiting,
) {
    let Some(group) = Group::from_port(&new.id) else { return };
    let all = old.is_none_or(|old| has_removed_endpoint(old, new) || has_first_endpoint(old, new));
    for at in new.frontends.iter().map(Listener::from_frontend) {
        let needed = all || old.is_none_or(|old| !has_listener(old, at));
        waiting.lane(group).has(at, new, needed);
    }
}

/// Queues the node ports of `port`.
fn queue_node_ports(port: &Arc<ResolvedServicePort>, waiting: &mut Waiting) {
    let Some(group) = Group::from_port(&port.id) else { return };
    let listeners = port.frontends.iter().map(Listener::from_frontend);
    for at in listeners.filter(|at| at.ip.is_none()) {
        waiting.lane(group).has(at, port, true);
    }
}

fn has_removed_endpoint(old: &ResolvedServicePort, new: &ResolvedServicePort) -> bool {
    let pools =
        [(&old.cluster, &new.cluster), (&old.local, &new.local), (&old.draining, &new.draining)];
    // Most endpoints are in the same pool. The others may have changed pools.
    pools.iter().any(|(old, kept)| missing(old, kept).any(|address| !new.serves(address)))
}

/// Returns the addresses in `old` that are not in `new`, in one walk over both.
fn missing<'p>(old: &'p Pool, new: &'p Pool) -> impl Iterator<Item = SocketAddr> + use<'p> {
    let mut new = new.iter().map(|endpoint| endpoint.address).peekable();
    old.iter().map(|endpoint| endpoint.address).filter(move |address| {
        while new.next_if(|other| other < address).is_some() {}
        new.peek() != Some(address)
    })
}

/// Whether the Service port has endpoints for new flows now, and had none before.
fn has_first_endpoint(old: &ResolvedServicePort, new: &ResolvedServicePort) -> bool {
    let takes_new = |port: &ResolvedServicePort| !port.cluster.is_empty() || !port.local.is_empty();
    !takes_new(old) && takes_new(new)
}
