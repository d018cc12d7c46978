//! Flowtables, of another program and of `--flowtable-devices`, which take translated flows past the
//! rules. Where the kernel has none, the tests are reported as ignored.
//!
//! `SWITCHYARD_BIN` and `SWITCHYARD_BACKENDS` are those of the packet cases.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::{process::ExitCode, time::Instant};

use libtest_mimic::{Arguments, Completion, Trial};
use packet_rig::{
    Case, Conversation, Outcome, Probe, Rig, backend, capability,
    case::MANIFESTS,
    objects::{service, slice},
    wait::{until, until_ok},
};

/// The pods `a` and `c`.
const A: &str = "10.244.1.10";
const C: &str = "10.244.2.10";

/// The rules of the other program.
const FASTPATH: &str = "
table inet fastpath {
    flowtable fast {
        hook ingress priority 0
        devices = { eth0, veth-a, veth-b }
    }
    chain forward {
        type filter hook forward priority 0
        ct status dnat ct state established meta l4proto udp flow add @fast
    }
}
";

/// The Service with an endpoint, by UDP and TCP.
fn dns(endpoint: &str) -> String {
    service(
        "dns",
        "",
        "clusterIP: 10.96.0.53, ports: [{name: u, port: 53, protocol: UDP}, {name: t, port: 53}]",
    ) + &slice("dns", "{name: u, port: 8080, protocol: UDP}, {name: t, port: 8080}", &[endpoint])
}

fn main() -> ExitCode {
    let tests = [
        ("an offloaded flow ends with its endpoint", an_offloaded_flow_ends as fn(&str)),
        ("a foreign flowtable is left alone", the_table_is_left_alone),
        ("offloaded flows of the own flowtable", our_own),
        ("offloaded flows, measured", measured),
    ];
    let mut trials = Vec::new();
    for backend in backend::selected().unwrap() {
        for (name, test) in tests {
            let full_name = format!("{backend}::{name}");
            let is_measurement = name.ends_with("measured");
            let trial = Trial::ignorable_test(full_name.clone(), move || {
                let reason = match capability::has_flowtables().unwrap() {
                    true => backend::not_runnable(backend),
                    false => Some("no flowtables in this kernel"),
                };
                if let Some(reason) = reason {
                    test_netns::skipped_test(&full_name, reason);
                    return Ok(Completion::ignored_with(reason));
                }
                test(backend);
                Ok(Completion::Completed)
            });
            trials.push(trial.with_ignored_flag(is_measurement));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn start_rig(backend: &str, args: &[&str]) -> Rig {
    let case = Case {
        name: "flowtable".to_owned(),
        manifests: dns(A),
        cluster_cidr: true,
        args: args.iter().map(ToString::to_string).collect(),
        ..Case::default()
    };
    Rig::start(&case, backend).unwrap()
}

/// Opens a connection or flow from the client.
fn converse(rig: &Rig, target: &str) -> Conversation {
    let probe = Probe::new(target.parse().unwrap());
    rig.topology.client().namespace.run(|| probe.converse()).unwrap().unwrap()
}

/// Starts the rig, with a flow from the client to pod `a` that is in the flowtable.
fn start(backend: &str) -> (Rig, Conversation) {
    let rig = start_rig(backend, &[]);
    rig.topology.node().namespace.nft(FASTPATH).unwrap();
    let mut flow = converse(&rig, "udp://10.96.0.53:53");
    until("the flow is in the flowtable", || answered_by(&mut flow, "a") && is_offloaded(&rig));
    (rig, flow)
}

fn answered_by(flow: &mut Conversation, endpoint: &str) -> bool {
    matches!(flow.outcome(), Outcome::Reached { endpoint: by, .. } if by == endpoint)
}

/// Whether the node has a flow in a flowtable.
fn is_offloaded(rig: &Rig) -> bool {
    node_prints(rig, "cat", &["/proc/net/nf_conntrack"]).contains("[OFFLOAD]")
}

fn node_prints(rig: &Rig, program: &str, arguments: &[&str]) -> String {
    rig.topology.node().namespace.output(program, arguments, "").unwrap()
}

fn foreign_table(rig: &Rig) -> String {
    node_prints(rig, "nft", &["list", "table", "inet", "fastpath"])
}

/// The client sends without a pause, so that the flow does not leave the flowtable by itself.
fn an_offloaded_flow_ends(backend: &str) {
    let (rig, mut flow) = start(backend);
    rig.write(MANIFESTS, &dns(C)).unwrap();
    until_ok(|| {
        let ended = answered_by(&mut flow, "c");
        ended.then_some(()).ok_or_else(|| format!("the old flow lives on\n{}", rig.proxy.log()))
    });
}

fn the_table_is_left_alone(backend: &str) {
    let (mut rig, mut flow) = start(backend);
    let before = foreign_table(&rig);
    assert!(before.contains("flow add @fast"), "{before}");

    rig.start_again().unwrap();
    assert!(answered_by(&mut flow, "a"), "the flow ended with a restart");
    assert_eq!(foreign_table(&rig), before, "after a restart");

    rig.proxy.stop();
    let status = rig.proxy.command(&["--cleanup".to_owned()]).status().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(foreign_table(&rig), before, "after --cleanup");
}

/// The entries of conntrack that are in a flowtable, by protocol.
fn offloaded(rig: &Rig) -> [usize; 2] {
    let entries = node_prints(rig, "cat", &["/proc/net/nf_conntrack"]);
    let of = |protocol: &str| {
        entries.lines().filter(|line| line.contains(protocol) && line.contains("[OFFLOAD]")).count()
    };
    [of(" tcp "), of(" udp ")]
}

/// A device that comes later is added, one that never comes costs nothing, and the table goes with
/// the program. A connection that is in the flowtable survives all of that.
fn our_own(backend: &str) {
    let mut rig = start_rig(backend, &["--flowtable-devices=eth0,none0,veth-*,late0"]);
    let table = |rig: &Rig| node_prints(rig, "nft", &["list", "ruleset", "inet"]);
    until_ok(|| {
        let is_there = table(&rig).contains("veth-b");
        is_there.then_some(()).ok_or_else(|| format!("{}\n{}", table(&rig), rig.proxy.log()))
    });
    let listed = table(&rig);
    let rule = "ct state established ct status dnat ct packets > 20 flow add @flows";
    assert!(listed.contains(rule) && listed.contains("eth0"), "{listed}");
    assert!(!listed.contains("none0"), "{listed}");
    rig.topology.node().namespace.ip("link add late0 type dummy").unwrap();
    until("the late device is there", || table(&rig).contains("late0"));

    let mut flow = converse(&rig, "udp://10.96.0.53:53");
    let mut connection = converse(&rig, "tcp://10.96.0.53:53");
    assert!((0..8).all(|_| answered_by(&mut flow, "a")));
    assert_eq!(offloaded(&rig)[1], 0, "a short flow");
    until("both are in the flowtable", || {
        assert!(answered_by(&mut connection, "a"), "{}", rig.proxy.log());
        answered_by(&mut flow, "a") && offloaded(&rig) == [1, 1]
    });

    rig.write(MANIFESTS, &dns(C)).unwrap();
    until("the flow goes to the other endpoint", || answered_by(&mut flow, "c"));
    assert!(answered_by(&mut connection, "a"), "a connection stays with its endpoint");

    rig.proxy.stop();
    until("the table is gone", || !table(&rig).contains("switchyard-flowtable"));
    assert!(answered_by(&mut connection, "a"), "by the rules");
    rig.start_again().unwrap();
    until("the connection is in the flowtable again", || {
        answered_by(&mut connection, "a") && offloaded(&rig)[0] == 1
    });
}

/// Prints round trips by the rules and by the flowtable: run it alone, with `--ignored
/// --nocapture`.
fn measured(backend: &str) {
    for round in 1..=3 {
        for args in [&[][..], &["--flowtable-devices=eth0,veth-*"]] {
            let rig = start_rig(backend, args);
            for target in ["udp://10.96.0.53:53", "tcp://10.96.0.53:53"] {
                let mut flow = converse(&rig, target);
                until("it is in the flowtable, if there is one", || {
                    answered_by(&mut flow, "a") && (args.is_empty() || is_offloaded(&rig))
                });
                let (count, begun) = (5000, Instant::now());
                assert!((0..count).all(|_| answered_by(&mut flow, "a")));
                let each = begun.elapsed() / count;
                println!("{backend} {round} {target} {args:?}: {each:?} a round trip");
            }
        }
    }
}
