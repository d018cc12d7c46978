//! What other programs change.

use std::net::IpAddr;

use packet_rig::Rig;
use switchyard_ipvs_netlink::{Batch, Ipvs, RealServer, Selector, VirtualServer};

use super::{C, D, WEB, addresses, is_selected, servers, start, wait, web, weights};

fn selector(ip: [u8; 4]) -> Selector {
    Selector::Address { protocol: 6, ip: IpAddr::from(ip), port: 80 }
}

/// Gives commands to IPVS on the node, as `ipvsadm` does.
fn command(rig: &Rig, fill: impl Fn(&mut Batch) + Send + Sync) {
    let refused = rig.topology.node().namespace.run(|| {
        let mut batch = Batch::default();
        fill(&mut batch);
        Ipvs::open().unwrap().unwrap().commit(&batch).unwrap()
    });
    assert_eq!(refused.unwrap(), []);
}

fn real(ip: [u8; 4], weight: u32) -> RealServer {
    RealServer { address: (ip, 8080).into(), weight, active: 0, inactive: 0, is_masquerading: true }
}

fn server(ip: [u8; 4]) -> VirtualServer {
    VirtualServer {
        selector: selector(ip),
        scheduler: "rr".into(),
        flags: 0,
        timeout: 0,
        netmask: u32::MAX,
    }
}

/// Commands to IPVS.
type Change<'a> = Box<dyn Fn(&mut Batch) + Send + Sync + 'a>;

/// Virtual servers, addresses, sets and rules that another program changes are repaired, and reported.
#[test]
fn what_others_change_is_repaired() {
    if !is_selected() {
        return;
    }
    let rig = start("repaired", &web("", "", &[C, D]), "ipvs: {syncPeriod: 1s}");
    let web_server = selector([10, 96, 0, 10]);
    wait(&rig, "the Service is programmed", || weights(&rig, WEB) == [1, 1]);
    let changes: [(&str, Change<'_>); 4] = [
        ("a weight", Box::new(|batch| batch.edit_real(&web_server, &real([10, 244, 2, 10], 0)))),
        (
            "a real server",
            Box::new(|batch| {
                batch.delete_real(&web_server, ([10, 244, 2, 10], 8080).into());
            }),
        ),
        ("a virtual server", Box::new(|batch| batch.delete_server(&web_server))),
        (
            "more",
            Box::new(|batch| {
                batch.add_server(&server([10, 99, 0, 1]));
                batch.add_real(&web_server, &real([10, 244, 9, 9], 1));
            }),
        ),
    ];
    for (what, change) in changes {
        command(&rig, change);
        wait(&rig, what, || weights(&rig, WEB) == [1, 1] && servers(&rig).len() == 1);
    }
    let node = &rig.topology.node().namespace;
    node.ip("address del 10.96.0.10/32 dev kube-ipvs0\n").unwrap();
    wait(&rig, "the address is back", || addresses(&rig) == ["10.96.0.10/32"]);
    node.ip("address add 10.96.0.99/32 dev kube-ipvs0\n").unwrap();
    wait(&rig, "the address goes", || addresses(&rig) == ["10.96.0.10/32"]);
    node.output("ipset", &["flush", "KUBE-CLUSTER-IP"], "").unwrap();
    wait(&rig, "the entry is back", || {
        let text = node.output("ipset", &["list", "KUBE-CLUSTER-IP"], "").unwrap();
        text.contains("10.96.0.10,tcp:80")
    });
    node.output("iptables", &["-t", "nat", "-F", "KUBE-SERVICES"], "").unwrap();
    wait(&rig, "the rules are back", || {
        let text = node.output("iptables", &["-t", "nat", "-S", "KUBE-SERVICES"], "").unwrap();
        text.contains("KUBE-CLUSTER-IP")
    });
    // The kernel shows a repair a moment before the proxy counts it.
    wait(&rig, "all repairs are counted", || {
        let found = rig.proxy.metric("switchyard_drift_repaired_objects_total").unwrap();
        found.iter().sum::<f64>() >= 8.0
    });
}

/// Virtual servers in `ipvs.excludeCIDRs`, and those that serve marks, belong to other programs.
#[test]
fn excluded_networks_are_left_alone() {
    if !is_selected() {
        return;
    }
    let config = "ipvs: {excludeCIDRs: [10.99.0.0/16], syncPeriod: 1s}";
    let rig = start("excluded", &web("", "", &[C]), config);
    let mark = Selector::Mark { family: libc::AF_INET as u16, mark: 7 };
    command(&rig, |batch| {
        batch.add_server(&server([10, 99, 0, 1]));
        batch.add_real(&selector([10, 99, 0, 1]), &real([10, 244, 9, 9], 5));
        batch.add_server(&server([10, 98, 0, 1]));
        batch.add_server(&VirtualServer { selector: mark, ..server([0; 4]) });
    });
    wait(&rig, "the one outside goes", || servers(&rig).len() == 3);
    let left: Vec<String> = servers(&rig).into_iter().map(|server| server.at).collect();
    assert!(left.contains(&"TCP 0A630001:0050".to_owned()), "{left:?}");
    assert_eq!(weights(&rig, "TCP 0A630001:0050"), [5]);
    assert!(left.iter().any(|at| at.starts_with("FWM")), "{left:?}");
}
