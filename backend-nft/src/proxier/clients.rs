//! The clients that Service ports with ClientIP affinity remember. Rules add them to maps, so that they
//! are read from the kernel whenever they must change: clients of endpoints that left a pool are
//! forgotten, and clients are kept where a map takes the place of another.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use switchyard_core::error::Chain;

use crate::{
    layout::affinity::{RememberedPool, UPSTREAM_PREFIX},
    ruleset::{
        Element, ElementData, ElementDump, Key, SetDef, SetName, Table, TableDump, Transaction,
        Transport, TransportError, Value,
    },
};

/// Elements that time out within this time are left alone: the kernel refuses to delete an element that
/// has timed out since it was read, and with it the whole transaction.
const NEARLY_EXPIRED: Duration = Duration::from_secs(2);
/// How often the last look is repeated if elements time out meanwhile.
const LOOKS: usize = 3;

/// The changes of the maps of clients in one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientChanges {
    /// Maps that forget the clients of endpoints.
    pub(crate) forget: Vec<(Arc<SetDef>, HashSet<Value>)>,
    /// Maps that are made anew with another timeout, and keep the clients of endpoints.
    pub(crate) keep: Vec<(Arc<SetDef>, HashSet<Value>)>,
    /// Clients that are forgotten, as they were read.
    pub(crate) delete: Vec<(Arc<SetDef>, Vec<Key>)>,
    /// Clients that are kept, with the time for which they are remembered.
    pub(crate) restore: Vec<(Arc<SetDef>, Vec<ElementDump>)>,
}

impl ClientChanges {
    /// The number of clients that are forgotten.
    pub(crate) fn forgotten(&self) -> usize {
        self.delete.iter().map(|(_, keys)| keys.len()).sum()
    }

    /// The number of clients that are added to maps.
    pub(crate) fn restored(&self) -> usize {
        self.restore.iter().map(|(_, clients)| clients.len()).sum()
    }

    /// Reads the clients of the maps that change, and completes the changes.
    pub(crate) fn read(
        &mut self,
        transport: &mut dyn Transport,
        table: &Table,
    ) -> Result<(), TransportError> {
        for (map, left) in &self.forget {
            let clients = transport.read_elements(table, map)?.unwrap_or_default();
            self.delete.push((map.clone(), clients_of(&clients, left, NEARLY_EXPIRED)));
        }
        for (map, endpoints) in self.keep.drain(..) {
            let clients = transport.read_elements(table, &map)?.unwrap_or_default();
            let kept = clients.into_iter().filter(|client| is_at(client, &endpoints));
            self.restore.push((map.clone(), with_timeout(&map, kept)));
        }
        Ok(())
    }

    /// Compares the map of a pool with a dump. The clients that kube-proxy remembered at the same
    /// endpoints are added.
    pub(crate) fn compare(&mut self, pool: &RememberedPool, dump: &TableDump) {
        let map = &pool.clients;
        let endpoints: HashSet<Value> = pool.values().collect();
        let known = dump.sets.get(&map.name);
        let definition = known.and_then(|known| known.definition.as_ref().ok());
        let is_kept = definition.is_some_and(|definition| definition.same_shape(map));
        let is_replaced = definition.is_some_and(|definition| definition.same_fields(map));
        let clients = known.and_then(|known| known.elements.as_deref()).unwrap_or_default();
        let mut restored: HashMap<Key, ElementDump> = HashMap::new();
        if is_kept {
            let left: HashSet<Value> = clients
                .iter()
                .filter_map(value)
                .filter(|endpoint| !endpoints.contains(endpoint))
                .collect();
            if !left.is_empty() {
                self.delete.push((map.clone(), clients_of(clients, &left, NEARLY_EXPIRED)));
                self.forget.push((map.clone(), left));
            }
        } else if is_replaced {
            let kept = clients.iter().filter(|client| is_at(client, &endpoints));
            restored.extend(kept.cloned().map(|client| (client.element.key, client)));
        }
        let remembered: HashSet<Key> = match is_kept {
            true => clients.iter().map(|client| client.element.key).collect(),
            false => HashSet::new(),
        };
        for (key, client) in upstream_clients(pool, dump) {
            if !remembered.contains(&key) {
                restored.entry(key).or_insert(client);
            }
        }
        if !restored.is_empty() {
            self.restore.push((map.clone(), with_timeout(map, restored.into_values())));
        }
    }
}

/// Forgets the clients that were remembered at endpoints while these left the pool. The first packet of
/// a connection may have drawn such an endpoint just before the commit, and added it just after.
pub(crate) fn look_again(
    transport: &mut dyn Transport,
    table: &Table,
    forget: &[(Arc<SetDef>, HashSet<Value>)],
) -> Result<(), TransportError> {
    for (map, left) in forget {
        let mut looks = 0;
        loop {
            let clients = transport.read_elements(table, map)?.unwrap_or_default();
            let keys = clients_of(&clients, left, Duration::ZERO);
            let mut transaction = Transaction::new();
            transaction.delete_elements(table, map, keys);
            if transaction.is_empty() {
                break;
            }
            looks += 1;
            match transport.commit(&transaction) {
                Ok(_) => break,
                Err(error) if error.is_missing() && looks < LOOKS => {
                    tracing::debug!(err = %Chain(&error), "Clients timed out meanwhile");
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The clients that kube-proxy's sets remember at the endpoints of a pool.
fn upstream_clients(pool: &RememberedPool, dump: &TableDump) -> Vec<(Key, ElementDump)> {
    // The sets are rare, and their names costly to make.
    if !dump.sets.keys().any(|name| name.as_str().starts_with(UPSTREAM_PREFIX)) {
        return Vec::new();
    }
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
    pool.upstream_sets().filter_map(known).flatten().collect()
}

/// The clients with the time that remains of their map's timeout; without those whose time is over.
fn with_timeout(map: &SetDef, clients: impl Iterator<Item = ElementDump>) -> Vec<ElementDump> {
    let timeout = map.timeout.unwrap_or_default();
    let remaining = |mut client: ElementDump| {
        let expires = client.expires.unwrap_or(timeout).min(timeout);
        client.expires = Some(expires);
        (expires >= Duration::from_secs(1)).then_some(client)
    };
    clients.filter_map(remaining).collect()
}

/// The keys of the clients that are remembered at `endpoints` for longer than `least`.
fn clients_of(clients: &[ElementDump], endpoints: &HashSet<Value>, least: Duration) -> Vec<Key> {
    let found = clients.iter().filter(|client| {
        is_at(client, endpoints) && client.expires.is_none_or(|expires| expires > least)
    });
    found.map(|client| client.element.key).collect()
}

fn is_at(client: &ElementDump, endpoints: &HashSet<Value>) -> bool {
    value(client).is_some_and(|endpoint| endpoints.contains(&endpoint))
}

fn value(client: &ElementDump) -> Option<Value> {
    match client.element.data {
        ElementData::Value(value) => Some(value),
        ElementData::None | ElementData::Verdict(_) => None,
    }
}
