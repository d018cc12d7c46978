//! Leftovers of userspace mode by another mode that follows.

use packet_rig::{
    Rig,
    case::{Expectation, ProbePlan, Reaches},
    wait::until_ok,
};

use super::{start, web};

/// The traces of userspace mode on the node.
fn traces(rig: &Rig) -> Vec<String> {
    let node = &rig.topology.node().namespace;
    let mut lines = Vec::new();
    for (program, arguments) in [
        ("nft", &["list", "tables"] as &[&str]),
        ("iptables-save", &[]),
        ("ip6tables-save", &[]),
        ("ip", &["-o", "link"]),
    ] {
        lines.push(node.output(program, arguments, "").unwrap());
    }
    let lines = lines.iter().flat_map(|text| text.lines());
    lines.filter(|line| line.to_lowercase().contains("switchyard")).map(str::to_owned).collect()
}

fn until_no_traces(rig: &Rig) {
    until_ok(|| match traces(rig) {
        none if none.is_empty() => Ok(()),
        some => Err(format!("{some:#?}")),
    });
}

fn assert_serves(rig: &mut Rig) {
    let targets = ["tcp://10.96.0.10:80", "tcp://192.168.10.1:30080"].map(|to| to.parse().unwrap());
    let expected = Expectation::Reaches(Reaches::all_of(["a", "c"]));
    rig.check(&[ProbePlan::new(&["client", "b"], &targets, expected)]).unwrap();
}

fn restart_in(rig: &mut Rig, mode: &str, arguments: &[&str]) {
    let options = rig.proxy.options_mut();
    options.backend = mode.to_owned();
    let arguments = arguments.iter().chain(["--iptables-localhost-nodeports=false"].iter());
    options.args = arguments.map(|&argument| argument.to_owned()).collect();
    rig.start_again().unwrap();
}

/// As long as the kernel routes loopback addresses, the rules stay that guard them.
fn start_without_localhost(name: &str) -> Rig {
    let mut rig = start(name, web(&["10.244.1.10", "10.244.2.10"]));
    rig.proxy.stop();
    rig.topology.node().namespace.sysctl(&[("ipv4/conf/all/route_localnet", "0")]).unwrap();
    rig
}

const CAPTURES: [&str; 3] = [
    "--userspace-capture=nftables",
    "--userspace-capture=iptables",
    "--userspace-capture=addresses",
];

#[test]
fn other_modes_leave_nothing_and_serve() {
    let mut rig = start_without_localhost("modes");
    for capture in CAPTURES {
        for mode in ["nftables", "iptables"] {
            restart_in(&mut rig, "userspace", &[capture]);
            assert_serves(&mut rig);
            assert!(!traces(&rig).is_empty(), "{capture}");
            restart_in(&mut rig, mode, &[]);
            until_no_traces(&rig);
            assert_serves(&mut rig);
        }
    }
}
