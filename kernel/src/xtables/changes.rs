//! The input of `iptables-restore`: changes of tables, in an order that the program accepts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use crate::xtables::{Chain, Table};

/// Changes of one family's tables. In each table chains are emptied first, then rules deleted,
/// inserted and appended, then chains removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    tables: BTreeMap<Table, TableChanges>,
    /// By how many rules the owned chains of a table grow ([`Changes::count_owned`]).
    owned: BTreeMap<Table, i64>,
}

/// The changes of a table, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TableChanges {
    /// Chains that are made, or emptied if they exist.
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

    /// Gives a chain its rules and no others, whether the chain exists or not.
    pub fn write_chain(&mut self, table: Table, chain: Chain) {
        let changes = self.table(table);
        changes.append.extend(chain.rules.into_iter().map(|rule| (chain.name.clone(), rule)));
        changes.empty.push(chain.name);
    }

    /// Removes all rules of a chain, and makes the chain if it does not exist.
    pub fn empty_chain(&mut self, table: Table, name: &str) {
        self.table(table).empty.push(name.to_owned());
    }

    /// Deletes a chain with its rules.
    pub fn remove_chain(&mut self, table: Table, name: &str) {
        self.empty_chain(table, name);
        self.table(table).remove.push(name.to_owned());
    }

    /// Deletes one rule.
    pub fn delete_rule(&mut self, table: Table, chain: &str, rule: &str) {
        self.table(table).delete.push((chain.to_owned(), rule.to_owned()));
    }

    /// Adds a rule at the head of a chain, above the rules that were inserted before.
    pub fn insert_rule(&mut self, table: Table, chain: &str, rule: &str) {
        self.table(table).insert.push((chain.to_owned(), rule.to_owned()));
    }

    /// Adds a rule at the end of a chain.
    pub fn append_rule(&mut self, table: Table, chain: &str, rule: &str) {
        self.table(table).append.push((chain.to_owned(), rule.to_owned()));
    }

    /// The tables that are changed.
    pub fn tables(&self) -> Vec<Table> {
        self.tables.keys().copied().collect()
    }

    /// Counts rules that a table's owned chains gain (or lose, if negative). The text does not
    /// depend on it: the count is for statistics.
    pub fn count_owned(&mut self, table: Table, more: i64) {
        *self.owned.entry(table).or_default() += more;
    }

    /// The sum of what was counted by [`Changes::count_owned`].
    pub fn owned(&self, table: Table) -> i64 {
        self.owned.get(&table).copied().unwrap_or(0)
    }

    /// The number of rules of a table that are inserted or appended.
    pub fn written(&self, table: Table) -> u64 {
        let rules = |changes: &TableChanges| changes.insert.len() + changes.append.len();
        self.tables.get(&table).map_or(0, |changes| rules(changes) as u64)
    }

    /// The number of chains and rules that are added, and the number that are removed.
    pub fn counts(&self) -> (usize, usize) {
        let add = |(added, removed), table: &TableChanges| {
            let emptied = table.empty.len();
            (
                added + table.insert.len() + table.append.len() + emptied - table.remove.len(),
                removed + table.delete.len() + table.remove.len(),
            )
        };
        self.tables.values().fold((0, 0), add)
    }

    /// The chains that are changed here and not in `expected`, in order.
    pub fn unexpected<'a>(
        &'a self,
        expected: &'a Self,
    ) -> impl Iterator<Item = (Table, &'a str)> + use<'a> {
        let expected: BTreeSet<_> = expected.chains().collect();
        let changed: BTreeSet<_> = self.chains().collect();
        changed.into_iter().filter(move |chain| !expected.contains(chain))
    }

    /// The chains that are changed, some of them several times.
    fn chains(&self) -> impl Iterator<Item = (Table, &str)> {
        self.tables.iter().flat_map(|(table, changes)| {
            let rules = changes.delete.iter().chain(&changes.insert).chain(&changes.append);
            let chains = changes.empty.iter().chain(&changes.remove);
            chains.chain(rules.map(|(chain, _)| chain)).map(|chain| (*table, chain.as_str()))
        })
    }

    /// Returns the text for `iptables-restore --noflush`; empty if nothing changes.
    pub fn to_text(&self) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_written_in_an_order_that_works() {
        let mut changes = Changes::default();
        assert_eq!(changes.to_text(), "");
        changes.append_rule(Table::Nat, "A", "-j X");
        changes.insert_rule(Table::Nat, "A", "-j Y");
        changes.delete_rule(Table::Nat, "A", "-j Z");
        changes.remove_chain(Table::Nat, "B");
        changes.write_chain(Table::Filter, Chain { name: "C".into(), rules: vec!["-j X".into()] });
        let text = "*filter\n:C - [0:0]\n-A C -j X\nCOMMIT\n*nat\n:B - [0:0]\n-D A -j Z\n\
                    -I A 1 -j Y\n-A A -j X\n-X B\nCOMMIT\n";
        assert_eq!(changes.to_text(), text);
        assert_eq!(changes.counts(), (4, 2));
        assert_eq!(changes.written(Table::Nat), 2);
    }

    #[test]
    fn chains_that_only_one_side_changes_are_unexpected() {
        let (mut found, mut expected) = (Changes::default(), Changes::default());
        found.append_rule(Table::Nat, "B", "-j X");
        found.append_rule(Table::Nat, "A", "-j X");
        found.empty_chain(Table::Filter, "A");
        expected.remove_chain(Table::Nat, "A");
        let chains: Vec<_> = found.unexpected(&expected).collect();
        assert_eq!(chains, [(Table::Filter, "A"), (Table::Nat, "B")]);
    }
}
