//! The kernel's tables as text, for snapshots.

use std::{collections::BTreeSet, sync::Arc};

use switchyard_core::error::ErrorChain;
use switchyard_netlink::nftables::Chains;
use switchyard_nft::NftConfig;
use switchyard_nft_ruleset::{
    ChainBase, Elements, Family, SetDump, Table, TableDump, Transaction, TransportError,
};

use super::snapshot::Line;
use crate::other_tables;

/// The most bytes of text, of all tables together: about 50,000 elements.
const MOST: usize = 8 << 20;
/// The elements of a line of text.
const OF_LINE: usize = 256;

/// Reads the proxy's own tables of nftables mode, if it is in that mode, and the names of others.
/// Errors take the places of what they are about.
pub fn read(config: Option<&NftConfig>) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut left = MOST;
    let families = Family::ALL.into_iter();
    let own = families.filter_map(|family| Some((config?, family)));
    for (config, family) in own.filter(|(config, family)| *config.families.get((*family).into())) {
        let table = Table::new(family, &*config.table);
        let text = match dump(config, &table) {
            Ok(Some(dump)) => text(&table, dump, left),
            Ok(None) => "# there is no such table\n".to_owned(),
            Err(error) => format!("# cannot be read: {}\n", ErrorChain(&error)),
        };
        left = left.saturating_sub(text.len());
        lines.push(Line::Kernel { table: table.to_string(), text });
    }
    let is_own = |table: &str| config.is_some_and(|config| *config.table == *table);
    let mut names: BTreeSet<String> = other_tables::unread().into_iter().collect();
    match Chains::list() {
        Ok(chains) => names.extend(
            chains
                .names()
                .filter(|name| !is_own(&name.table))
                .map(|name| format!("{} {}", name.family, name.table)),
        ),
        Err(error) => drop(names.insert(format!("cannot be read: {}", ErrorChain(&error)))),
    }
    lines.push(Line::OtherTables(names.into_iter().collect()));
    lines
}

fn dump(config: &NftConfig, table: &Table) -> Result<Option<TableDump>, TransportError> {
    config.transport.open()?.read(table, Elements::Include)
}

/// Writes a table nearly as `nft -f` reads it, rules by their fingerprints alone; not more than
/// `most` bytes, and the line that goes beyond them.
fn text(table: &Table, dump: TableDump, most: usize) -> String {
    let mut text = String::new();
    for (name, chain) in dump.chains {
        let mut written = Transaction::new();
        match chain.base {
            ChainBase::Base(base) => written.add_base_chain(table, base),
            ChainBase::Regular => written.add_chain(table, name),
            ChainBase::Foreign(why) => text.push_str(&format!("# chain {name}: {why}\n")),
        }
        text.push_str(&written.to_string());
        for rule in chain.rules {
            let of =
                rule.fingerprint.map_or("another program".to_owned(), |of| format!("{of:016x}"));
            text.push_str(&format!("# rule {} of {of}\n", rule.handle));
        }
    }
    for (name, SetDump { definition, elements, .. }) in dump.sets {
        let set = match definition {
            Ok(set) => Arc::new(set),
            Err(why) => {
                text.push_str(&format!("# set {name}: {why}\n"));
                continue;
            }
        };
        let mut written = Transaction::new();
        written.add_set(table, set.clone());
        text.push_str(&written.to_string());
        for part in elements.unwrap_or_default().chunks(OF_LINE) {
            if text.len() > most {
                return text + "# there is more\n";
            }
            let mut written = Transaction::new();
            let part = part.iter().map(|one| one.element.clone());
            written.add_elements(table, &set, part.collect());
            text.push_str(&written.to_string());
        }
    }
    text
}
