//! Endings by signals, and the rules that stay.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus},
};

use crate::{
    manifests::{Manifests, service},
    namespace::{Namespace, Program},
};

/// Starts the program by `command`, sends a signal to the process that `find` finds when it
/// proxies, and returns how it ended and what it logged.
fn end_by(
    namespace: &Namespace,
    signal: &str,
    mut command: Command,
    find: fn(u32) -> u32,
) -> (ExitStatus, String) {
    let manifests = Manifests::new(&service("web", "clusterIP: 10.96.0.10, ports: [{port: 80}]"));
    command.args(manifests.arguments()).arg("--proxy-mode=nftables");
    let program = Program::spawn(command);
    namespace.wait_for_service_ports(1);
    let process = find(program.id()).to_string();
    assert!(Command::new("kill").args(["-s", signal, &process]).status().unwrap().success());
    program.ended()
}

/// That no one is there any more, and that its rules are.
fn assert_rules_stay(namespace: &Namespace) {
    let rules = namespace.list("table ip kube-proxy");
    assert!(rules.contains("10.96.0.10"), "{rules}");
}

#[test]
fn signals_have_their_default_effect_and_rules_stay() {
    let namespace = Namespace::new();
    for (signal, number) in [("TERM", 15), ("INT", 2), ("HUP", 1)] {
        // Whoever runs the tests may ignore some, which is inherited.
        let mut command = namespace.0.command("env");
        command.arg("--default-signal").arg(env!("CARGO_BIN_EXE_switchyard"));
        let (status, log) = end_by(&namespace, signal, command, |program| program);
        assert_eq!(status.signal(), Some(number), "{log}");
        assert_rules_stay(&namespace);
    }
}

#[test]
fn the_first_process_of_a_container_ends_too() {
    let namespace = Namespace::new();
    for (signal, expected) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut command = namespace.0.command("unshare");
        command.args(["--pid", "--fork", "--kill-child"]).arg(env!("CARGO_BIN_EXE_switchyard"));
        let only_child = |parent: u32| {
            let path = format!("/proc/{0}/task/{0}/children", parent);
            fs::read_to_string(path).unwrap().trim().parse().unwrap()
        };
        let (status, log) = end_by(&namespace, signal, command, only_child);
        assert_eq!(status.code(), Some(expected), "SIG{signal}: {status:?}\n{log}");
        assert_rules_stay(&namespace);
    }
}
