//! What `iptables-save` prints.

use std::collections::HashMap;

use super::{Programs, ToolError};
use crate::layout::Table;

/// The chains and rules of the tables that we use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dump {
    tables: HashMap<Table, HashMap<String, Vec<String>>>,
    rules: usize,
}

impl Dump {
    /// Reads `text`, which `programs` printed.
    pub(crate) fn parse(programs: &Programs, text: &str) -> Result<Self, ToolError> {
        let mut dump = Self::default();
        let mut table = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::called(name);
            } else if let Some(comment) = line.strip_prefix('#') {
                check(programs, comment)?;
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
        let rule = rule.trim_end().to_owned();
        let chains = self.tables.entry(table).or_default();
        match chains.get_mut(chain) {
            Some(rules) => rules.push(rule),
            None => drop(chains.insert(chain.to_owned(), vec![rule])),
        }
    }

    /// All rules, those of tables that we do not use as well.
    pub(crate) fn rule_count(&self) -> usize {
        self.rules
    }

    pub(crate) fn has_chain(&self, table: Table, name: &str) -> bool {
        self.chain(table, name).is_some()
    }

    /// The rules of a chain, if there is one of that name.
    pub(crate) fn chain(&self, table: Table, name: &str) -> Option<&[String]> {
        self.tables.get(&table)?.get(name).map(Vec::as_slice)
    }

    /// The chains of a table, with their rules.
    pub(crate) fn chains(&self, table: Table) -> impl Iterator<Item = (&str, &[String])> {
        let chains = self.tables.get(&table).into_iter().flatten();
        chains.map(|(name, rules)| (name.as_str(), rules.as_slice()))
    }
}

/// A table that cannot be shown is mentioned in a comment.
fn check(programs: &Programs, comment: &str) -> Result<(), ToolError> {
    if !comment.contains("is incompatible") {
        return Ok(());
    }
    let named = |table: &&Table| comment.contains(&format!("`{}'", table.name()));
    match Table::ALL.iter().find(named) {
        Some(table) => Err(ToolError::Incompatible {
            program: programs.save.display().to_string(),
            table: table.name(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proxy_core::model::IpFamily;

    use super::*;
    use crate::tool::Flavour;

    fn parse(text: &str) -> Result<Dump, ToolError> {
        let programs = Programs {
            flavour: Flavour::Nft,
            family: IpFamily::V4,
            main: "iptables".into(),
            save: "iptables-save".into(),
            restore: "iptables-restore".into(),
        };
        Dump::parse(&programs, text)
    }

    #[test]
    fn tables_are_kept_apart() {
        let text = "# Generated\n*raw\n:X - [0:0]\n-A X -j DROP\nCOMMIT\n*nat\n:OUTPUT ACCEPT [0:0]\n\
                    :KUBE-A - [0:0]\n-A KUBE-A -j DROP \n-A KUBE-A\nCOMMIT\n*filter\n:KUBE-A - [0:0]\nCOMMIT\n";
        let dump = parse(text).unwrap();
        assert_eq!(dump.rule_count(), 3);
        assert_eq!(dump.chain(Table::Nat, "KUBE-A").unwrap(), ["-j DROP", ""]);
        assert_eq!(dump.chain(Table::Filter, "KUBE-A").unwrap().len(), 0);
        assert!(dump.has_chain(Table::Nat, "OUTPUT") && !dump.has_chain(Table::Nat, "X"));
    }

    #[test]
    fn tables_that_cannot_be_shown_are_errors() {
        let error = parse("# Table `nat' is incompatible, use 'nft' tool.\n").unwrap_err();
        assert!(error.to_string().contains("the table nat"), "{error}");
        parse("# Table `security' is incompatible, use 'nft' tool.\n").unwrap();
        parse("# Warning: iptables-legacy tables present, use iptables-legacy-save\n").unwrap();
    }
}
