//! The page `docs/conformance.md`: the behaviours of `docs/semantics.md` that packets show, with the
//! results of the last runs (`testing/packet-rig/results`).

use std::{collections::BTreeSet, env, fs, path::Path};

use packet_rig::{
    Case,
    backend::{BACKENDS, REFERENCES},
    kube_proxy::Release,
    results::{Outcome, Results},
};

use super::semantics::{cases, document, names, root, rows};

/// Writes the page, in place of comparing it.
const WRITE: &str = "SWITCHYARD_WRITE_DOCS";

const HEAD: &str = "# Conformance

The behaviours of [semantics.md](semantics.md) that packets show, with their sources, and the results of each backend
and of genuine kube-proxy in the same network of namespaces. `make conformance` runs the cases of the backends that
`SWITCHYARD_BACKENDS` names, and writes this page of the results (`testing/packet-rig/results`). `make conformance-ipvs`
does the same for ipvs mode, in a virtual machine. `KUBE_PROXY` names the program of genuine kube-proxy
([CONTRIBUTING.md](../CONTRIBUTING.md#with-genuine-kube-proxy)). A case is repeated by its name:

```
cargo build -p switchyard-agent -p api-standin
SWITCHYARD_BACKENDS=nftables SWITCHYARD_CASES=clusterip::dual-stack cargo test -p packet-rig --test cases
```

*Passes*: in all cases of the row. *Differs*: the proxy does otherwise, and a run fails if it does no longer. *Not*: the
backend cannot do it. Numbers are those of the [notes](#notes). Kube-proxy's columns are of
the release below, whose nftables mode was an alpha if that is 1.30; the differences of later releases are in
[semantics.md](semantics.md#where-kube-proxy-behaves-otherwise).
";

/// The notes of the page: cases, and what is noted about these.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    fn number(&mut self, note: String) -> usize {
        let place = self.0.iter().position(|known| *known == note).unwrap_or_else(|| {
            self.0.push(note);
            self.0.len() - 1
        });
        place + 1
    }
}

/// Returns the cell of a row's cases with a backend.
fn cell(backend: &str, results: &Results, row: &[(&str, &Case)], notes: &mut Notes) -> String {
    let outcomes: BTreeSet<Option<Outcome>> =
        row.iter().map(|(name, _)| results.cases.get(*name).copied()).collect();
    let has = |outcome| outcomes.contains(&Some(outcome));
    let word = match () {
        () if has(Outcome::Fails) => "**fails**",
        () if has(Outcome::Differs) => "differs",
        () if has(Outcome::Passes) => "passes",
        () if has(Outcome::DoesNotApply) => "not",
        () => return "not run".to_owned(),
    };
    let mut numbers = BTreeSet::new();
    for (name, case) in row {
        let why = match results.cases.get(*name) {
            Some(Outcome::Differs) => case.differs(backend, Release::of(&results.proxy)),
            Some(Outcome::DoesNotApply) => case.not_for(backend),
            Some(Outcome::NotRun) => Some("Not run: the machine cannot."),
            Some(Outcome::Passes | Outcome::Fails) => None,
            None => Some("Not run."),
        };
        if let Some(why) = why {
            numbers.insert(notes.number(format!("`{name}`: {}", why.trim())));
        }
    }
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match numbers.is_empty() {
        true => word.to_owned(),
        false => format!("{word} ({})", numbers.join(", ")),
    }
}

fn page(directory: &Path) -> String {
    let runs: Vec<(&str, Results)> = BACKENDS
        .into_iter()
        .chain(REFERENCES)
        .filter_map(|name| Some((name, Results::read(directory, name).unwrap()?)))
        .collect();
    let cases = cases();
    let mut page =
        format!("{HEAD}\n| Backend | Proxy | Run | Kernel | Programs |\n|---|---|---|---|---|\n");
    for (backend, run) in &runs {
        let Results { proxy, date, kernel, programs, .. } = run;
        page += &format!("| `{backend}` | {proxy} | {date} | {kernel} | {programs} |\n");
    }
    let backends: Vec<&str> = runs.iter().map(|(name, _)| *name).collect();
    let mut notes = Notes::default();
    let mut heading = None;
    for line in document().lines() {
        if line.starts_with("## ") {
            heading = Some(line.to_owned());
        }
        let Some(cells) = rows(line, 4).pop() else { continue };
        let shown: Vec<(&str, &Case)> = names(cells[3])
            .into_iter()
            .filter_map(|name| cases.get_key_value(name).map(|(name, case)| (name.as_str(), case)))
            .collect();
        if shown.is_empty() {
            continue;
        }
        if let Some(heading) = heading.take() {
            page += &format!(
                "\n{heading}\n\n| Behaviour | Source | {} | Cases |\n",
                backends.join(" | ")
            );
            page += &format!("|{}\n", "---|".repeat(backends.len() + 3));
        }
        let results: Vec<String> =
            runs.iter().map(|(name, run)| cell(name, run, &shown, &mut notes)).collect();
        let named: Vec<String> = shown.iter().map(|(name, _)| format!("`{name}`")).collect();
        let cells = [cells[0], cells[1], &results.join(" | "), &named.join(", ")];
        page += &format!("| {} |\n", cells.join(" | "));
    }
    page += "\n## Notes\n\n";
    for (place, note) in notes.0.iter().enumerate() {
        page += &format!("{}. {note}\n", place + 1);
    }
    page
}

#[test]
fn the_page_is_made_of_the_results() {
    let file = root().join("docs/conformance.md");
    let made = page(&root().join("testing/packet-rig/results"));
    if env::var_os(WRITE).is_some() {
        fs::write(&file, &made).unwrap();
    }
    let is_same = fs::read_to_string(&file).is_ok_and(|written| written == made);
    assert!(is_same, "docs/conformance.md is another: {WRITE}=1 writes it");
}
