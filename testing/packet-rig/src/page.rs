//! The page `docs/conformance.md`: the behaviours of `docs/semantics.md` that packets show, with
//! the results of the last runs (`testing/packet-rig/results`).

use std::{collections::BTreeSet, path::Path};

use crate::{
    backend,
    case::Case,
    error::Result,
    kube_proxy::Release,
    results::{Outcome, Results},
    subject::WITHOUT_FLAGS,
    suite,
};

pub const SEMANTICS: &str = include_str!("../../../docs/semantics.md");

const HEAD: &str = "# Conformance

The behaviours of [semantics.md](semantics.md) that packets show, with their sources, and the results of each backend
and of genuine kube-proxy in the same network of namespaces. `make conformance` writes it: it has `service-conformance`
run all cases with each backend, and with `KUBE_PROXY=PROGRAM` with that kube-proxy; `make conformance-ipvs` does the
same for ipvs mode, in a virtual machine. Any other proxy gets a column in a page of one's own:

```
cargo build --workspace --bins    # then, as root:
target/debug/service-conformance --proxy 'PROGRAM --kubeconfig {kubeconfig} {flags}' --name other \\
    --results DIRECTORY --page conformance.md
```

A cell is repeated by the command of its column, followed by the names of its row's cases. *Passes*: in all cases of the
row. *Differs*: the proxy does otherwise, and a run fails if one of ours or kube-proxy does no longer. *Not*: the
backend cannot do it. Numbers are those of the [notes](#notes). Kube-proxy's columns are of
the release below; [semantics.md](semantics.md#where-kube-proxy-behaves-otherwise) has the differences of 1.30 as well.
";

/// A note of cells whose cases expect a client's address, which no proxy in user space keeps.
const SEEN: &str = "Servers see the node's address in place of the client's, which the case expects of other backends \
    ([why](userspace.md)).";

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
        // Of another proxy, no difference is known before.
        () if has(Outcome::Fails) && !backend::is_known(backend) => "differs",
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
            Some(Outcome::DoesNotApply) => case.not_for(backend).or(Some(WITHOUT_FLAGS)),
            Some(Outcome::NotRun) => Some("Not run: the machine cannot."),
            Some(Outcome::Fails) => results.failures.get(*name).map(String::as_str),
            Some(Outcome::Passes) => None,
            None => Some("Not run."),
        };
        if let Some(why) = why {
            numbers.insert(notes.number(format!("`{name}`: {}", why.trim())));
        }
    }
    let seen = backend::seen_with(backend);
    if has(Outcome::Passes) && row.iter().any(|(_, case)| case.expects_clients(seen)) {
        numbers.insert(notes.number(SEEN.to_owned()));
    }
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    match numbers.is_empty() {
        true => word.to_owned(),
        false => format!("{word} ({})", numbers.join(", ")),
    }
}

/// The page of the results in a directory.
///
/// # Errors
///
/// If the results cannot be read.
pub fn page(directory: &Path) -> Result<String> {
    let runs = Results::all(directory)?;
    let cases = suite::cases()?;
    let mut page = format!(
        "{HEAD}\n| Backend | Proxy | Run | Kernel | Programs | Command |\n|---|---|---|---|---|---|\n"
    );
    for (backend, run) in &runs {
        let Results { proxy, date, kernel, programs, .. } = run;
        let command = match backend::BACKENDS.contains(&backend.as_str()) {
            true => format!("--backend {backend}"),
            false => format!("--name {backend} --proxy '{}'", run.command),
        };
        page += &format!(
            "| `{backend}` | {proxy} | {date} | {kernel} | {programs} | `service-conformance {command}` |\n"
        );
    }
    let backends: Vec<&str> = runs.iter().map(|(name, _)| name.as_str()).collect();
    let mut notes = Notes::default();
    let mut heading = None;
    for line in SEMANTICS.lines() {
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
    Ok(page)
}

/// The cells of every row with so many cells.
pub fn rows(text: &str, count: usize) -> Vec<Vec<&str>> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| line.split(" | ").map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.len() == count && !["Behaviour", "Cases"].contains(&cells[0]))
        .collect()
}

pub fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}
