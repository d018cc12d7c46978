//! The log of the program. Unit tests have its formats.

use crate::{
    manifests::{Manifests, service, slice},
    namespace::{METRICS, Namespace},
};

fn objects(endpoint: &str) -> String {
    let spec =
        r#"clusterIP: 10.96.0.10, externalIPs: ["no\tip"], ports: [{port: 80, protocol: TCP}]"#;
    let endpoints = format!("{{addresses: [10.0.0.5]}}, {{addresses: [{endpoint}]}}");
    service("web", spec) + &slice("web", "8080", &endpoints)
}

/// The log of the program with these arguments, from the start to a change of endpoints.
fn logged(namespace: &Namespace, arguments: &[&str]) -> String {
    let manifests = Manifests::new(&objects("10.0.0.6"));
    let program = manifests.start(namespace, arguments);
    namespace.wait_for_service_ports(1);
    manifests.write("all", &objects("10.0.0.7"));
    let partial =
        "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1\n";
    namespace.wait(METRICS, "/metrics", |_, text| text.contains(partial));
    program.terminate().1
}

/// The lines, of which some go on in the next; without what is in front of the message.
#[track_caller]
fn messages(log: &str) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    for line in log.lines() {
        if line.starts_with('\t') || line == " >" {
            let last = messages.last_mut().unwrap();
            *last = format!("{last}\n{line}");
            continue;
        }
        let (head, message) = line.split_once("] ").expect(line);
        assert!(head.starts_with(['I', 'W', 'E']), "{line}");
        assert!(message.starts_with('"') || message.starts_with("FLAG: --"), "{line}");
        messages.push(message.to_owned());
    }
    messages
}

/// Messages that a mode has beside those of all: at which verbosity each appears first.
fn says_what_it_should(mode: &str, of_mode: &[(u32, &str)], verbosities: &[u32]) {
    let namespace = Namespace::new();
    let common = [
        (0, "\"Starting\" "),
        (0, "\"Part of an object cannot be used\" "),
        (1, "FLAG: --proxy-mode=\""),
        (2, "\"Synced\" full="),
        (2, "\"Listening\" name=\"healthz\" "),
        (3, "\"Listed\" kind=\"EndpointSlice\" objects=1 "),
        (3, "\"Setting endpoints for service port name\" ipFamily=\"IPv4\" "),
        (4, "\"Syncing\" full="),
        (4, "\"Object added or changed\" object=\""),
    ];
    for verbosity in verbosities {
        let arguments = [format!("--proxy-mode={mode}"), format!("-v={verbosity}")];
        let log = logged(&namespace, &[&arguments[0], &arguments[1]]);
        let messages = messages(&log);
        for (from, start) in common.iter().chain(of_mode) {
            let is_there = messages.iter().any(|message| message.starts_with(start));
            assert_eq!(is_there, verbosity >= from, "{mode} -v={verbosity}: {start}\n{log}");
        }
    }
}

#[test]
fn every_verbosity_says_what_it_should() {
    let rules = [(9, "\"Committing\" rules=<\n\t")];
    says_what_it_should("nftables", &rules, &[0, 1, 2, 3, 4, 8, 9]);
}

#[test]
fn programs_and_their_input_are_logged() {
    let rules = "\"Restoring\" ipFamily=\"IPv4\" rules=<\n\t*";
    let of_mode = [(5, "\"Running\" command=\"/"), (9, rules)];
    says_what_it_should("iptables", &of_mode, &[4, 5, 8, 9]);
}

#[test]
fn a_file_can_say_more() {
    let namespace = Namespace::new();
    let log =
        logged(&namespace, &["--vmodule=engine_observer=3,other*=9", "--proxy-mode=nftables"]);
    assert!(log.contains("\"Setting endpoints for service port name\""), "{log}");
    assert!(!log.contains("\"Object added") && !log.contains("\"Listening\""), "{log}");
}
