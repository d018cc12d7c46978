//! What was synced last, so that it can be told what went and what came.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use proxy_core::{
    model::ServicePortId,
    state::{Delta, Pool, ResolvedServicePort, State},
};

use crate::{
    Group,
    job::Listener,
    queue::{Queue, Waiting},
};

/// The UDP and SCTP ports that were synced last, shared with the state they came from.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    ports: HashMap<ServicePortId, Arc<ResolvedServicePort>>,
    has_synced: bool,
}

impl Ledger {
    pub(crate) fn synced(&mut self, state: &State, delta: &Delta, queue: &Queue) {
        let is_first = !self.has_synced;
        self.has_synced = true;
        let is_ours = |id: &&ServicePortId| Group::of(id).is_some();
        let changed: Vec<&ServicePortId> = match is_first {
            true => state.service_ports.keys().filter(is_ours).collect(),
            false => delta.service_ports.iter().filter(is_ours).collect(),
        };
        if changed.is_empty() && !is_first && !delta.node {
            return;
        }
        let mut waiting = queue.lock();
        if is_first || delta.node {
            waiting.node_ports.clone_from(&state.node.node_ports);
        }
        // First all that went, so that what came to another Service port in its place counts.
        for id in &changed {
            if let Some(old) = self.ports.get(*id) {
                lose(old, state.service_ports.get(*id), &mut waiting);
            }
        }
        for id in changed {
            match state.service_ports.get(id) {
                Some(new) => {
                    let old = self.ports.insert(id.clone(), Arc::clone(new));
                    have(new, old.as_deref(), &mut waiting);
                }
                None => {
                    self.ports.remove(id);
                }
            }
        }
        drop(waiting);
        queue.wake();
    }
}

fn has_listener(port: &ResolvedServicePort, at: Listener) -> bool {
    port.frontends.iter().any(|frontend| Listener::of(frontend) == at)
}

fn lose(
    old: &Arc<ResolvedServicePort>,
    new: Option<&Arc<ResolvedServicePort>>,
    waiting: &mut Waiting,
) {
    let Some(group) = Group::of(&old.id) else { return };
    for at in old.frontends.iter().map(Listener::of) {
        if !new.is_some_and(|new| has_listener(new, at)) {
            waiting.lane(group).lost(at, old);
        }
    }
}

fn have(new: &Arc<ResolvedServicePort>, old: Option<&ResolvedServicePort>, waiting: &mut Waiting) {
    let Some(group) = Group::of(&new.id) else { return };
    let all = old.is_none_or(|old| has_lost(old, new) || has_first(old, new));
    for at in new.frontends.iter().map(Listener::of) {
        let needed = all || old.is_none_or(|old| !has_listener(old, at));
        waiting.lane(group).has(at, new, needed);
    }
}

/// Whether an endpoint went.
fn has_lost(old: &ResolvedServicePort, new: &ResolvedServicePort) -> bool {
    let pools =
        [(&old.cluster, &new.cluster), (&old.local, &new.local), (&old.draining, &new.draining)];
    // Most endpoints are where they were. The others may have changed pools.
    pools.iter().any(|(old, kept)| missing(old, kept).any(|address| !new.serves(address)))
}

/// The addresses in `old` that are not in `new`, in one walk over both.
fn missing<'p>(old: &'p Pool, new: &'p Pool) -> impl Iterator<Item = SocketAddr> + use<'p> {
    let mut new = new.iter().map(|endpoint| endpoint.address).peekable();
    old.iter().map(|endpoint| endpoint.address).filter(move |address| {
        while new.next_if(|other| other < address).is_some() {}
        new.peek() != Some(address)
    })
}

/// Whether it has endpoints now, and had none before.
fn has_first(old: &ResolvedServicePort, new: &ResolvedServicePort) -> bool {
    let is_served = |port: &ResolvedServicePort| !port.cluster.is_empty() || !port.local.is_empty();
    !is_served(old) && is_served(new)
}
