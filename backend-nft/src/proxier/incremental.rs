//! A sync of changes alone, which trusts that the kernel holds what was synced.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use switchyard_core::{
    model::{PerFamily, ServicePortId},
    state::{ResolvedServicePort, State},
    transition::{Before, PortChange, Transition},
};
use switchyard_nft_ruleset::{ChainName, Element, Family, Key, SetDef, SetName};

use super::{
    changes::{Changes, difference},
    clients,
    memory::{LastSynced, PlacedPort},
    ranges,
};
use crate::layout::{
    ChainRules, Context, NftConfig,
    affinity::{Earlier, RememberedPool},
    lb_chains::LbChain,
    service_port::{self, Entries, PoolSlots, PortChains, SlotRange},
    table::{self, TableSet},
};

/// The plan of a sync, while it is made.
struct Update<'a> {
    config: &'a NftConfig,
    memory: &'a LastSynced,
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
    earlier: Vec<(ServicePortId, Option<(Earlier, Instant)>)>,
    tables: PerFamily<TableUpdate>,
}

#[derive(Default)]
struct TableUpdate {
    /// By how many the Service ports that need a common element have become more (or fewer).
    common: HashMap<(TableSet, Key), i64>,
    lb_chains: BTreeSet<LbChain>,
    stale_chains: HashSet<ChainName>,
    /// Chains with rules, which are not stale even if they were.
    used_chains: HashSet<ChainName>,
}

/// Plans the changes from tables that hold `before` to tables that hold `change.after()`.
pub(crate) fn plan(
    config: &NftConfig,
    memory: &LastSynced,
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
        for port in unchanged.filter(|port| service_port::has_chains(port)) {
            let after = change.after().service_ports.get(&port.id);
            update.compare_port(PortChange { id: &port.id, before: Some(port), after });
        }
    }
    // Maps of clients that are of no more use go. With the node's settings, all Service ports that have
    // some were compared.
    let now = Instant::now();
    let is_over = |id: &ServicePortId, until: Instant| until <= now && !change.has_port(id);
    let earlier = memory.earlier.iter().filter(|_| !change.node_changed());
    for (id, _) in earlier.filter(|(id, (_, until))| is_over(id, *until)) {
        let port = before.port(id);
        update.compare_port(PortChange { id, before: port, after: port });
    }
    for family in config.families() {
        update.count_common(family);
    }
    (update.changes, update.commitment)
}

impl Commitment {
    /// Updates the memory after the kernel has committed the changes.
    pub(crate) fn remember(self, memory: &mut LastSynced) {
        for (id, slots) in self.slots {
            memory.set_slots(id, slots);
        }
        for (id, earlier) in self.earlier {
            match earlier {
                Some(earlier) => memory.earlier.insert(id, earlier),
                None => memory.earlier.remove(&id),
            };
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
            table.lb_chains.extend(update.lb_chains);
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
        let shared = &self.memory.tables.get(family.into()).lb_chains;
        let chains = |context| {
            let shared = shared.iter().map(move |chain| chain.rules(context));
            table::chains(context).into_iter().chain(shared)
        };
        for (old, new) in chains(&before).zip(chains(&after)) {
            if old != new {
                changes.rewrite_chain(new);
            }
        }
        compare_elements(changes, table::elements(&before), table::elements(&after));
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

        let known = &self.memory.tables.get(id.family).lb_chains;
        for chain in &new_entries.chains {
            if !known.contains(chain) && table.lb_chains.insert(*chain) {
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
        let earlier = self.earlier(port);
        let old_own =
            old.map(|old| service_port::objects(old.port, &before, self.memory.earlier(id)));
        let new_own = new.map(|new| {
            service_port::objects(new.port, &after, earlier.map(|(earlier, _)| earlier))
        });
        let (old_own, new_own) = (old_own.unwrap_or_default(), new_own.unwrap_or_default());
        if earlier.is_some() || self.memory.earlier.contains_key(id) {
            self.commitment.earlier.push((id.clone(), earlier));
        }
        let changes = self.changes.get_mut(id.family);
        let table = self.commitment.tables.get_mut(id.family);
        let replaced = ranges::compare(changes, port).into_iter().collect();
        compare_own(changes, table, old_own, new_own, replaced);
        let slots = new.map(|new| new.clone().into_slots()).unwrap_or_default();
        self.commitment.slots.push((id.clone(), slots));
    }

    /// The earlier maps of clients that a Service port needs after the sync, and until when.
    fn earlier(&self, port: PortChange<'_>) -> Option<(Earlier, Instant)> {
        let affinity =
            |port: Option<&Arc<ResolvedServicePort>>| port.and_then(|port| port.affinity);
        let (before, after) = (affinity(port.before)?, affinity(port.after)?);
        let now = Instant::now();
        if before == after {
            return self.memory.earlier.get(port.id).copied().filter(|(_, until)| *until > now);
        }
        let earlier = Earlier::of(before);
        Some((earlier, now + earlier.outlasts(after)))
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
    old: Vec<(TableSet, Element)>,
    new: Vec<(TableSet, Element)>,
) {
    let mut left: HashMap<(TableSet, Key), Element> =
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
    (old, old_runs): (Option<&PlacedPort<'_>>, &[SlotRange]),
    (new, new_runs): (Option<&PlacedPort<'_>>, &[SlotRange]),
) {
    let same_place = |a: &SlotRange, b: &SlotRange| a.map == b.map && a.key == b.key;
    for run in new_runs {
        let before = old_runs.iter().find(|old| same_place(old, run));
        let address_before = |slot| old?.address(before?.pool, slot);
        let address_after = |slot| new?.address(run.pool, slot);
        let length = |programmed: Option<&PlacedPort<'_>>, run: Option<&SlotRange>| {
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

/// Compares the pools that remember clients.
fn compare_pools(changes: &mut Changes, old: &[RememberedPool], new: &[RememberedPool]) {
    let sets = |pools: &[RememberedPool]| -> BTreeMap<SetName, Arc<SetDef>> {
        let sets = pools.iter().flat_map(|pool| pool.maps().chain([&pool.members]));
        sets.map(|set| (set.name.clone(), set.clone())).collect()
    };
    let (mut gone, mut come) = (sets(old), sets(new));
    come.retain(|name, _| gone.remove(name).is_none());
    changes.delete_sets.extend(gone.into_keys());
    changes.add_sets.extend(come.into_values());
    for pool in new {
        let before = old.iter().find(|old| old.members.name == pool.members.name);
        let known = before.into_iter().flat_map(|before| before.elements());
        let (gone, come) = difference(known.map(|element| element.key), pool.elements());
        // Also of new pools: a map of that name may just be swept.
        changes.sweeps.extend(clients::sweeps(pool, !gone.is_empty()));
        changes.change_own(&pool.members, gone, come);
    }
}

/// Compares the chains and sets of a Service port alone. The chains that use a set in `replaced` must be
/// made anew, too.
fn compare_own(
    changes: &mut Changes,
    table: &mut TableUpdate,
    old: PortChains,
    new: PortChains,
    replaced: HashSet<SetName>,
) {
    compare_pools(changes, &old.pools, &new.pools);
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
