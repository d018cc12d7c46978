//! Rules of other programs for all addresses of the node, such as those for host ports.

use packet_rig::{
    Case, Rig, backend,
    case::{Expectation, ProbePlan, Reaches},
    objects::{service, slice},
};

/// A host port of the pod `b`, as the plugin `portmap` has it.
const HOST_PORT: &str = "-t nat -A PREROUTING -p tcp --dport 80 -m addrtype --dst-type LOCAL \
                         -j DNAT --to-destination 10.244.1.11:8080";

#[test]
fn services_come_before_host_ports() {
    let selected = backend::selected().unwrap();
    let spec = "type: ClusterIP, clusterIP: 10.96.0.10, externalIPs: [198.51.100.10], \
                ports: [{port: 80}]";
    let endpoint = slice("web", "{name: '', port: 8080}", &["10.244.1.10"]);
    let manifests = service("web", "", spec) + &endpoint;
    let case = Case { name: "host-ports".to_owned(), manifests, ..Case::default() };
    for name in ["nftables", "iptables"].into_iter().filter(|name| selected.contains(name)) {
        let mut rig = Rig::start(&case, name).unwrap();
        let node = rig.place("node-1").unwrap().namespace.clone();
        node.ip("addr add 198.51.100.10/32 dev eth0").unwrap();
        // As on a node that has booted, where the program comes after the proxy.
        node.output("iptables", &HOST_PORT.split_whitespace().collect::<Vec<_>>(), "").unwrap();
        let reaches = |to: &str, pod: &str| {
            let expected = Expectation::Reaches(Reaches::all_of([pod]));
            ProbePlan::new(&["client"], &[to.parse().unwrap()], expected)
        };
        rig.check(&[reaches("tcp://192.168.10.1:80", "b"), reaches("tcp://198.51.100.10:80", "a")])
            .unwrap();
    }
}
