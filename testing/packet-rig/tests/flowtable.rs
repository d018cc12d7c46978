//! A flowtable of another program, which takes translated flows past the rules. Where the kernel
//! has no flowtables, the tests are reported as ignored.
//!
//! `SWITCHYARD_BIN` and `SWITCHYARD_BACKENDS` are those of the packet cases.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};
use packet_rig::{
    Case, Conversation, Outcome, Probe, Rig, backend, binary, capability,
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

/// The Service with an endpoint.
fn dns(endpoint: &str) -> String {
    service("dns", "", "clusterIP: 10.96.0.53, ports: [{port: 53, protocol: UDP}]")
        + &slice("dns", "{name: '', port: 8080, protocol: UDP}", &[endpoint])
}

fn main() -> ExitCode {
    let tests = [
        ("an offloaded flow ends with its endpoint", an_offloaded_flow_ends as fn(&str)),
        ("a foreign flowtable is left alone", the_table_is_left_alone),
    ];
    let mut trials = Vec::new();
    for backend in backend::selected().unwrap() {
        for (name, test) in tests {
            let full_name = format!("{backend}::{name}");
            trials.push(Trial::ignorable_test(full_name.clone(), move || {
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
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Starts the rig, with a flow from the client to pod `a` that is in the flowtable.
fn start(backend: &str) -> (Rig, Conversation) {
    let case = Case {
        name: "flowtable".to_owned(),
        manifests: dns(A),
        cluster_cidr: true,
        ..Case::default()
    };
    let mut rig = Rig::start(&case, backend, &binary::find().unwrap()).unwrap();
    rig.wait_ready().unwrap();
    let node = &rig.topology.node().namespace;
    node.nft(FASTPATH).unwrap();
    let probe = Probe::new("udp://10.96.0.53:53".parse().unwrap());
    let client = &rig.topology.client().namespace;
    let mut flow = client.run(|| probe.converse()).unwrap().unwrap();
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
