//! Parts shared by the tests: network namespaces, the programs, and a node with a backend.

use std::{path::PathBuf, process::Command};

use switchyard_core::{
    config::{LocalPodsConfig, NodeConfig},
    testing::{NODE, Stepped},
};
use switchyard_iptables::{Flavour, IptablesConfig, IptablesProxier, ProgramOptions};
use tempfile::NamedTempFile;
pub use test_netns::in_namespace;
use test_netns::{run_command, wait::until_ok};

thread_local! {
    /// The xtables lock of this test, so that tests that run at the same time do not wait for each
    /// other.
    static LOCK: NamedTempFile = NamedTempFile::new().expect("a file");
}

pub fn with_each(work: fn(Flavour)) {
    for flavour in Flavour::ALL {
        in_namespace(move || work(flavour));
    }
}

fn lock_file() -> PathBuf {
    LOCK.with(|file| file.path().to_owned())
}

/// Returns a configuration for one flavour.
pub fn iptables_config(flavour: Flavour) -> IptablesConfig {
    let programs = ProgramOptions { lock_file: Some(lock_file()), ..ProgramOptions::default() };
    let mut made = IptablesConfig::default();
    made.flavour = Some(flavour);
    made.programs = programs;
    made
}

/// Returns the backend with one flavour.
pub fn proxier(flavour: Flavour) -> IptablesProxier {
    let config = iptables_config(flavour);
    IptablesProxier::new(config).expect("iptables is installed")
}

/// The iptables programs: 4 or 6, of one flavour.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    pub flavour: Flavour,
    pub base: &'static str,
}

impl Tables {
    pub fn both(flavour: Flavour) -> [Self; 2] {
        ["iptables", "ip6tables"].map(|base| Self { flavour, base })
    }

    pub fn v4(flavour: Flavour) -> Self {
        Self { flavour, base: "iptables" }
    }

    fn program(&self, suffix: &str) -> Command {
        let mut command = Command::new(format!("{}-{}{suffix}", self.base, self.flavour));
        command.env("XTABLES_LOCKFILE", lock_file());
        command
    }

    /// Runs the main program, which must succeed.
    pub fn run(&self, arguments: &str) {
        let result = run_command(self.program("").arg("-w").args(arguments.split(' ')), "");
        result.unwrap_or_else(|error| panic!("{arguments}: {error}"));
    }

    /// Restores `input`, with counters, without flushing.
    pub fn restore(&self, input: &str) {
        let mut program = self.program("-restore");
        let result = run_command(program.args(["-w", "5", "--noflush", "--counters"]), input);
        result.unwrap_or_else(|error| panic!("{error}: {input}"));
    }

    /// Returns tables, chains and rules, in order, without counters and comments. An engine may
    /// change them in the meantime.
    pub fn save(&self) -> String {
        let text = until_ok(|| run_command(&mut self.program("-save"), ""));
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let without_counters = |line: &str| match line.strip_prefix(':') {
            Some(_) => line.split(" [").next().unwrap_or(line).to_owned() + "\n",
            None => line.to_owned() + "\n",
        };
        lines.map(without_counters).collect()
    }

    /// Returns a table, with counters and without comments.
    pub fn save_with_counters(&self, table: &str) -> String {
        let text = run_command(self.program("-save").args(["-c", "-t", table]), "");
        let text = text.expect("saved");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Returns the rules of a chain.
    pub fn chain(&self, table: &str, chain: &str) -> Vec<String> {
        let text = self.save();
        let rules = text.lines().skip_while(|line| *line != format!("*{table}"));
        let rules = rules.take_while(|line| *line != "COMMIT");
        let prefix = format!("-A {chain} ");
        rules.filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
    }
}

pub type Node = Stepped<IptablesProxier>;

/// Returns a node with this configuration, in the namespace of this thread.
pub fn start(flavour: Flavour, config: NodeConfig) -> Node {
    Node::new(config, proxier(flavour))
}

pub fn config() -> NodeConfig {
    let pods = LocalPodsConfig::ClusterCidr(vec!["10.244.0.0/16".parse().expect("a network")]);
    let mut made = NodeConfig::new(NODE);
    made.local_pods = pods;
    made.localhost_node_ports = true;
    made
}

/// Returns the chain of the Service port `ns/web:http`.
pub fn web_chain(tables: Tables) -> String {
    let dispatch = tables.chain("nat", "KUBE-SERVICES");
    let rule = dispatch.iter().find(|rule| rule.contains("10.96.0.1/32")).expect("a rule");
    rule.rsplit(' ').next().expect("a target").to_owned()
}
