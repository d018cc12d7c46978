//! What `iptables-restore` reads: changes of tables, in an order that it takes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use proxy_core::{model::IpFamily, proxier::Drift};

use crate::layout::{Chain, Table};

/// The changes of one family's tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    tables: BTreeMap<Table, TableChanges>,
    /// By how many rules our chains in a table grow; all of them, if everything was compared.
    owned: BTreeMap<Table, i64>,
}

/// The changes of a table, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TableChanges {
    /// Chains that are made, or lose their rules.
    empty: Vec<String>,
    delete: Vec<(String, String)>,
    insert: Vec<(String, String)>,
    append: Vec<(String, String)>,
    remove: Vec<String>,
}

impl Changes {
    fn table(&mut self, table: Table) -> &mut TableChanges {
        self.tables.entry(table).or_default()
    }

    /// Gives a chain these rules and no others, whether it exists or not.
    pub(crate) fn write_chain(&mut self, table: Table, chain: Chain) {
        let changes = self.table(table);
        changes.append.extend(chain.rules.into_iter().map(|rule| (chain.name.clone(), rule)));
        changes.empty.push(chain.name);
    }

    /// Takes a chain's rules.
    pub(crate) fn empty_chain(&mut self, table: Table, name: &str) {
        self.table(table).empty.push(name.to_owned());
    }

    /// Deletes a chain, whether it has rules or not.
    pub(crate) fn remove_chain(&mut self, table: Table, name: &str) {
        self.empty_chain(table, name);
        self.table(table).remove.push(name.to_owned());
    }

    /// Deletes one rule.
    pub(crate) fn delete_rule(&mut self, table: Table, chain: &str, rule: &str) {
        self.table(table).delete.push((chain.to_owned(), rule.to_owned()));
    }

    /// Adds a rule at the head of a chain, above those that were added before.
    pub(crate) fn insert_rule(&mut self, table: Table, chain: &str, rule: &str) {
        self.table(table).insert.push((chain.to_owned(), rule.to_owned()));
    }

    /// Adds a rule at the end of a chain.
    pub(crate) fn append_rule(&mut self, table: Table, chain: &str, rule: &str) {
        self.table(table).append.push((chain.to_owned(), rule.to_owned()));
    }

    /// Our chains in a table have so many rules more, or less.
    pub(crate) fn own(&mut self, table: Table, more: i64) {
        *self.owned.entry(table).or_default() += more;
    }

    /// By how many rules our chains in a table grow.
    pub(crate) fn owned(&self, table: Table) -> i64 {
        self.owned.get(&table).copied().unwrap_or(0)
    }

    /// How many rules of a table are written.
    pub(crate) fn written(&self, table: Table) -> u64 {
        let rules = |changes: &TableChanges| changes.insert.len() + changes.append.len();
        self.tables.get(&table).map_or(0, |changes| rules(changes) as u64)
    }

    /// How many chains and rules are added, and how many are removed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let add = |(added, removed), table: &TableChanges| {
            let emptied = table.empty.len();
            (
                added + table.insert.len() + table.append.len() + emptied - table.remove.len(),
                removed + table.delete.len() + table.remove.len(),
            )
        };
        self.tables.values().fold((0, 0), add)
    }

    /// Counts the chains that are changed though nothing has asked for it: those that `expected`
    /// does not change.
    pub(crate) fn tell_drift(&self, family: IpFamily, expected: &Self, drift: &mut Drift) {
        let expected: BTreeSet<_> = expected.chains().collect();
        for (table, chain) in self.chains().collect::<BTreeSet<_>>().difference(&expected) {
            drift.found(|| {
                let table = table.name();
                format!("the {family} chain {chain} in {table} was missing, altered or added")
            });
        }
    }

    /// The chains that are changed; some more than once.
    fn chains(&self) -> impl Iterator<Item = (Table, &str)> {
        self.tables.iter().flat_map(|(table, changes)| {
            let rules = changes.delete.iter().chain(&changes.insert).chain(&changes.append);
            let chains = changes.empty.iter().chain(&changes.remove);
            chains.chain(rules.map(|(chain, _)| chain)).map(|chain| (*table, chain.as_str()))
        })
    }

    /// The text; empty if there is nothing to change.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (table, changes) in &self.tables {
            // Writing to a String does not fail.
            let _ = changes.write(*table, &mut text);
        }
        text
    }
}

impl TableChanges {
    fn write(&self, table: Table, text: &mut String) -> std::fmt::Result {
        writeln!(text, "*{}", table.name())?;
        for chain in &self.empty {
            writeln!(text, ":{chain} - [0:0]")?;
        }
        for (chain, rule) in &self.delete {
            writeln!(text, "-D {chain} {rule}")?;
        }
        for (chain, rule) in &self.insert {
            writeln!(text, "-I {chain} 1 {rule}")?;
        }
        for (chain, rule) in &self.append {
            writeln!(text, "-A {chain} {rule}")?;
        }
        for chain in &self.remove {
            writeln!(text, "-X {chain}")?;
        }
        writeln!(text, "COMMIT")
    }
}
