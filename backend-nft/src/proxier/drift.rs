//! What somebody else had changed: whatever a full sync changes that no input asked for.

use std::collections::HashSet;

use proxy_core::{model::PerFamily, proxier::Drift};

use super::{
    changes::{Changes, TableChange},
    memory::Memory,
};
use crate::{
    layout::fixed::FixedSet,
    ruleset::{ChainName, Family, Key, SetName},
    text,
};

/// An object that is changed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change<'a> {
    MakeTable,
    ReplaceTable,
    MakeChain(&'a ChainName),
    EmptyChain(&'a ChainName),
    DeleteChain(&'a ChainName),
    MakeSet(&'a SetName),
    DeleteSet(&'a SetName),
    AddElement(FixedSet, Key),
    DeleteElement(FixedSet, Key),
}

/// Compares what a full sync changes with what would have been changed if the kernel had held what
/// is remembered.
pub(super) fn find(
    found: &PerFamily<Changes>,
    expected: &PerFamily<Changes>,
    memory: &Memory,
) -> Drift {
    let mut drift = Drift::default();
    for family in Family::ALL {
        let expected: HashSet<Change<'_>> = objects(expected.of(family.into())).collect();
        // Those that nothing leads to any more keep their rules until a full sync.
        let shared: HashSet<ChainName> =
            memory.tables.of(family.into()).shared_chains.iter().map(|c| c.name()).collect();
        let found = found.of(family.into());
        let rewritten: HashSet<&ChainName> = found.rules.iter().map(|chain| &chain.name).collect();
        let is_expected = |change: &Change<'_>| {
            expected.contains(change)
                || match change {
                    Change::EmptyChain(name) => {
                        let is_retired = shared.contains(*name) && !rewritten.contains(name);
                        // One that nothing led to any more, and that is not deleted yet.
                        is_retired || expected.contains(&Change::MakeChain(name))
                    }
                    _ => false,
                }
        };
        let of_others = objects(found).filter(|change| !is_expected(change));
        of_others.for_each(|change| drift.found(|| describe(family, change)));
    }
    drift
}

fn objects(changes: &Changes) -> impl Iterator<Item = Change<'_>> {
    let table = match changes.table {
        TableChange::Keep => None,
        TableChange::Add => Some(Change::MakeTable),
        TableChange::Replace => Some(Change::ReplaceTable),
    };
    table
        .into_iter()
        .chain(changes.delete_base_chains.iter().map(Change::DeleteChain))
        .chain(changes.add_base_chains.iter().map(|chain| Change::MakeChain(&chain.name)))
        .chain(changes.add_chains.iter().map(Change::MakeChain))
        .chain(changes.flush_chains.iter().map(Change::EmptyChain))
        .chain(changes.delete_sets.iter().map(Change::DeleteSet))
        .chain(changes.add_sets.iter().map(|set| Change::MakeSet(&set.name)))
        .chain(
            changes
                .delete_elements
                .iter()
                .flat_map(|(set, keys)| keys.iter().map(|key| Change::DeleteElement(*set, *key))),
        )
        .chain(changes.add_elements.iter().flat_map(|(set, elements)| {
            elements.iter().map(|element| Change::AddElement(*set, element.key))
        }))
}

fn describe(family: Family, change: Change<'_>) -> String {
    let element = |set: FixedSet, key: &Key| {
        let set = set.definition(family);
        format!("{} in {family} {}", text::key_text(set, key.as_slice()), set.name)
    };
    match change {
        Change::MakeTable => format!("the table {family} was missing"),
        Change::ReplaceTable => format!("the table {family} had another structure"),
        Change::MakeChain(name) => format!("the chain {family} {name} was missing"),
        Change::EmptyChain(name) => format!("the chain {family} {name} had other rules"),
        Change::DeleteChain(name) => format!("the base chain {family} {name} was added"),
        Change::MakeSet(name) => format!("the set {family} {name} was missing"),
        Change::DeleteSet(name) => format!("the set {family} {name} was added or altered"),
        Change::AddElement(set, key) => {
            format!("the element {} was missing or altered", element(set, &key))
        }
        Change::DeleteElement(set, key) => {
            format!("the element {} was added or altered", element(set, &key))
        }
    }
}
