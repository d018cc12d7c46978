//! A sync of changes alone, which trusts that the kernel holds what was synced.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Instant,
};

use switchyard_core::{
    model::{PerFamily, ServicePortId},
    state::State,
    transition::{Before, PortChange, Transition},
};

use super::{
    changes::{Changes, difference},
    memory::{Memory, PlacedPort},
    ranges,
};
use crate::{
    layout::{
        ChainRules, Context, NftConfig,
        affinity::RememberedPool,
        fixed::{self, FixedSet},
        own::{self, OwnObjects},
        service_port::{Entries, PoolSlots, SlotRun},
        shared::SharedChain,
    },
    ruleset::{ChainName, Element, Family, Key, SetName, Value},
};

/// The plan of a sync, while it is made.
struct Update<'a> {
    config: &'a NftConfig,
    memory: &'a Memory,
    before: Before<'a>,
    after: &'a State,
    changes: PerFamily<Changes>,
    commitment: Commitment,
}

/// What to remember of a sync that succeeds.
#[derive(Default)]
pub(crate) struct Commitment {
    /// The slots of Service ports that were compared; default for Service ports that are gone.
    slots: Vec<(ServicePortId, PoolSlots)>,
    tables: PerFamily<TableUpdate>,
}

#[derive(Default)]
struct TableUpdate {
    /// By how many the Service ports that need a common element have become more (or fewer).
    common: HashMap<(FixedSet, Key), i64>,
    shared_chains: BTreeSet<SharedChain>,
    stale_chains: HashSet<ChainName>,
    /// Chains with rules, which are not stale even if they were.
    used_chains: HashSet<ChainName>,
}

/// Plans the changes from tables that hold `before` to tables that hold `change.after()`.
pub(crate) fn plan(
    config: &NftConfig,
    memory: &Memory,
    before: Before<'_>,
    change: &Transition<'_>,
) -> (PerFamily<Changes>, Commitment) {
    let mut update = Update {
        config,
        memory,
        before,
        after: change.after(),
        changes: PerFamily::default(),
        commitment: Commitment::default(),
    };
    for port in change.ports() {
        update.compare_port(port);
    }
    if change.node_changed() {
        for family in config.families() {
            update.compare_fixed(family);
        }
        // Chains of single Service ports depend on the node's settings.
        let unchanged = before.ports().filter(|port| !change.has_port(&port.id));
        for port in unchanged.filter(|port| own::has_chains(port)) {
            let after = change.after().service_ports.get(&port.id);
            update.compare_port(PortChange { id: &port.id, before: Some(port), after });
        }
    }
    for family in config.families() {
        update.count_common(family);
    }
    (update.changes, update.commitment)
}

impl Commitment {
    /// Updates the memory after the kernel has committed the changes.
    pub(crate) fn remember(self, memory: &mut Memory) {
        for (id, slots) in self.slots {
            memory.set_slots(id, slots);
        }
        for (table, update) in
            [(&mut memory.tables.v4, self.tables.v4), (&mut memory.tables.v6, self.tables.v6)]
        {
            for (key, change) in update.common {
                let count = table.common.entry(key).or_default();
                *count = u32::try_from(i64::from(*count) + change).unwrap_or_default();
                if *count == 0 {
                    table.common.remove(&key);
                }
            }
            table.shared_chains.extend(update.shared_chains);
            let now = Instant::now();
            for chain in update.stale_chains {
                table.stale_chains.entry(chain).or_insert(now);
            }
            for chain in &update.used_chains {
                table.stale_chains.remove(chain);
            }
        }
    }
}

impl<'a> Update<'a> {
    /// Returns the contexts of rules before and after the sync.
    fn contexts(&self, family: Family) -> (Context<'a>, Context<'a>) {
        let context = |node| Context::new(self.config, family, node);
        (context(self.before.node()), context(&self.after.node))
    }

    /// Compares the chains and elements that depend on the node's settings.
    fn compare_fixed(&mut self, family: Family) {
        let (before, after) = self.contexts(family);
        let changes = self.changes.get_mut(family.into());
        let shared = &self.memory.tables.get(family.into()).shared_chains;
        let chains = |context| {
            let shared = shared.iter().map(move |chain| chain.rules(context));
            fixed::chains(context).into_iter().chain(shared)
        };
        for (old, new) in chains(&before).zip(chains(&after)) {
            if old != new {
                changes.rewrite_chain(new);
            }
        }
        compare_elements(changes, fixed::elements(&before), fixed::elements(&after));
    }

    fn compare_port(&mut self, port: PortChange<'a>) {
        let id = port.id;
        if !self.config.families.get(id.family) {
            return;
        }
        let (before, after) = self.contexts(id.family.into());
        let old = port.before.map(|port| self.memory.placed(port));
        let new = port.after.map(|port| {
            PlacedPort::place(port, |kind| {
                old.as_ref().map(|old| old.addresses(kind).collect()).unwrap_or_default()
            })
        });
        let (old, new) = (old.as_ref(), new.as_ref());
        let old_entries = old.map(|old| Entries::new(old.port)).unwrap_or_default();
        let new_entries = new.map(|new| Entries::new(new.port)).unwrap_or_default();
        let changes = self.changes.get_mut(id.family);
        let table = self.commitment.tables.get_mut(id.family);

        let known = &self.memory.tables.get(id.family).shared_chains;
        for chain in &new_entries.chains {
            if !known.contains(chain) && table.shared_chains.insert(*chain) {
                table.used_chains.insert(chain.name());
                changes.new_chain(chain.rules(&after));
            }
        }
        compare_runs(changes, (old, &old_entries.runs), (new, &new_entries.runs));
        compare_elements(changes, old_entries.elements, new_entries.elements);
        for element in old_entries.common {
            *table.common.entry(element).or_default() -= 1;
        }
        for element in new_entries.common {
            *table.common.entry(element).or_default() += 1;
        }
        let old_own = old.map(|old| own::objects(old.port, &before)).unwrap_or_default();
        let new_own = new.map(|new| own::objects(new.port, &after)).unwrap_or_default();
        let replaced = ranges::compare(changes, port).into_iter().collect();
        compare_own(changes, table, old_own, new_own, replaced);
        let slots = new.map(|new| new.clone().into_slots()).unwrap_or_default();
        self.commitment.slots.push((id.clone(), slots));
    }

    /// Elements that several Service ports need are added with the first and deleted with the
    /// last.
    fn count_common(&mut self, family: Family) {
        let family = family.into();
        let counts = &self.memory.tables.get(family).common;
        let changes = self.changes.get_mut(family);
        for (&(set, key), &change) in &self.commitment.tables.get(family).common {
            let before = i64::from(counts.get(&(set, key)).copied().unwrap_or_default());
            match (before > 0, before + change > 0) {
                (false, true) => changes.add_element(set, Element::new(key)),
                (true, false) => changes.delete_element(set, key),
                (false, false) | (true, true) => {}
            }
        }
    }
}

fn compare_elements(
    changes: &mut Changes,
    old: Vec<(FixedSet, Element)>,
    new: Vec<(FixedSet, Element)>,
) {
    let mut left: HashMap<(FixedSet, Key), Element> =
        old.into_iter().map(|(set, element)| ((set, element.key), element)).collect();
    for (set, element) in new {
        match left.remove(&(set, element.key)) {
            Some(same) if same == element => {}
            Some(other) => {
                changes.delete_element(set, other.key);
                changes.add_element(set, element);
            }
            None => changes.add_element(set, element),
        }
    }
    for (set, key) in left.into_keys() {
        changes.delete_element(set, key);
    }
}

/// Compares slot by slot, so that the cost of a large pool is that of its changes.
fn compare_runs(
    changes: &mut Changes,
    (old, old_runs): (Option<&PlacedPort<'_>>, &[SlotRun]),
    (new, new_runs): (Option<&PlacedPort<'_>>, &[SlotRun]),
) {
    let same_place = |a: &SlotRun, b: &SlotRun| a.map == b.map && a.key == b.key;
    for run in new_runs {
        let before = old_runs.iter().find(|old| same_place(old, run));
        let address_before = |slot| old?.address(before?.pool, slot);
        let address_after = |slot| new?.address(run.pool, slot);
        let length = |programmed: Option<&PlacedPort<'_>>, run: Option<&SlotRun>| {
            programmed.zip(run).map_or(0, |(placed, run)| placed.len(run.pool))
        };
        for slot in 0..length(old, before).max(length(new, Some(run))) {
            let (was, is) = (address_before(slot), address_after(slot));
            if was == is {
                continue;
            }
            if was.is_some() {
                changes.delete_element(run.map, run.slot_key(slot));
            }
            if let Some(is) = is {
                changes.add_element(run.map, run.element(slot, is));
            }
        }
    }
    for run in old_runs.iter().filter(|run| !new_runs.iter().any(|new| same_place(run, new))) {
        for slot in 0..old.map_or(0, |old| old.len(run.pool)) {
            changes.delete_element(run.map, run.slot_key(slot));
        }
    }
}

/// Compares the pools that remember clients. Returns the maps that are made anew: every rule that uses
/// such a map must be made anew, too.
fn compare_pools(
    changes: &mut Changes,
    old: Vec<RememberedPool>,
    new: Vec<RememberedPool>,
) -> HashSet<SetName> {
    let mut replaced = HashSet::new();
    let mut old: HashMap<SetName, RememberedPool> =
        old.into_iter().map(|pool| (pool.clients.name.clone(), pool)).collect();
    for pool in new {
        let Some(before) = old.remove(&pool.clients.name) else {
            changes.change_own(&pool.members, Vec::new(), pool.elements().collect());
            changes.add_sets.extend([pool.members, pool.clients]);
            continue;
        };
        let known = before.elements().map(|element| element.key);
        let (gone, come) = difference(known, pool.elements());
        changes.change_own(&pool.members, gone, come);
        let endpoints: HashSet<Value> = pool.values().collect();
        if before.clients.same_shape(&pool.clients) {
            let left: HashSet<Value> =
                before.values().filter(|endpoint| !endpoints.contains(endpoint)).collect();
            if !left.is_empty() {
                changes.clients.forget.push((pool.clients, left));
            }
        } else {
            // The timeout is another. Not every kernel changes that of a map that exists.
            replaced.insert(pool.clients.name.clone());
            changes.delete_sets.push(pool.clients.name.clone());
            changes.add_sets.push(pool.clients.clone());
            changes.clients.keep.push((pool.clients, endpoints));
        }
    }
    let gone = old.into_values().flat_map(|pool| [pool.members, pool.clients]);
    changes.delete_sets.extend(gone.map(|set| set.name.clone()));
    replaced
}

/// Compares the chains and sets of a Service port alone. The chains that use a set in `replaced` must be
/// made anew, too.
fn compare_own(
    changes: &mut Changes,
    table: &mut TableUpdate,
    old: OwnObjects,
    new: OwnObjects,
    mut replaced: HashSet<SetName>,
) {
    replaced.extend(compare_pools(changes, old.pools, new.pools));
    let mut old_chains: HashMap<ChainName, ChainRules> =
        old.chains.into_iter().map(|chain| (chain.name.clone(), chain)).collect();
    for chain in new.chains {
        table.used_chains.insert(chain.name.clone());
        match old_chains.remove(&chain.name) {
            Some(same) if same == chain && !chain.uses(&replaced) => {}
            Some(_) => changes.rewrite_chain(chain),
            // A stale chain of that name may still exist; making the chain again does no harm.
            None => changes.new_chain(chain),
        }
    }
    for name in old_chains.into_keys() {
        changes.flush_chains.push(name.clone());
        table.stale_chains.insert(name);
    }
}
