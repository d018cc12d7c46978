//! What the tests share: network namespaces, the programs, and a node with a backend.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    io::Write,
    process::{Command, Stdio},
};

use backend_iptables::{Flavour, IptablesConfig, IptablesProxier};
use proxy_core::{
    config::{LocalPodsConfig, NodeConfig},
    proxier::{Proxier, ProxierError, SyncReport},
    state::{Delta, State},
    testing::{NODE, Stepped},
};
pub use test_netns::in_namespace;

/// The backend with one flavour.
pub fn proxier(flavour: Flavour) -> IptablesProxier {
    let config = IptablesConfig { flavour: Some(flavour), ..IptablesConfig::default() };
    IptablesProxier::new(config).expect("iptables is installed")
}

pub fn sync(
    proxier: &mut IptablesProxier,
    state: &State,
    delta: &Delta,
) -> Result<SyncReport, ProxierError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(proxier.sync(state, delta))
}

pub fn full() -> Delta {
    Delta { full: true, ..Delta::default() }
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
        Command::new(format!("{}-{}{suffix}", self.base, self.flavour))
    }

    /// Runs the main program; panics if it fails.
    pub fn run(&self, arguments: &str) {
        let status = self.program("").arg("-w").args(arguments.split(' ')).status();
        assert!(status.expect("it is installed").success(), "{arguments} is refused");
    }

    /// Restores `input`, with counters, without flushing.
    pub fn restore(&self, input: &str) {
        let mut child = self
            .program("-restore")
            .args(["-w", "5", "--noflush", "--counters"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("it is installed");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "refused: {input}");
    }

    /// What is there: tables, chains and rules, in order, without counters and comments.
    pub fn save(&self) -> String {
        let output = self.program("-save").stderr(Stdio::null()).output().expect("it is installed");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("text");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let without_counters = |line: &str| match line.strip_prefix(':') {
            Some(_) => line.split(" [").next().unwrap_or(line).to_owned() + "\n",
            None => line.to_owned() + "\n",
        };
        lines.map(without_counters).collect()
    }

    /// What is in a table, with counters and without comments.
    pub fn save_with_counters(&self, table: &str) -> String {
        let output = self.program("-save").args(["-c", "-t", table]).output();
        let text = String::from_utf8(output.expect("it is installed").stdout).expect("text");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// The rules of a chain.
    pub fn chain(&self, table: &str, chain: &str) -> Vec<String> {
        let text = self.save();
        let rules = text.lines().skip_while(|line| *line != format!("*{table}"));
        let rules = rules.take_while(|line| *line != "COMMIT");
        let prefix = format!("-A {chain} ");
        rules.filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
    }
}

/// A node with a backend.
pub type Node = Stepped<IptablesProxier>;

/// A node of this configuration, in the namespace of this thread.
pub fn start(flavour: Flavour, config: NodeConfig) -> Node {
    Node::new(config, proxier(flavour))
}

pub fn config() -> NodeConfig {
    let pods = LocalPodsConfig::ClusterCidr(vec!["10.244.0.0/16".parse().expect("a network")]);
    NodeConfig { local_pods: pods, ..NodeConfig::new(NODE) }
}
