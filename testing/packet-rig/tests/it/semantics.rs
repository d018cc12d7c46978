//! The table in `docs/semantics.md` and the tests agree: the table names every case, and nothing
//! that does not exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use packet_rig::{
    Case,
    backend::{BACKENDS, REFERENCES},
    kube_proxy::Release,
    page::{SEMANTICS, names, page, rows},
    suite,
};

/// The names of the references of [`Release::V1_30`] in the table of differences.
const REFERENCES_1_30: [&str; 2] = ["kube-proxy-nftables 1.30", "kube-proxy-iptables 1.30"];

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every case, by the name it has in the table.
fn cases() -> BTreeMap<String, Case> {
    suite::cases().unwrap()
}

/// Whether the source has a function of that name which the test harness runs: marked as a test,
/// and not ignored.
fn is_run_as_a_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let start = format!("fn {name}(");
    let is_function = |line: &&str| line.strip_prefix("async ").unwrap_or(line).starts_with(&start);
    let Some(place) = lines.iter().position(is_function) else { return false };
    // Attributes and comments, up to the end of the item before or the start of the module.
    let ends_item = |line: &&&str| line.is_empty() || line.ends_with(['{', '}', ';']);
    let attributes: Vec<&str> = lines[..place]
        .iter()
        .rev()
        .take_while(|line| !ends_item(line))
        .filter(|line| !line.starts_with("//"))
        .copied()
        .collect();
    let has = |starts: [&str; 2]| {
        attributes.iter().any(|line| starts.iter().any(|start| line.starts_with(start)))
    };
    has(["#[test]", "#[tokio::test"]) && !has(["#[ignore", "#[cfg("])
}

/// Whether a program without the harness lists a function of this file among those that it runs.
fn is_run_by_name(path: &Path, name: &str) -> bool {
    let main = fs::read_to_string(path.with_file_name("main.rs")).unwrap_or_default();
    main.contains("fn main()") && main.lines().any(|line| line.trim() == format!("{name},"))
}

#[test]
fn what_the_table_names_exists() {
    let cases = cases();
    let rows = rows(SEMANTICS, 4);
    assert!(rows.len() > 50, "where is the table?");
    for row in rows {
        let shown_by = names(row[3]);
        assert!(!shown_by.is_empty(), "nothing shows: {}", row[0]);
        for name in shown_by {
            let (place, item) = name.split_once("::").unwrap_or_else(|| panic!("{name}"));
            let exists = match place.contains('/') {
                true => fs::read_to_string(root().join(place)).is_ok_and(|source| {
                    is_run_as_a_test(&source, item) || is_run_by_name(&root().join(place), item)
                }),
                false => cases.contains_key(name),
            };
            assert!(exists, "{name} is no test that is run, but is to show: {}", row[0]);
        }
    }
}

#[test]
fn every_case_is_in_the_table() {
    let named: BTreeSet<&str> = rows(SEMANTICS, 4).iter().flat_map(|row| names(row[3])).collect();
    let cases = cases();
    let missing: Vec<_> = cases.keys().filter(|name| !named.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "docs/semantics.md does not name {missing:?}");
}

#[test]
fn the_table_says_which_backends_are_excepted() {
    let cases = cases();
    for row in rows(SEMANTICS, 4) {
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
    let cases = cases();
    let line = |cells: [&str; 3]| format!("| {} |", cells.join(" | "));
    let said: BTreeSet<String> =
        rows(SEMANTICS, 3).into_iter().map(|cells| line([cells[0], cells[1], cells[2]])).collect();
    // The cases that the same backends see otherwise for the same reason are one row.
    let mut grouped = BTreeMap::<_, Vec<String>>::new();
    for (name, case) in &cases {
        let mut reasons = BTreeMap::<&str, Vec<&str>>::new();
        let excepted = case.not.iter().map(|(backend, why)| (backend.as_str(), why.as_str()));
        let differing =
            REFERENCES.iter().filter_map(|one| Some((*one, case.differs(one, Release::V1_36)?)));
        let older = case.kube_proxy_1_30.iter().map(|(mode, why)| {
            let backend = REFERENCES_1_30.iter().find(|name| name.contains(mode.as_str()));
            (*backend.unwrap(), why.as_deref().unwrap_or("None."))
        });
        for (backend, why) in excepted.chain(differing).chain(older) {
            reasons.entry(why.trim()).or_default().push(backend);
        }
        for (why, backends) in reasons {
            grouped.entry((backends.join(", "), why)).or_default().push(format!("`{name}`"));
        }
    }
    let meant: BTreeSet<String> = grouped
        .iter()
        .map(|((backends, why), names)| line([&names.join(", "), backends, why]))
        .collect();
    let lines = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join("\n");
    assert!(said == meant, "docs/semantics.md should end with:\n{}", lines(&meant));
}

#[test]
fn nftables_passes_every_case_that_upstreams_does() {
    for (name, case) in cases() {
        assert_eq!(case.not_for("nftables"), None, "{name}");
        // The transport makes no difference.
        assert_eq!(case.not_for("nftables-json"), None, "{name}");
    }
}

#[test]
fn all_files_of_cases_are_listed() {
    let directory = fs::read_dir(root().join("testing/packet-rig/cases")).unwrap();
    let files: BTreeSet<_> = directory.map(|entry| entry.unwrap().file_name()).collect();
    let listed = suite::FILES.map(|(name, _)| format!("{name}.yaml").into());
    assert_eq!(files, BTreeSet::from(listed));
}

#[test]
fn the_page_of_results_is_made_of_the_results() {
    let written = fs::read_to_string(root().join("docs/conformance.md")).unwrap();
    let is_same = page(&root().join("testing/packet-rig/results")).unwrap() == written;
    assert!(is_same, "docs/conformance.md is another: service-conformance --page writes it");
}
