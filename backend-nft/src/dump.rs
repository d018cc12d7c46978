//! The tables as text, for people.

use std::sync::Arc;

use switchyard_core::{error::ErrorChain, proxier::KernelTable};
use switchyard_kernel::nftables::{
    ChainBase, Elements, Family, SetDump, Table, TableDump, Transaction, TransportError,
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
            None => Some("# there is more\n".to_owned()),
            Some(Ok(dump)) => dump.map(|dump| text(&table, dump, left)),
            Some(Err(error)) => Some(format!("# cannot be read: {}\n", ErrorChain(&error))),
        };
        left = left.saturating_sub(text.as_ref().map_or(0, String::len));
        KernelTable { name: table.to_string(), text }
    };
    families.filter(|family| *config.families.get((*family).into())).map(read).collect()
}

fn read(config: &NftConfig, table: &Table) -> Result<Option<TableDump>, TransportError> {
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
