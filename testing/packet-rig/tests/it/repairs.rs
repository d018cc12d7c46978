//! Repairs also mend the effects of missing rules.

use std::process::Command;

use packet_rig::{
    Case, Probe, Rig, backend,
    objects::{service, slice},
    wait::until_ok,
};

/// Another program's rule, which has connections tracked while there are none of the proxy's.
const TRACKING: &str = "add table ip theirs; \
     add chain ip theirs input { type filter hook input priority 0; }; \
     add rule ip theirs input ct state established accept";

#[test]
fn a_flow_that_began_without_rules_is_translated_after_the_repair() {
    let selected = backend::selected().unwrap();
    for (name, table) in [("nftables", "kube-proxy"), ("iptables", "nat")] {
        if !selected.contains(&name) {
            continue;
        }
        let spec = "type: NodePort, clusterIP: 10.96.0.53, \
                    ports: [{port: 53, nodePort: 30053, protocol: UDP}]";
        let endpoint = slice("dns", "{name: '', port: 8080, protocol: UDP}", &["10.244.2.10"]);
        let manifests = service("dns", "", spec) + &endpoint;
        let case = Case { name: "repairs".to_owned(), manifests, ..Case::default() };
        let rig = Rig::start(&case, name).unwrap();
        let node = rig.place("node-1").unwrap().namespace.clone();
        node.nft(TRACKING).unwrap();
        let client = rig.place("client").unwrap().namespace.clone();
        let probe = Probe::new("udp://192.168.10.1:30053".parse().unwrap());
        let signal = |signal: &str| {
            let pid = rig.proxy.pid().unwrap().to_string();
            assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        };

        signal("-STOP");
        node.nft(&format!("delete table ip {table}")).unwrap();
        let mut flow = client.run(|| probe.converse().unwrap()).unwrap();
        flow.ask().unwrap_err();
        signal("-CONT");
        // The same client goes on, from the same port.
        until_ok(|| match flow.ask() {
            Ok(answer) if answer.starts_with("c ") => Ok(()),
            other => Err(format!("{name}: {other:?}\n{}", rig.proxy.log())),
        });
    }
}
