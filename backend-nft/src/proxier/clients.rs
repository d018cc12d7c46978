//! The clients that kube-proxy remembered, which a take-over adds to the maps of this backend.

use std::{collections::HashMap, ops::ControlFlow, sync::Arc, time::Duration};

use switchyard_core::error::ErrorChain;
use switchyard_kernel::nftables::{
    Element, ElementDump, Key, SetDef, SetName, Table, TableDump, Transport, Value,
};

use super::sweeper::Sweep;
use crate::layout::affinity::{RememberedPool, UPSTREAM_PREFIX};

/// The most clients that are taken over in one table. They are read while nothing else is
/// programmed, which takes the square of their number: 0.1 s for these. It is less than the 65,535
/// that kernels take into a map in the transaction that makes the map.
const MOST_TAKEN_OVER: usize = 32_768;

/// Reads the clients in kube-proxy's sets into the dump of a table. Clients that cannot be read are
/// not worth a sync: they get another endpoint.
pub(super) fn read_upstream(transport: &mut dyn Transport, table: &Table, dump: &mut TableDump) {
    let mut left = MOST_TAKEN_OVER;
    let sets = dump.sets.iter_mut().filter(|(name, _)| name.as_str().starts_with(UPSTREAM_PREFIX));
    for (_, set) in sets {
        let Ok(definition) = &set.definition else { continue };
        // A transport that runs a program has read them with the table.
        let is_read = set.elements.is_some();
        let mut clients = set.elements.take().unwrap_or_default();
        clients.truncate(left);
        left -= clients.len();
        if left > 0 && !is_read {
            let scanned = transport.scan_elements(table, definition, &mut |client| {
                clients.push(client);
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if let Err(error) = scanned {
                tracing::warn!(
                    set = definition.name.as_str(),
                    err = %ErrorChain(&error),
                    "Failed to read kube-proxy's affinity entries"
                );
            }
        }
        set.elements = Some(clients);
    }
    if left == 0 {
        tracing::warn!(
            taken = MOST_TAKEN_OVER,
            "Too many affinity entries of kube-proxy; taking over some of them"
        );
    }
}

/// Returns the clients that kube-proxy remembered, as the maps of these pools are to remember them.
pub(super) fn of_upstream(
    pools: &[RememberedPool],
    dump: &TableDump,
) -> Vec<(Arc<SetDef>, Vec<ElementDump>)> {
    // The sets are rare, and their names costly to make.
    if !dump.sets.keys().any(|name| name.as_str().starts_with(UPSTREAM_PREFIX)) {
        return Vec::new();
    }
    let new = pools.iter().filter(|pool| !dump.sets.contains_key(&pool.clients.name));
    new.map(|pool| (pool.clients.clone(), of_pool(pool, dump))).collect()
}

fn of_pool(pool: &RememberedPool, dump: &TableDump) -> Vec<ElementDump> {
    let known = |(name, endpoint): (SetName, Value)| {
        let set = dump.sets.get(&name)?;
        // The definition is kube-proxy's: a set of addresses with a timeout.
        let is_theirs = set.definition.as_ref().is_ok_and(|set| set.key == pool.clients.key);
        let clients = set.elements.as_ref().filter(|_| is_theirs)?;
        Some(clients.iter().map(move |client| {
            let element = Element::value(client.element.key, endpoint);
            (client.element.key, ElementDump { element, expires: client.expires })
        }))
    };
    let clients: HashMap<Key, ElementDump> =
        pool.upstream_sets().filter_map(known).flatten().collect();
    let timeout = pool.clients.timeout.unwrap_or_default();
    // Without those whose time is over.
    let remaining = |mut client: ElementDump| {
        let expires = client.expires.unwrap_or(timeout).min(timeout);
        client.expires = Some(expires);
        (expires >= Duration::from_secs(1)).then_some(client)
    };
    clients.into_values().filter_map(remaining).collect()
}

/// The sweeps of the maps of a pool whose endpoints change.
pub(super) fn sweeps(pool: &RememberedPool, is_due: bool) -> impl Iterator<Item = Sweep> + '_ {
    let endpoints = || pool.values().collect();
    pool.maps().map(move |map| Sweep { map: map.clone(), endpoints: endpoints(), is_due })
}
