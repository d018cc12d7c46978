//! A model of the tables of one family, and of the programs that read and change them.

use std::{
    collections::BTreeMap,
    fmt::Write,
    os::unix::process::ExitStatusExt,
    process::{ExitStatus, Output},
    sync::{Arc, Mutex, PoisonError},
};

use switchyard_model::IpFamily;

use crate::xtables::{Table, ToolError, rule::Words, target};

/// A machine on which the programs run that a test uses, in place of this one.
pub trait Machine: Send {
    /// Runs a program of a family, which is named by what its name ends in (`-save`, `-restore`, or
    /// nothing), with arguments and an input; returns what the program says, or why it did not end.
    ///
    /// # Errors
    /// What running the program results in.
    fn run(
        &mut self,
        family: IpFamily,
        program: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<Ended, ToolError>;

    /// The generation of the tables, which each commit increases.
    fn generation(&mut self) -> u32;
}

/// The end of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The exit status.
    pub status: i32,
    /// The output, or if the status is not zero the message.
    pub text: String,
}

impl From<Ended> for Output {
    fn from(ended: Ended) -> Self {
        let (status, text) = (ExitStatus::from_raw(ended.status << 8), ended.text.into_bytes());
        match status.success() {
            true => Self { status, stdout: text, stderr: Vec::new() },
            false => Self { status, stdout: Vec::new(), stderr: text },
        }
    }
}

/// A machine that several have.
#[derive(Clone)]
pub struct SharedMachine(pub Arc<Mutex<dyn Machine>>);

impl SharedMachine {
    pub(crate) fn run(
        &self,
        family: IpFamily,
        program: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<Output, ToolError> {
        let mut machine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        machine.run(family, program, arguments, input).map(Into::into)
    }

    pub(crate) fn generation(&self) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).generation()
    }
}

impl PartialEq for SharedMachine {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedMachine {}

impl std::fmt::Debug for SharedMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedMachine")
    }
}

/// The targets of rules that are no chains.
const TARGETS: [&str; 7] = ["ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "DNAT", "MASQUERADE"];

/// The chains of one table, by their names.
type Chains = BTreeMap<String, Vec<String>>;

/// The chains and rules of a family, as `iptables-save` prints them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables(BTreeMap<Table, Chains>);

impl Default for Tables {
    fn default() -> Self {
        let built_in = |table: Table| {
            let chains = built_in(table).iter();
            (table, chains.map(|name| ((*name).to_owned(), Vec::new())).collect())
        };
        Self(Table::ALL.map(built_in).into())
    }
}

fn built_in(table: Table) -> &'static [&'static str] {
    match table {
        Table::Mangle => &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
        Table::Filter => &["INPUT", "FORWARD", "OUTPUT"],
        Table::Nat => &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"],
    }
}

impl Tables {
    /// The chains of a table, with their rules.
    pub fn chains(&self, table: Table) -> impl Iterator<Item = (&str, &[String])> {
        let chains = self.0.get(&table).into_iter().flatten();
        chains.map(|(name, rules)| (name.as_str(), rules.as_slice()))
    }

    /// The rules of a chain; `None` if there is no such chain.
    pub fn chain(&self, table: Table, name: &str) -> Option<&[String]> {
        Some(self.0.get(&table)?.get(name)?)
    }

    /// The output of `iptables-save`.
    pub fn save(&self) -> String {
        let mut text = String::new();
        for (table, chains) in &self.0 {
            // Writing to a String does not fail.
            let _ = writeln!(text, "*{}", table.name());
            for name in chains.keys() {
                let _ = writeln!(text, ":{name} - [0:0]");
            }
            for (name, rules) in chains {
                for rule in rules {
                    let _ = writeln!(text, "-A {name} {rule}");
                }
            }
            let _ = writeln!(text, "COMMIT");
        }
        text
    }

    /// Does what `iptables-restore --noflush` does with an input: each `COMMIT` commits a table,
    /// and `committed` is called with the result.
    ///
    /// # Errors
    /// The number of the line that the program refuses, counted from one. What comes before that
    /// line's table is committed.
    pub fn restore(&mut self, input: &str, mut committed: impl FnMut(&Self)) -> Result<(), usize> {
        let mut under_way: Option<(Table, Chains)> = None;
        for (line, number) in input.lines().zip(1usize..) {
            if let Some(name) = line.strip_prefix('*') {
                let table = Table::from_name(name).ok_or(number)?;
                under_way = Some((table, self.0.get(&table).cloned().unwrap_or_default()));
            } else if line == "COMMIT" {
                let (table, chains) = under_way.take().ok_or(number)?;
                self.0.insert(table, chains);
                committed(self);
            } else {
                let (table, chains) = under_way.as_mut().ok_or(number)?;
                change(*table, chains, line).ok_or(number)?;
            }
        }
        Ok(())
    }

    /// Does what `iptables` does with these arguments about a rule or a chain: `-N`, `-C`, `-A` or
    /// `-I` in a table.
    pub fn command(&mut self, arguments: &[&str]) -> Option<()> {
        let ["-w", _, "-t", table, command, chain, rule @ ..] = arguments else { return None };
        let table = Table::from_name(table)?;
        let chains = self.0.get_mut(&table)?;
        match *command {
            "-N" if chains.contains_key(*chain) => None,
            "-N" => change(table, chains, &format!(":{chain} - [0:0]")),
            "-C" => {
                let asked: Vec<_> = rule.iter().flat_map(|word| word.split(' ')).collect();
                let words = |rule| Words(rule).flat_map(|word| word.split(' '));
                chains
                    .get(*chain)?
                    .iter()
                    .any(|rule| words(rule).eq(asked.iter().copied()))
                    .then_some(())
            }
            "-A" | "-I" => {
                let quoted = |word: &&str| match word.contains(' ') {
                    true => format!("\"{word}\""),
                    false => (*word).to_owned(),
                };
                let rule: Vec<_> = rule.iter().map(quoted).collect();
                let place = if *command == "-I" { " 1" } else { "" };
                change(table, chains, &format!("{command} {chain}{place} {}", rule.join(" ")))
            }
            _ => None,
        }
    }
}

/// Makes the change of one line; `None` if the kernel or the program refuses it.
fn change(table: Table, chains: &mut Chains, line: &str) -> Option<()> {
    if let Some(chain) = line.strip_prefix(':') {
        let name = chain.split(' ').next()?;
        chains.entry(name.to_owned()).or_default().clear();
        return (name.len() <= 28).then_some(());
    }
    let (command, rest) = line.split_once(' ')?;
    let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    let leads_nowhere = |chains: &Chains, rule| {
        target(rule).is_some_and(|to| !TARGETS.contains(&to) && !chains.contains_key(to))
    };
    match command {
        "-A" if leads_nowhere(chains, rule) => None,
        "-A" => {
            chains.get_mut(name)?.push(rule.to_owned());
            Some(())
        }
        "-I" => {
            let rule = rule.strip_prefix("1 ")?;
            if leads_nowhere(chains, rule) {
                return None;
            }
            chains.get_mut(name)?.insert(0, rule.to_owned());
            Some(())
        }
        "-D" => {
            let rules = chains.get_mut(name)?;
            let place = rules.iter().position(|known| known == rule)?;
            rules.remove(place);
            Some(())
        }
        "-X" => {
            let is_led_to = chains.values().flatten().any(|rule| target(rule) == Some(name));
            let is_empty = chains.get(name)?.is_empty();
            if is_led_to || !is_empty || built_in(table).contains(&name) {
                return None;
            }
            chains.remove(name);
            Some(())
        }
        _ => None,
    }
}
