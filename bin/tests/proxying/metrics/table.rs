//! The tables of `docs/metrics.md`: what there is to be exported.

use std::collections::{BTreeMap, BTreeSet};

const PAGE: &str = include_str!("../../../../docs/metrics.md");

pub(super) struct Row {
    pub(super) kind: &'static str,
    pub(super) labels: BTreeSet<String>,
    /// The only mode that has it.
    pub(super) mode: Option<&'static str>,
    /// The upper bounds of a histogram's buckets, as they are printed.
    pub(super) buckets: Vec<&'static str>,
}

/// Returns the metrics by their names.
pub(super) fn rows() -> BTreeMap<String, Row> {
    let mut buckets = BTreeMap::new();
    let mut rows = BTreeMap::new();
    for line in PAGE.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        match cells[..] {
            [names, bounds] => {
                let bounds: Vec<&str> = bounds.split_whitespace().chain(["+Inf"]).collect();
                buckets.extend(names_in(names).map(|name| (name, bounds.clone())));
            }
            [name, kind, labels, mode, _] => {
                let mode = (!mode.is_empty()).then_some(mode);
                let row =
                    Row { kind, labels: names_in(labels).collect(), mode, buckets: Vec::new() };
                assert!(rows.insert(name.trim_matches('`').to_owned(), row).is_none(), "{line}");
            }
            _ => panic!("{line}"),
        }
    }
    for (name, bounds) in buckets {
        rows.get_mut(&name).expect(&name).buckets = bounds;
    }
    rows
}

/// The words between backticks.
fn names_in(cell: &'static str) -> impl Iterator<Item = String> {
    cell.split(", ").filter(|name| !name.is_empty()).map(|name| name.trim_matches('`').to_owned())
}
