//! Drift: the changes of a full sync that no input explains, so that another program must have
//! changed the tables.

use std::collections::HashSet;

use switchyard_core::{model::PerFamily, proxier::Drift};
use switchyard_kernel::nftables::{ChainName, Family, Key, SetDef, SetName, text};

use super::{
    changes::{Changes, TableChange},
    last_synced::LastSynced,
};
use crate::layout::table::TableSet;

/// An object that a sync changes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ObjectChange<'a> {
    MakeTable,
    ReplaceTable,
    MakeChain(&'a ChainName),
    EmptyChain(&'a ChainName),
    DeleteChain(&'a ChainName),
    MakeSet(&'a SetName),
    DeleteSet(&'a SetName),
    AddElement(TableSet, Key),
    DeleteElement(TableSet, Key),
    AddOfPort(&'a SetDef, Key),
    DeleteOfPort(&'a SetDef, Key),
}

/// Reports the changes `found` by a full sync that no input explains: those not in `expected`,
/// which assumes that the kernel still held what was synced last.
pub(super) fn find(
    found: &PerFamily<Changes>,
    expected: &PerFamily<Changes>,
    last: &LastSynced,
) -> Drift {
    let mut drift = Drift::default();
    for family in Family::ALL {
        if !last.families.get(family.into()) {
            continue;
        }
        let expected: HashSet<ObjectChange<'_>> = objects(expected.get(family.into())).collect();
        // Chains of the table without a jump to them keep their rules until a full sync.
        let shared: HashSet<ChainName> =
            last.tables.get(family.into()).lb_chains.iter().map(|c| c.name()).collect();
        let found = found.get(family.into());
        let rewritten: HashSet<&ChainName> = found.rules.iter().map(|chain| &chain.name).collect();
        let is_expected = |change: &ObjectChange<'_>| {
            expected.contains(change)
                || match change {
                    ObjectChange::EmptyChain(name) => {
                        let is_retired = shared.contains(*name) && !rewritten.contains(name);
                        // A chain without a jump to it, which is not deleted yet.
                        is_retired || expected.contains(&ObjectChange::MakeChain(name))
                    }
                    _ => false,
                }
        };
        let of_others = objects(found).filter(|change| !is_expected(change));
        of_others.for_each(|change| drift.found(|| describe(family, change)));
    }
    drift
}

fn objects(changes: &Changes) -> impl Iterator<Item = ObjectChange<'_>> {
    let table = match changes.table {
        TableChange::Keep => None,
        TableChange::Add => Some(ObjectChange::MakeTable),
        TableChange::Replace => Some(ObjectChange::ReplaceTable),
    };
    table
        .into_iter()
        .chain(changes.delete_base_chains.iter().map(ObjectChange::DeleteChain))
        .chain(changes.add_base_chains.iter().map(|chain| ObjectChange::MakeChain(&chain.name)))
        .chain(changes.add_chains.iter().map(ObjectChange::MakeChain))
        .chain(changes.flush_chains.iter().map(ObjectChange::EmptyChain))
        .chain(changes.delete_sets.iter().map(ObjectChange::DeleteSet))
        .chain(changes.add_sets.iter().map(|set| ObjectChange::MakeSet(&set.name)))
        .chain(
            changes.delete_elements.iter().flat_map(|(set, keys)| {
                keys.iter().map(|key| ObjectChange::DeleteElement(*set, *key))
            }),
        )
        .chain(changes.add_elements.iter().flat_map(|(set, elements)| {
            elements.iter().map(|element| ObjectChange::AddElement(*set, element.key))
        }))
        .chain(
            changes.delete_port_elements.iter().flat_map(|(set, keys)| {
                keys.iter().map(|key| ObjectChange::DeleteOfPort(set, *key))
            }),
        )
        .chain(changes.add_port_elements.iter().flat_map(|(set, elements)| {
            elements.iter().map(|element| ObjectChange::AddOfPort(set, element.key))
        }))
}

fn describe(family: Family, change: ObjectChange<'_>) -> String {
    let element = |set: &SetDef, key: &Key| {
        format!("{} in {family} {}", text::key_text(set, key.as_slice()), set.name)
    };
    match change {
        ObjectChange::MakeTable => format!("the table {family} was missing"),
        ObjectChange::ReplaceTable => format!("the table {family} had another structure"),
        ObjectChange::MakeChain(name) => format!("the chain {family} {name} was missing"),
        ObjectChange::EmptyChain(name) => format!("the chain {family} {name} had other rules"),
        ObjectChange::DeleteChain(name) => format!("the base chain {family} {name} was added"),
        ObjectChange::MakeSet(name) => format!("the set {family} {name} was missing"),
        ObjectChange::DeleteSet(name) => format!("the set {family} {name} was added or altered"),
        ObjectChange::AddElement(set, key) => {
            format!("the element {} was missing or altered", element(set.definition(family), &key))
        }
        ObjectChange::DeleteElement(set, key) => {
            format!("the element {} was added or altered", element(set.definition(family), &key))
        }
        ObjectChange::AddOfPort(set, key) => {
            format!("the element {} was missing", element(set, &key))
        }
        ObjectChange::DeleteOfPort(set, key) => {
            format!("the element {} was added", element(set, &key))
        }
    }
}
