//! The output of `iptables-save`.

use std::{collections::HashMap, net::Ipv6Addr};

use crate::xtables::{Jump, Table};

/// The chains and rules of a family's tables.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    tables: HashMap<Table, HashMap<String, Vec<String>>>,
    rules: usize,
}

/// A table that `iptables-save` cannot show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table {} has rules that iptables cannot show", .0.name())]
pub struct Unreadable(pub Table);

impl Dump {
    /// Reads the output of `iptables-save`.
    ///
    /// # Errors
    ///
    /// If the program states that it cannot show one of [`Table::ALL`].
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        let mut dump = Self::default();
        let mut table = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::from_name(name);
            } else if let Some(comment) = line.strip_prefix('#') {
                check(comment)?;
            } else if line.starts_with("-A ") {
                dump.rules += 1;
                if let Some(table) = table {
                    dump.add_rule(table, line);
                }
            } else if let (Some(table), Some(chain)) = (table, line.strip_prefix(':')) {
                let name = chain.split(' ').next().unwrap_or(chain);
                dump.tables.entry(table).or_default().entry(name.to_owned()).or_default();
            }
        }
        Ok(dump)
    }

    fn add_rule(&mut self, table: Table, line: &str) {
        let rest = &line[3..];
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let rule = in_our_words(rule.trim_end());
        let chains = self.tables.entry(table).or_default();
        match chains.get_mut(chain) {
            Some(rules) => rules.push(rule),
            None => drop(chains.insert(chain.to_owned(), vec![rule])),
        }
    }

    /// Adds a jump to those that the tables hold.
    pub(crate) fn add_jump(&mut self, jump: &Jump) {
        self.rules += 1;
        let chains = self.tables.entry(jump.table).or_default();
        chains.entry(jump.from.to_owned()).or_default().push(jump.rule.clone());
    }

    /// The number of rules of all tables, also of those that [`Table`] does not name.
    pub fn rule_count(&self) -> usize {
        self.rules
    }

    /// Whether a chain exists.
    pub fn has_chain(&self, table: Table, name: &str) -> bool {
        self.chain(table, name).is_some()
    }

    /// The rules of a chain; `None` if the chain does not exist.
    pub fn chain(&self, table: Table, name: &str) -> Option<&[String]> {
        self.tables.get(&table)?.get(name).map(Vec::as_slice)
    }

    /// The chains of a table, with their rules.
    pub fn chains(&self, table: Table) -> impl Iterator<Item = (&str, &[String])> {
        let chains = self.tables.get(&table).into_iter().flatten();
        chains.map(|(name, rules)| (name.as_str(), rules.as_slice()))
    }
}

/// Returns a rule in the words of [`RuleText`](crate::xtables::RuleText): some C libraries print
/// addresses of IPv6 that begin with zeros as `::1.2.3.4`.
fn in_our_words(rule: &str) -> String {
    if !rule.contains(" ::") && !rule.contains(" [::") {
        return rule.to_owned();
    }
    let (mut words, mut is_address) = (Vec::new(), false);
    for word in rule.split(' ') {
        let text = word.trim_start_matches('[').split(['/', ']']).next().unwrap_or_default();
        words.push(match text.parse::<Ipv6Addr>() {
            Ok(ip) if is_address => word.replacen(text, &ip.to_string(), 1),
            _ => word.to_owned(),
        });
        is_address = ["-s", "-d", "--to-destination"].contains(&word);
    }
    words.join(" ")
}

/// Finds the comment that replaces a table with rules that are not of iptables.
fn check(comment: &str) -> Result<(), Unreadable> {
    if !comment.contains("is incompatible") {
        return Ok(());
    }
    let is_named = |table: &Table| comment.contains(&format!("`{}'", table.name()));
    Table::ALL.into_iter().find(is_named).map_or(Ok(()), |table| Err(Unreadable(table)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_kept_apart() {
        let text = "# Generated\n*raw\n:X - [0:0]\n-A X -j DROP\nCOMMIT\n*nat\n:OUTPUT ACCEPT [0:0]\n\
                    :KUBE-A - [0:0]\n-A KUBE-A -j DROP \n-A KUBE-A\nCOMMIT\n*filter\n:KUBE-A - [0:0]\nCOMMIT\n";
        let dump = Dump::parse(text).unwrap();
        assert_eq!(dump.rule_count(), 3);
        assert_eq!(dump.chain(Table::Nat, "KUBE-A").unwrap(), ["-j DROP", ""]);
        assert_eq!(dump.chain(Table::Filter, "KUBE-A").unwrap().len(), 0);
        assert!(dump.has_chain(Table::Nat, "OUTPUT") && !dump.has_chain(Table::Nat, "X"));
    }

    /// Each comparison would find another program's change otherwise, and write the rule again.
    #[test]
    fn addresses_are_read_as_they_are_written() {
        let rules = [
            "-s ::1.2.3.4/128 -d ::ffff:1.2.3.4/128 -j DROP",
            "-p tcp -m comment --comment \"a ::1.2.3.4 b\" -j DNAT --to-destination [::0.1.0.2]:80",
        ];
        let text: String = rules.iter().map(|rule| format!("-A X {rule}\n")).collect();
        let dump = Dump::parse(&format!("*nat\n:X - [0:0]\n{text}COMMIT\n")).unwrap();
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let [first, second] = [ip("::1.2.3.4"), ip("::1:2")];
        let expected = [
            format!("-s {first}/128 -d ::ffff:1.2.3.4/128 -j DROP"),
            format!(
                "-p tcp -m comment --comment \"a ::1.2.3.4 b\" -j DNAT --to-destination [{second}]:80"
            ),
        ];
        assert_eq!(dump.chain(Table::Nat, "X").unwrap(), expected);
    }

    #[test]
    fn tables_that_cannot_be_shown_are_errors() {
        let error = Dump::parse("# Table `nat' is incompatible, use 'nft' tool.\n").unwrap_err();
        assert_eq!(error, Unreadable(Table::Nat));
        Dump::parse("# Table `security' is incompatible, use 'nft' tool.\n").unwrap();
        Dump::parse("# Warning: iptables-legacy tables present, use iptables-legacy-save\n")
            .unwrap();
    }
}
