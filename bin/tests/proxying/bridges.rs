//! Bridges whose packets pass no rules.

use std::fs;

use packet_rig::NetNs;

use crate::namespace::{HEALTH, Namespace, Program};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

const SETTING: &str = "bridge/bridge-nf-call-iptables";

/// Starts the program in a namespace with a bridge `cni0`, and returns its warnings about bridges.
fn warnings(more: &str, prepare: impl FnOnce(&NetNs), arguments: &[&str]) -> Vec<String> {
    let namespace = Namespace::new();
    namespace.0.ip(&format!("link add cni0 type bridge\n{more}")).unwrap();
    prepare(&namespace.0);
    let all = [&["--manifests", EXAMPLES, "--hostname-override=node-1"], arguments].concat();
    let program = Program::start(&namespace, &all);
    namespace.wait(HEALTH, "/readyz", |status, _| status == 200);
    let (_, log) = program.terminate();
    log.lines().filter(|line| line.contains("Bridged packets bypass")).map(str::to_owned).collect()
}

#[test]
fn a_bridge_of_pods_without_rules_is_a_warning() {
    const POD: &str = "link add pod type veth peer name inside\nlink set pod master cni0\n";
    const MODE: &[&str] = &["--proxy-mode=nftables"];
    // Without the module, the setting is missing in all namespaces.
    let has_module = fs::exists("/proc/sys/net/bridge").unwrap();
    let switch = |value: &'static str| {
        move |namespace: &NetNs| {
            if has_module {
                namespace.sysctl(&[(SETTING, value)]).unwrap();
            }
        }
    };
    let found = warnings(POD, switch("0"), MODE);
    let [line] = &found[..] else { panic!("{found:?}") };
    let remedy = match has_module {
        true => "bridge=\"cni0\" remedy=\"sysctl -w net.bridge.bridge-nf-call-iptables=1\"",
        false => "bridge=\"cni0\" remedy=\"modprobe br_netfilter\"",
    };
    assert!(line.starts_with('W') && line.contains(remedy), "{line}");

    let none: [String; 0] = [];
    assert_eq!(warnings("", switch("0"), MODE), none, "no pods");
    assert_eq!(warnings(POD, switch("0"), &["--proxy-mode=nftables", "--masquerade-all"]), none);
    assert_eq!(warnings(POD, switch("0"), &["--proxy-mode=userspace"]), none);
    if has_module {
        assert_eq!(warnings(POD, switch("1"), MODE), none);
        let of_bridge = format!("{POD}link set cni0 type bridge nf_call_iptables 1\n");
        assert_eq!(warnings(&of_bridge, switch("0"), MODE), none, "the bridge has its own setting");
    }
}
