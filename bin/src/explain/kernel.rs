//! The tables of the kernel, as text for snapshots.

use std::collections::BTreeSet;

use switchyard_core::{error::ErrorChain, proxier::KernelTable};
use switchyard_kernel::nftables::gates::Chains;

use super::snapshot::Line;
use crate::{other_tables, pace::Pace};

/// The most bytes of text, of all tables together: about 50,000 elements.
const MOST: usize = 8 << 20;

/// Reads what the proxy has programmed by `dump`, given the most bytes, and the names of all other
/// tables, one at a time at this pace. Errors take the places of what they are about.
pub fn read(pace: &Pace, dump: impl FnOnce(usize) -> Vec<KernelTable>) -> Vec<Line> {
    pace.run(|| read_now(dump(MOST))).unwrap_or_else(|| {
        let text = "# not read: another snapshot takes long, or took long a moment ago\n";
        vec![Line::Kernel { table: "tables".to_owned(), text: text.to_owned() }]
    })
}

fn read_now(own: Vec<KernelTable>) -> Vec<Line> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_by_one_at_a_time() {
        let pace = Pace::default();
        let lines = pace.run(|| read(&pace, |_| panic!("two at a time")));
        let Some([Line::Kernel { text, .. }]) = lines.as_deref() else { panic!("{lines:?}") };
        assert!(text.starts_with("# not read: "), "{text}");
    }
}
