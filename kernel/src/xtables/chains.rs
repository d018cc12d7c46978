//! Tables, chains, and the jumps from built-in chains to a program's own.

/// A table of iptables that Kubernetes' proxies use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// The table `mangle`.
    Mangle,
    /// The table `filter`.
    Filter,
    /// The table `nat`.
    Nat,
}

impl Table {
    /// All tables, in the order in which changes of them are written.
    pub const ALL: [Self; 3] = [Self::Mangle, Self::Filter, Self::Nat];

    /// The name of the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }

    /// Returns the table with this name; `None` for tables that are not used, such as `raw`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.name() == name)
    }
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The name, at most 28 bytes.
    pub name: String,
    /// The rules: of `-A name rule`, only the last part ([`RuleText`](crate::xtables::RuleText)).
    pub rules: Vec<String>,
}

/// A rule of a built-in chain that leads to an owned chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The table of both chains.
    pub table: Table,
    /// The built-in chain.
    pub from: &'static str,
    /// The owned chain. No two jumps from one chain may lead to the same.
    pub to: &'static str,
    /// The rule, as in [`Chain::rules`].
    pub rule: String,
}

/// A description of the chains that a program owns.
#[derive(Clone, Debug, Default)]
pub struct OwnedChains {
    /// Chains with these names.
    pub names: Vec<(Table, &'static str)>,
    /// Chains whose names begin like this.
    pub prefixes: Vec<(Table, &'static str)>,
    /// Jumps that are removed together with the chains. A chain that any other rule leads to is
    /// emptied, not removed.
    pub jumps: Vec<Jump>,
}

impl OwnedChains {
    /// Whether the chain `name` of `table` is owned.
    pub fn contains(&self, table: Table, name: &str) -> bool {
        self.names.contains(&(table, name))
            || self.prefixes.iter().any(|(of, prefix)| *of == table && name.starts_with(prefix))
    }

    /// Returns the description without these chains and the jumps to them.
    pub fn without(mut self, chains: &[(Table, &str)]) -> Self {
        self.names.retain(|chain| !chains.contains(chain));
        self.jumps.retain(|jump| !chains.contains(&(jump.table, jump.to)));
        self
    }

    /// Whether a rule of the chain `from` that leads to `to` is one of [`Self::jumps`].
    pub fn has_jump(&self, table: Table, from: &str, to: &str) -> bool {
        self.jumps.iter().any(|jump| (jump.table, jump.from, jump.to) == (table, from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_left_out_with_the_jumps_to_them() {
        let jump = |table, to| Jump { table, from: "INPUT", to, rule: String::new() };
        let owned = OwnedChains {
            names: vec![(Table::Filter, "A"), (Table::Nat, "A"), (Table::Nat, "B")],
            prefixes: Vec::new(),
            jumps: vec![jump(Table::Filter, "A"), jump(Table::Nat, "A"), jump(Table::Nat, "B")],
        };
        let rest = owned.without(&[(Table::Nat, "A")]);
        assert_eq!(rest.names, [(Table::Filter, "A"), (Table::Nat, "B")]);
        assert_eq!(rest.jumps, [jump(Table::Filter, "A"), jump(Table::Nat, "B")]);
    }
}
