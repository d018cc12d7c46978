//! Single commands of the `iptables` programs, as kube-proxy runs them before each sync.

use std::collections::BTreeSet;

use packet_rig::NetNs;
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use super::{Result, programs::program};

/// Commands on one family's tables.
pub struct Host<'a> {
    pub node: &'a NetNs,
    pub family: IpFamily,
    pub flavour: Flavour,
}

impl Host<'_> {
    /// Runs one command; `action` is `-N`, `-I`, and so on.
    pub fn run(&self, table: &str, action: &str, chain: &str, rule: &[&str]) -> Result<()> {
        let arguments = [&["-w", "5", action, chain, "-t", table], rule].concat();
        self.node.output(&program(self.flavour, self.family, ""), &arguments, "")?;
        Ok(())
    }

    pub fn has(&self, table: &str, chain: &str, rule: &[&str]) -> bool {
        self.run(table, "-C", chain, rule).is_ok()
    }

    /// Runs the command if the chain lacks the rule.
    pub fn ensure(&self, table: &str, action: &str, chain: &str, rule: &[&str]) -> Result<()> {
        match self.has(table, chain, rule) {
            true => Ok(()),
            false => self.run(table, action, chain, rule),
        }
    }

    pub fn chains(&self, table: &str) -> Result<BTreeSet<String>> {
        let program = program(self.flavour, self.family, "-save");
        let text = self.node.output(&program, &["-t", table], "")?;
        let names = text.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        Ok(names.map(str::to_owned).collect())
    }
}

/// The words of a jump.
pub fn jump<'a>(matching: &'a str, comment: &'a str, to: &'a str) -> Vec<&'a str> {
    let matching = matching.split_whitespace();
    matching.chain(["-m", "comment", "--comment", comment, "-j", to]).collect()
}
