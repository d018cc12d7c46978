//! A sync of what changed, trusting what we remember of the kernel.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Instant,
};

use proxy_core::{
    model::{PerFamily, ServicePortId},
    state::{Delta, State},
};

use super::{
    changes::Changes,
    memory::{Memory, Programmed},
};
use crate::{
    layout::{
        ChainRules, Context, NftConfig,
        fixed::{self, FixedSet},
        own::{self, OwnObjects},
        service_port::{Entries, SlotRun},
        shared::SharedChain,
    },
    ruleset::{ChainName, Element, Family, Key},
};

/// What a sync changes, and what is to be remembered if it succeeds.
pub(crate) struct Update {
    pub(crate) changes: PerFamily<Changes>,
    ports: Vec<(ServicePortId, Option<Programmed>)>,
    node: Option<proxy_core::state::NodeState>,
    tables: PerFamily<TableUpdate>,
}

#[derive(Default)]
struct TableUpdate {
    /// How many more (or fewer) Service ports need a common element.
    common: HashMap<(FixedSet, Key), i64>,
    shared_chains: BTreeSet<SharedChain>,
    stale_chains: HashSet<ChainName>,
    /// Chains with rules: not stale, whatever they were.
    used_chains: HashSet<ChainName>,
}

impl Update {
    /// Compares what changed with what is remembered.
    pub(crate) fn plan(config: &NftConfig, memory: &Memory, state: &State, delta: &Delta) -> Self {
        let mut update = Self {
            changes: PerFamily::default(),
            ports: Vec::with_capacity(delta.service_ports.len()),
            node: None,
            tables: PerFamily::default(),
        };
        let mut to_compare = delta.service_ports.clone();
        if delta.node {
            update.node = Some(state.node.clone());
            for family in config.families() {
                let before = context(config, family, &memory.node);
                let after = context(config, family, &state.node);
                update.compare_fixed(memory, &before, &after);
            }
            // Chains of their own hold what the node's settings say.
            let with_own_chains =
                memory.ports.iter().filter(|(_, p)| own::affinity(&p.port).is_some());
            to_compare.extend(with_own_chains.map(|(id, _)| id.clone()));
        }
        let enabled = |id: &&ServicePortId| *config.families.of(id.family);
        for id in to_compare.iter().filter(enabled) {
            let family = id.family.into();
            let before = context(config, family, &memory.node);
            let after = context(config, family, &state.node);
            update.compare_port(memory, state, id, &before, &after);
        }
        for family in config.families() {
            update.count_common(memory, family);
        }
        update
    }

    /// Remembers that the kernel took it.
    pub(crate) fn remember(self, memory: &mut Memory) {
        for (id, programmed) in self.ports {
            match programmed {
                Some(programmed) => memory.ports.insert(id, programmed),
                None => memory.ports.remove(&id),
            };
        }
        if let Some(node) = self.node {
            memory.node = node;
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

    /// What the node's settings decide.
    fn compare_fixed(&mut self, memory: &Memory, before: &Context<'_>, after: &Context<'_>) {
        let family = after.family.into();
        let changes = self.changes.of_mut(family);
        let shared = &memory.tables.of(family).shared_chains;
        let old =
            fixed::chains(before).into_iter().chain(shared.iter().map(|chain| chain.rules(before)));
        let new =
            fixed::chains(after).into_iter().chain(shared.iter().map(|chain| chain.rules(after)));
        for (old, new) in old.zip(new) {
            if old != new {
                changes.rewrite_chain(new);
            }
        }
        compare_elements(changes, fixed::elements(before), fixed::elements(after));
    }

    fn compare_port(
        &mut self,
        memory: &Memory,
        state: &State,
        id: &ServicePortId,
        before: &Context<'_>,
        after: &Context<'_>,
    ) {
        let old = memory.ports.get(id);
        let new = state.service_ports.get(id).map(|port| {
            Programmed::following(port.clone(), |kind| {
                old.map(|old| old.addresses(kind).collect()).unwrap_or_default()
            })
        });
        let old_entries = old.map(|old| Entries::of(&old.port)).unwrap_or_default();
        let new_entries = new.as_ref().map(|new| Entries::of(&new.port)).unwrap_or_default();
        let changes = self.changes.of_mut(id.family);
        let table = self.tables.of_mut(id.family);

        let known = &memory.tables.of(id.family).shared_chains;
        for chain in &new_entries.chains {
            if !known.contains(chain) && table.shared_chains.insert(*chain) {
                table.used_chains.insert(chain.name());
                changes.new_chain(chain.rules(after));
            }
        }
        compare_runs(changes, (old, &old_entries.runs), (new.as_ref(), &new_entries.runs));
        compare_elements(changes, old_entries.elements, new_entries.elements);
        for element in old_entries.common {
            *table.common.entry(element).or_default() -= 1;
        }
        for element in new_entries.common {
            *table.common.entry(element).or_default() += 1;
        }
        let old_own = old.map(|old| own::objects(&old.port, before)).unwrap_or_default();
        let new_own = new.as_ref().map(|new| own::objects(&new.port, after)).unwrap_or_default();
        compare_own(changes, table, old_own, new_own);
        self.ports.push((id.clone(), new));
    }

    /// Elements that several Service ports need are added with the first and deleted with the
    /// last.
    fn count_common(&mut self, memory: &Memory, family: Family) {
        let family = family.into();
        let counts = &memory.tables.of(family).common;
        let changes = self.changes.of_mut(family);
        for (&(set, key), &change) in &self.tables.of(family).common {
            let before = i64::from(counts.get(&(set, key)).copied().unwrap_or_default());
            match (before > 0, before + change > 0) {
                (false, true) => changes.add_element(set, Element::new(key)),
                (true, false) => changes.delete_element(set, key),
                (false, false) | (true, true) => {}
            }
        }
    }
}

/// What rules depend on.
pub(crate) fn context<'a>(
    config: &NftConfig,
    family: Family,
    node: &'a proxy_core::state::NodeState,
) -> Context<'a> {
    Context { family, mark: config.mark(), node }
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

/// Compares slot by slot, so that a large pool costs what changed in it.
fn compare_runs(
    changes: &mut Changes,
    (old, old_runs): (Option<&Programmed>, &[SlotRun]),
    (new, new_runs): (Option<&Programmed>, &[SlotRun]),
) {
    let same_place = |a: &SlotRun, b: &SlotRun| a.map == b.map && a.key == b.key;
    for run in new_runs {
        let before = old_runs.iter().find(|old| same_place(old, run));
        let address_before = |slot| old?.address(before?.pool, slot);
        let address_after = |slot| new?.address(run.pool, slot);
        let length = |programmed: Option<&Programmed>, run: Option<&SlotRun>| {
            programmed.zip(run).map_or(0, |(p, run)| p.port.pool(run.pool).len())
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
        for slot in 0..old.map_or(0, |old| old.port.pool(run.pool).len()) {
            changes.delete_element(run.map, run.slot_key(slot));
        }
    }
}

fn compare_own(changes: &mut Changes, table: &mut TableUpdate, old: OwnObjects, new: OwnObjects) {
    let mut old_sets: HashMap<_, _> =
        old.sets.into_iter().map(|set| (set.name.clone(), set)).collect();
    let mut is_set_replaced = false;
    for set in new.sets {
        match old_sets.remove(&set.name) {
            Some(same) if same.same_shape(&set) => continue,
            Some(other) => {
                is_set_replaced = true;
                changes.delete_sets.push(other.name.clone());
            }
            None => {}
        }
        changes.add_sets.push(set);
    }
    changes.delete_sets.extend(old_sets.into_keys());

    let mut old_chains: HashMap<ChainName, ChainRules> =
        old.chains.into_iter().map(|chain| (chain.name.clone(), chain)).collect();
    for chain in new.chains {
        table.used_chains.insert(chain.name.clone());
        match old_chains.remove(&chain.name) {
            Some(same) if same == chain && !is_set_replaced => {}
            Some(_) => changes.rewrite_chain(chain),
            // A stale chain of that name may still exist; making it again does no harm.
            None => changes.new_chain(chain),
        }
    }
    for name in old_chains.into_keys() {
        changes.flush_chains.push(name.clone());
        table.stale_chains.insert(name);
    }
}
