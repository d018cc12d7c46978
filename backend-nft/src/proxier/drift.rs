//! Drift: the changes of a full sync that no input explains, so that another program must have
//! changed the tables.

use std::collections::HashSet;

use switchyard_core::{model::PerFamily, proxier::Drift};
use switchyard_kernel::nftables::{ChainName, Family, Key, SetDef, SetName, text};

use super::{
    changes::{Changes, TableChange},
    last_synced::LastSynced,
};
use crate::layout::{lb_chains::LbChain, table::TableSet};

/// An object that a sync changes, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ObjectChange<'a> {
    MakeTable,
    WakeTable,
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

type Objects<'a> = HashSet<ObjectChange<'a>>;

/// Reports the changes `found` by a full sync that no input explains: those not in `expected`,
/// which assumes that the kernel still held what was synced last.
pub(super) fn find(
    found: &PerFamily<Changes>,
    expected: &PerFamily<Changes>,
    last: &LastSynced,
) -> Drift {
    select(found, expected, last, |change, _, expected| {
        let is_made = |name| expected.contains(&ObjectChange::MakeChain(name));
        // A chain without a jump to it, which is not deleted yet.
        let is_emptied = matches!(change, ObjectChange::EmptyChain(name) if is_made(name));
        !is_emptied && !expected.contains(change)
    })
}

/// Reports the changes `found` by a comparison of everything that concern one Service: those that
/// the comparison with this Service alone finds as well (`of_service`), and what is too much, which
/// may be in the way of any.
pub(super) fn find_of_service(
    found: &PerFamily<Changes>,
    of_service: &PerFamily<Changes>,
    last: &LastSynced,
) -> Drift {
    select(found, of_service, last, |change, found, of_service| {
        let has = |change| of_service.contains(&change);
        // What is taken away to be added anew is altered.
        let is_whole_or_has = |added| !found.contains(&added) || has(added);
        match *change {
            ObjectChange::MakeTable
            | ObjectChange::WakeTable
            | ObjectChange::ReplaceTable
            | ObjectChange::DeleteChain(_) => true,
            ObjectChange::DeleteElement(set, key) => {
                is_whole_or_has(ObjectChange::AddElement(set, key))
            }
            ObjectChange::DeleteOfPort(set, key) => {
                is_whole_or_has(ObjectChange::AddOfPort(set, key))
            }
            ObjectChange::DeleteSet(name) => is_whole_or_has(ObjectChange::MakeSet(name)),
            change => has(change),
        }
    })
}

/// Reports the changes `found` that are `reported`, given them all and the other ones.
fn select(
    found: &PerFamily<Changes>,
    others: &PerFamily<Changes>,
    last: &LastSynced,
    reported: impl Fn(&ObjectChange<'_>, &Objects<'_>, &Objects<'_>) -> bool,
) -> Drift {
    let mut drift = Drift::default();
    for family in Family::ALL {
        if !last.families.get(family.into()) {
            continue;
        }
        // Chains of the table without a jump to them keep their rules until a full sync.
        let shared: HashSet<ChainName> =
            last.tables.get(family.into()).lb_chains.keys().map(LbChain::name).collect();
        let (found, others) = (found.get(family.into()), others.get(family.into()));
        let rewritten = |changes: &Changes| -> HashSet<ChainName> {
            changes.rules.iter().map(|chain| chain.name.clone()).collect()
        };
        let (rewritten, also) = (rewritten(found), rewritten(others));
        // Chains that are emptied alone are not those that get other rules.
        let is_else = |change: &ObjectChange<'_>| match change {
            ObjectChange::EmptyChain(name) => rewritten.contains(*name) && !also.contains(*name),
            _ => false,
        };
        let others: Objects<'_> = objects(others).filter(|change| !is_else(change)).collect();
        let all: Objects<'_> = objects(found).collect();
        let is_retired = |change: &ObjectChange<'_>| match change {
            ObjectChange::EmptyChain(name) => shared.contains(*name) && !rewritten.contains(*name),
            _ => false,
        };
        let changes =
            objects(found).filter(|change| !is_retired(change) && reported(change, &all, &others));
        changes.for_each(|change| drift.found(|| describe(family, change)));
    }
    drift
}

fn objects(changes: &Changes) -> impl Iterator<Item = ObjectChange<'_>> {
    let table = match changes.table {
        TableChange::Keep => None,
        TableChange::Add => Some(ObjectChange::MakeTable),
        TableChange::Wake => Some(ObjectChange::WakeTable),
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
        ObjectChange::WakeTable => format!("the table {family} was dormant"),
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
