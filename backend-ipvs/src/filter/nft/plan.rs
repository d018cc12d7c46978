//! What a comparison changes in a table.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use switchyard_core::model::IpFamily;
use switchyard_nft_ruleset::{
    ChainBase, ChainName, Element, Key, Rule, SetDump, SetName, Table, TableDump, Transaction,
};

use super::{
    Memory,
    detours::{self, Detours},
    layout::{self, table},
    rules,
    sources::{self, Frontend, Limited, Ranges},
};
use crate::{
    filter::{FamilyEntry, RuleInputs},
    sets::Set,
};

/// The changes of a table, and what they show.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) transaction: Transaction,
    /// Entries that the table lacks.
    pub(super) missing: Vec<FamilyEntry>,
    /// Entries that nobody wants, and which stay.
    pub(super) stale: Vec<FamilyEntry>,
    /// Chains, sets and maps that are missing or altered, or the table, in words.
    pub(super) altered: Vec<String>,
    /// What the table holds after the commit.
    pub(super) memory: Memory,
}

impl Plan {
    /// Compares a table with what it should hold.
    pub(super) fn new(
        wanted: &HashSet<FamilyEntry>,
        inputs: &RuleInputs<'_>,
        dump: Option<&TableDump>,
        memory: &Memory,
    ) -> Self {
        let mut plan = Self::default();
        let family = inputs.family;
        let table = table(family);
        let detours = Detours::new(inputs);
        let mut chains = rules::chains(inputs);
        chains.extend(detours.chains.iter().map(|chain| (chain.name(), chain.rules())));

        let is_rebuilt = dump.is_some_and(|dump| !is_repairable(dump, &chains, family));
        if is_rebuilt {
            plan.transaction.delete_table(&table);
        }
        // What stays, apart from entries.
        let kept = dump.filter(|_| !is_rebuilt);
        plan.structure(&table, kept, chains);

        let (sources, wanted): (Vec<&FamilyEntry>, Vec<&FamilyEntry>) = wanted
            .iter()
            .filter(|entry| entry.0 == family)
            .partition(|entry| entry.1 == Set::LoadBalancerSources);
        plan.entries(&wanted, dump, is_rebuilt, family);
        let wanted = sources::collect(sources.into_iter().map(|(.., entry)| entry));
        plan.ranges(&wanted, dump, is_rebuilt, family, &memory.limited);

        let held: HashMap<_, _> = detours::definitions(family)
            .iter()
            .flat_map(|map| held_elements(kept, &map.name).map(|e| (map.name.clone(), e)))
            .map(|(map, element)| ((map, element.key), element.clone()))
            .collect();
        let altered = write_detours(&mut plan.transaction, family, &held, &detours);
        plan.altered.extend(altered.iter().map(|map| named("map", &table, map.as_str())));
        if is_rebuilt {
            plan.altered = vec![format!("table {}", table.name)];
        }
        plan.memory.draw_chains = detours.chains.clone();
        plan.memory.detours = detours;
        plan
    }

    /// Makes the sets, and the chains with their rules.
    fn structure(
        &mut self,
        table: &Table,
        kept: Option<&TableDump>,
        chains: BTreeMap<ChainName, Vec<Rule>>,
    ) {
        let family: IpFamily = table.family.into();
        if kept.is_none() {
            let comment = "rules of ipvs mode";
            self.transaction.add_table_with_comment(table, comment);
        }
        let sets = layout::definitions(family).into_iter().chain(detours::definitions(family));
        for set in sets {
            if !kept.is_some_and(|dump| dump.sets.contains_key(&set.name)) {
                self.transaction.add_set(table, set);
            }
        }
        let has = |name: &ChainName| kept.is_some_and(|dump| dump.chains.contains_key(name));
        let bases = rules::base_chains();
        for base in &bases {
            if !has(&base.name) {
                self.transaction.add_base_chain(table, base.clone());
            }
        }
        let is_base = |name: &ChainName| bases.iter().any(|base| base.name == *name);
        for name in chains.keys().filter(|name| !has(name) && !is_base(name)) {
            self.transaction.add_chain(table, name.clone());
        }
        for (name, rules) in chains {
            let held = kept.and_then(|dump| dump.chains.get(&name));
            let fits = held.is_some_and(|held| {
                let wanted = rules.iter().map(|rule| Some(rule.fingerprint(table.family)));
                held.rules.iter().map(|rule| rule.fingerprint).eq(wanted)
            });
            if !fits {
                self.altered.push(named("chain", table, name.as_str()));
                write_rules(&mut self.transaction, table, &name, rules);
            }
        }
    }

    /// Adds entries, but for source ranges.
    fn entries(
        &mut self,
        wanted: &[&FamilyEntry],
        dump: Option<&TableDump>,
        is_rebuilt: bool,
        family: IpFamily,
    ) {
        let table = table(family);
        let mut by_set: BTreeMap<&str, HashMap<Key, FamilyEntry>> = BTreeMap::new();
        for entry in wanted {
            let entries = by_set.entry(layout::name(entry.1)).or_default();
            entries.extend(layout::key(entry.1, &entry.2).map(|key| (key, **entry)));
        }
        for set in layout::definitions(family).into_iter().filter(|set| !set.interval) {
            let mut wanted = by_set.remove(set.name.as_str()).unwrap_or_default();
            let (mut add, mut delete): (Vec<Key>, Vec<Key>) = (Vec::new(), Vec::new());
            for key in held_elements(dump, &set.name).map(|element| element.key) {
                match (wanted.remove(&key), layout::entry(family, &set.name, &key)) {
                    (Some(_), _) if is_rebuilt => add.push(key),
                    (Some(_), _) => {}
                    (None, Some((of, entry))) => {
                        self.stale.push((family, of, entry));
                        if is_rebuilt {
                            add.push(key);
                        }
                    }
                    (None, None) => delete.push(key),
                }
            }
            if !delete.is_empty() {
                self.altered.push(named("set", &table, set.name.as_str()));
                if !is_rebuilt {
                    self.transaction.delete_elements(&table, &set, delete);
                }
            }
            for (key, entry) in wanted {
                add.push(key);
                self.missing.push(entry);
            }
            let add = add.into_iter().map(Element::new).collect();
            self.transaction.add_elements(&table, &set, add);
        }
    }

    /// Makes the source ranges of wanted frontends what they should be. Those of others stay.
    fn ranges(
        &mut self,
        wanted: &Ranges,
        dump: Option<&TableDump>,
        is_rebuilt: bool,
        family: IpFamily,
        known: &BTreeMap<Frontend, Limited>,
    ) {
        let table = table(family);
        let set = layout::definition(Set::LoadBalancerSources, family);
        let (mut add, mut delete): (Vec<Key>, Vec<Key>) = (Vec::new(), Vec::new());
        let mut held = Ranges::new();
        for key in held_elements(dump, &set.name).map(|element| element.key) {
            let entry = layout::entry(family, &set.name, &key);
            match entry.and_then(|(_, entry)| sources::split(&entry)) {
                Some((frontend, net)) => drop(held.entry(frontend).or_default().insert(net)),
                None => delete.push(key),
            }
        }
        if !delete.is_empty() {
            self.altered.push(named("set", &table, set.name.as_str()));
        }
        let frontends: BTreeSet<Frontend> = wanted.keys().chain(held.keys()).copied().collect();
        for frontend in frontends {
            let found = held.remove(&frontend).unwrap_or_default();
            let known = known.get(&frontend).map(|known| &known.entries);
            // The entries that nobody wants: those that were wanted once, and what they do not explain.
            let mut stale: BTreeSet<_> = known.into_iter().flatten().copied().collect();
            let mut explained = stale.clone();
            let limited = match wanted.get(&frontend) {
                Some(entries) => {
                    let missing = sources::uncovered(entries, &sources::merged(&found));
                    self.missing.extend(missing.into_iter().map(|net| {
                        (family, Set::LoadBalancerSources, sources::entry(frontend, net))
                    }));
                    explained.extend(entries);
                    stale.retain(|net| !entries.contains(net));
                    let change = Limited { entries: entries.clone(), held: found.clone() };
                    let (gone, come) = change.change();
                    delete.extend(gone.iter().filter_map(|net| sources::key(frontend, *net)));
                    if !is_rebuilt {
                        add.extend(come.iter().filter_map(|net| sources::key(frontend, *net)));
                    }
                    Limited { entries: entries.clone(), held: sources::merged(entries) }
                }
                None => {
                    let unexplained = sources::uncovered(&found, &sources::merged(&explained));
                    let entries = explained.iter().copied().chain(unexplained).collect();
                    Limited { entries, held: found.clone() }
                }
            };
            stale.extend(sources::uncovered(&found, &sources::merged(&explained)));
            self.stale.extend(
                stale
                    .into_iter()
                    .map(|net| (family, Set::LoadBalancerSources, sources::entry(frontend, net))),
            );
            if is_rebuilt {
                add.extend(limited.held.iter().filter_map(|net| sources::key(frontend, *net)));
            }
            self.memory.limited.insert(frontend, limited);
        }
        if !is_rebuilt {
            self.transaction.delete_elements(&table, &set, delete);
        }
        let add = add.into_iter().map(Element::new).collect();
        self.transaction.add_elements(&table, &set, add);
    }
}

/// Whether the objects of a table are of the right kinds, so that rules and elements alone may have to
/// change. If not, the table is made anew, which is as atomic.
fn is_repairable(
    dump: &TableDump,
    chains: &BTreeMap<ChainName, Vec<Rule>>,
    family: IpFamily,
) -> bool {
    let bases = rules::base_chains();
    let chains_fit = dump.chains.iter().all(|(name, chain)| {
        match (bases.iter().find(|base| base.name == *name), &chain.base) {
            (Some(base), ChainBase::Base(held)) => held == base,
            (None, ChainBase::Regular) => chains.contains_key(name) || detours::is_draw_chain(name),
            _ => false,
        }
    });
    let definitions = [layout::definitions(family), detours::definitions(family)].concat();
    let fits = |held: &SetDump, name: &SetName| {
        let wanted = definitions.iter().find(|wanted| wanted.name == *name);
        let definition = held.definition.as_ref().ok();
        wanted.zip(definition).is_some_and(|(wanted, held)| held.same_shape(wanted))
    };
    chains_fit && dump.sets.iter().all(|(name, held)| fits(held, name))
}

fn held_elements<'a>(
    dump: Option<&'a TableDump>,
    set: &SetName,
) -> impl Iterator<Item = &'a Element> {
    let held = dump.and_then(|dump| dump.sets.get(set));
    held.and_then(|set| set.elements.as_ref()).into_iter().flatten().map(|held| &held.element)
}

fn named(kind: &str, table: &Table, name: &str) -> String {
    format!("{kind} {name} in {}", table.name)
}

/// Writes the rules of a chain, in place of those that it has.
pub(super) fn write_rules(
    transaction: &mut Transaction,
    table: &Table,
    chain: &ChainName,
    rules: Vec<Rule>,
) {
    transaction.flush_chain(table, chain.clone());
    for rule in rules {
        transaction.add_rule(table, chain.clone(), rule);
    }
}

/// Writes the detours that differ, and returns the maps that change.
pub(super) fn write_detours(
    transaction: &mut Transaction,
    family: IpFamily,
    held: &HashMap<(SetName, Key), Element>,
    wanted: &Detours,
) -> Vec<SetName> {
    let table = table(family);
    let mut changed = Vec::new();
    for map in detours::definitions(family) {
        let of_map = |at: &&(SetName, Key)| at.0 == map.name;
        let differs = |at: &&(SetName, Key)| held.get(*at) != wanted.elements.get(*at);
        let delete: Vec<Key> =
            held.keys().filter(of_map).filter(differs).map(|(_, key)| *key).collect();
        let add: Vec<Element> = wanted
            .elements
            .iter()
            .filter(|(at, _)| of_map(at) && differs(at))
            .map(|(_, element)| element.clone())
            .collect();
        if !delete.is_empty() || !add.is_empty() {
            changed.push(map.name.clone());
        }
        transaction.delete_elements(&table, &map, delete);
        transaction.add_elements(&table, &map, add);
    }
    changed
}
