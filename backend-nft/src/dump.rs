//! The tables as text, for people.

use std::{collections::BTreeMap, sync::Arc};

use switchyard_core::proxier::KernelTable;
use switchyard_kernel::nftables::{
    ChainBase, Elements, Family, RuleDump, SetDump, Table, TableDump, Transaction, TransportError,
    bytecode,
};

use crate::NftConfig;

/// The elements of a line of text.
const OF_LINE: usize = 256;

/// Reads the tables of this configuration.
pub(crate) fn dump(config: &NftConfig, most: usize) -> Vec<KernelTable> {
    let families = Family::ALL.into_iter();
    let mut left = most;
    let read = |family: Family| {
        let table = Table::new(family, &*config.table);
        // A table that is not shown would only take memory and time.
        let dump = (left > 0).then(|| read(config, &table));
        let text = match dump {
            None => Some(KernelTable::CUT.to_owned()),
            Some(Ok((dump, rules))) => dump.map(|dump| text(&table, dump, &rules, left)),
            Some(Err(error)) => return KernelTable::unread(table.to_string(), &error),
        };
        left = left.saturating_sub(text.as_ref().map_or(0, String::len));
        KernelTable { name: table.to_string(), text }
    };
    families.filter(|family| *config.families.get((*family).into())).map(read).collect()
}

/// The rules of a table as text, by their handles; `None` if they cannot be read.
type Rules = Option<BTreeMap<u64, String>>;

fn read(config: &NftConfig, table: &Table) -> Result<(Option<TableDump>, Rules), TransportError> {
    let dump = config.transport.open()?.read(table, Elements::Include)?;
    Ok((dump, bytecode::rules(table).ok()))
}

/// Writes a table nearly as `nft -f` reads it, rules as comments with their expressions; not more
/// than `most` bytes, and the line that goes beyond them.
fn text(table: &Table, dump: TableDump, rules: &Rules, most: usize) -> String {
    let mut text = String::new();
    for (name, chain) in dump.chains {
        let mut written = Transaction::new();
        match chain.base {
            ChainBase::Base(base) => written.add_base_chain(table, base),
            ChainBase::Regular => written.add_chain(table, name),
            ChainBase::Foreign(why) => text.push_str(&format!("# chain {name}: {why}\n")),
        }
        text.push_str(&written.to_string());
        for RuleDump { handle, fingerprint, .. } in chain.rules {
            if text.len() > most {
                return text + KernelTable::CUT;
            }
            // The rules were read after the table.
            let rule = match rules {
                Some(rules) => rules.get(&handle).map_or("gone", String::as_str),
                None => "not read",
            };
            let of = if fingerprint.is_none() { " of another program" } else { "" };
            text.push_str(&format!("# rule {handle}{of}: {rule}\n"));
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
                return text + KernelTable::CUT;
            }
            let mut written = Transaction::new();
            let part = part.iter().map(|one| one.element.clone());
            written.add_elements(table, &set, part.collect());
            text.push_str(&written.to_string());
        }
    }
    text
}
