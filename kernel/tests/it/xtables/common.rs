//! Parts shared by the tests: tools, and a set of chains.

use std::{path::PathBuf, process::Command};

use switchyard_kernel::xtables::{
    Chain, Changes, Flavour, InstalledPrograms, Jump, OwnedChains, ProgramOptions, RuleText, Table,
    Tools,
};
use switchyard_model::PerFamily;
use tempfile::NamedTempFile;
pub use test_netns::{in_namespace, wait::PATIENCE};

pub const CANARY: &str = "TEST-CANARY";

thread_local! {
    /// The xtables lock of this test, so that tests that run at the same time do not wait for each
    /// other.
    static LOCK: NamedTempFile = NamedTempFile::new().expect("a file");
}

fn lock_file() -> PathBuf {
    LOCK.with(|file| file.path().to_owned())
}

/// Returns options with the lock of this test.
pub fn options() -> ProgramOptions {
    ProgramOptions { lock_file: Some(lock_file()), ..ProgramOptions::default() }
}

/// Returns the tools of a flavour for both families.
pub fn tools(flavour: Flavour) -> Tools {
    let installed = InstalledPrograms::find(&options());
    installed.choose(Some(flavour), PerFamily { v4: true, v6: true }).expect("installed")
}

/// Runs a program with arguments that are separated by spaces.
pub fn run(flavour: Flavour, base: &str, arguments: &str) {
    let mut command = Command::new(format!("{base}-{flavour}"));
    command.env("XTABLES_LOCKFILE", lock_file()).arg("-w");
    let status = command.args(arguments.split(' ')).status();
    assert!(status.expect("it is installed").success(), "{base} {arguments}");
}

pub fn jumps() -> Vec<Jump> {
    let jump = |table, from, rule: RuleText| {
        let rule = rule.comment("a test").jump("TEST-MAIN");
        Jump { table, from, to: "TEST-MAIN", rule }
    };
    vec![
        jump(Table::Filter, "INPUT", RuleText::new().ct_state("NEW")),
        jump(Table::Filter, "OUTPUT", RuleText::new()),
        jump(Table::Nat, "POSTROUTING", RuleText::new()),
    ]
}

pub fn owned() -> OwnedChains {
    OwnedChains {
        names: Table::ALL
            .map(|table| (table, CANARY))
            .into_iter()
            .chain([(Table::Filter, "TEST-MAIN"), (Table::Nat, "TEST-MAIN")])
            .collect(),
        prefixes: vec![(Table::Nat, "TEST-PORT-")],
        jumps: jumps(),
    }
}

/// The changes that make the owned chains, and the jumps to them.
pub fn chains() -> Changes {
    let mut changes = Changes::default();
    for table in Table::ALL {
        changes.write_chain(table, Chain { name: CANARY.into(), rules: Vec::new() });
    }
    let rules = vec![RuleText::new().jump("RETURN")];
    changes.write_chain(Table::Filter, Chain { name: "TEST-MAIN".into(), rules: rules.clone() });
    changes.write_chain(Table::Nat, Chain { name: "TEST-PORT-1".into(), rules });
    let rules = vec![RuleText::new().jump("TEST-PORT-1")];
    changes.write_chain(Table::Nat, Chain { name: "TEST-MAIN".into(), rules });
    for jump in jumps() {
        changes.insert_rule(jump.table, jump.from, &jump.rule);
    }
    changes
}
