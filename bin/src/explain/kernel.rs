//! The tables of the kernel, as text for snapshots.

use std::collections::BTreeSet;

use switchyard_core::{error::ErrorChain, proxier::Backend};
use switchyard_kernel::nftables::gates::Chains;

use super::snapshot::Line;
use crate::other_tables;

/// The most bytes of text, of all tables together: about 50,000 elements.
const MOST: usize = 8 << 20;

/// Reads what the proxy has programmed, and the names of all other tables. Errors take the places
/// of what they are about.
pub fn read(backend: &dyn Backend) -> Vec<Line> {
    let own = backend.dump(MOST);
    let is_own = |name: &String| own.iter().any(|table| table.name == *name);
    let mut names: BTreeSet<String> = other_tables::unread().into_iter().collect();
    match Chains::list() {
        Ok(chains) => {
            names.extend(chains.names().map(|name| format!("{} {}", name.family, name.table)));
        }
        Err(error) => drop(names.insert(format!("cannot be read: {}", ErrorChain(&error)))),
    }
    names.retain(|name| !is_own(name));
    let mut lines = Vec::new();
    for table in own {
        let text = table.text.unwrap_or_else(|| "# there is no such table\n".to_owned());
        lines.push(Line::Kernel { table: table.name, text });
    }
    lines.push(Line::OtherTables(names.into_iter().collect()));
    lines
}
