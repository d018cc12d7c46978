//! The table in `docs/semantics.md` says what there is: it names every case, and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use packet_rig::{Case, case::BACKENDS};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn document() -> String {
    fs::read_to_string(root().join("docs/semantics.md")).unwrap()
}

/// Every case, by the name it has in the table.
fn cases() -> BTreeMap<String, Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let mut cases = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let subject = path.file_stem().unwrap().to_string_lossy().into_owned();
        for case in Case::load(&path).unwrap() {
            cases.insert(format!("{subject}::{}", case.name), case);
        }
    }
    assert!(cases.len() > 50, "where are the cases?");
    cases
}

/// The cells of every row with so many cells.
fn rows(text: &str, count: usize) -> Vec<Vec<&str>> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| line.split(" | ").map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.len() == count && !["Behaviour", "Case"].contains(&cells[0]))
        .collect()
}

/// What a cell names.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn what_the_table_names_exists() {
    let (text, cases) = (document(), cases());
    let rows = rows(&text, 4);
    assert!(rows.len() > 50, "where is the table?");
    for row in rows {
        let shown_by = names(row[3]);
        assert!(!shown_by.is_empty(), "nothing shows: {}", row[0]);
        for name in shown_by {
            let (place, item) = name.split_once("::").unwrap_or_else(|| panic!("{name}"));
            let exists = match place.contains('/') {
                true => fs::read_to_string(root().join(place))
                    .is_ok_and(|source| source.contains(&format!("fn {item}("))),
                false => cases.contains_key(name),
            };
            assert!(exists, "there is no {name}, which is to show: {}", row[0]);
        }
    }
}

#[test]
fn every_case_is_in_the_table() {
    let text = document();
    let named: BTreeSet<&str> = rows(&text, 4).iter().flat_map(|row| names(row[3])).collect();
    let cases = cases();
    let missing: Vec<_> = cases.keys().filter(|name| !named.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "docs/semantics.md does not name {missing:?}");
}

#[test]
fn the_table_says_which_backends_are_excepted() {
    let (text, cases) = (document(), cases());
    for row in rows(&text, 4) {
        let named = names(row[3]);
        let excepted: BTreeSet<&str> = named
            .iter()
            .filter_map(|name| cases.get(*name))
            .flat_map(|case| case.not.keys().map(String::as_str))
            .collect();
        let expected = match excepted.is_empty() {
            true => "all".to_owned(),
            false => {
                let in_order = BACKENDS.into_iter().filter(|name| excepted.contains(name));
                format!("all but {}", in_order.collect::<Vec<_>>().join(", "))
            }
        };
        assert_eq!(row[2], expected, "backends of: {}", row[0]);
    }
}

#[test]
fn the_table_says_why() {
    let (text, cases) = (document(), cases());
    let said: BTreeSet<String> =
        rows(&text, 3).into_iter().map(|cells| format!("| {} |", cells.join(" | "))).collect();
    let meant: BTreeSet<String> = cases
        .iter()
        .flat_map(|(name, case)| {
            let line = move |(backend, reason): (&String, &String)| {
                format!("| `{name}` | {backend} | {} |", reason.trim())
            };
            case.not.iter().map(line)
        })
        .collect();
    let lines = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join("\n");
    assert!(said == meant, "docs/semantics.md should end with:\n{}", lines(&meant));
}

#[test]
fn nftables_passes_every_case_that_upstreams_does() {
    for (name, case) in cases() {
        let is_excepted = case.not_for("nftables").is_some();
        assert_eq!(is_excepted, name == "nodeport::localhost-node-ports", "{name}");
    }
}
