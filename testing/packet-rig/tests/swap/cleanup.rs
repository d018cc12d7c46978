//! `--cleanup` removes what kube-proxy's own clean-up would, in every mode, without a cluster, and
//! can be repeated.

use packet_rig::{NetNs, Rig};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use crate::kube_proxy::{Bystanders, Cluster, IpvsMode, programs};
use crate::support::{
    KubeProxy, clean_up, node, prepare, until_no_chains, until_no_tables, until_nothing_of_ipvs,
};

const MODES: [&str; 4] = ["nftables", "iptables", "ipvs", "userspace"];

fn firewall(node: &NetNs, flavour: Flavour) -> Vec<String> {
    let lines = programs::save(flavour, node, IpFamily::V4).unwrap();
    lines.into_iter().filter(|line| line.contains("KUBE-FIREWALL")).collect()
}

/// Leaves something behind, and cleans up, once for each mode that may be configured.
fn cleans_up(flavour: Flavour, leave: impl Fn(&NetNs)) {
    let rig = prepare("nftables", Cluster::After);
    let node = node(&rig);
    // First without a kubelet: the proxy or the kubelet makes the shared chain, whichever is first.
    leave(&node);
    let before = firewall(&node, flavour);
    clean_up_twice(&rig, "iptables");
    until_no_tables(&node);
    until_no_chains(&node, flavour);
    until_nothing_of_ipvs(&node, flavour);
    assert_eq!(firewall(&node, flavour), before, "upstream's clean-up leaves it");

    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    for mode in MODES {
        leave(&node);
        clean_up_twice(&rig, mode);
        until_no_tables(&node);
        until_no_chains(&node, flavour);
        until_nothing_of_ipvs(&node, flavour);
        assert_eq!(bystanders.changes(&node).unwrap(), [""; 0], "{mode}");
    }
}

fn clean_up_twice(rig: &Rig, mode: &str) {
    clean_up(rig, mode);
    clean_up(rig, mode);
}

#[test]
fn of_iptables_legacy() {
    cleans_up(Flavour::Legacy, |node| {
        KubeProxy::iptables(Flavour::Legacy).sync(node, Cluster::After)
    });
}

fn cleans_up_ipvs(flavour: Flavour) {
    let mode = IpvsMode { flavour };
    cleans_up(flavour, |node| {
        mode.sync(node, Cluster::After).unwrap();
        assert!(mode.leftovers(node).unwrap().len() > 60, "the fixtures");
    });
}

/// As after a try of all modes without a clean-up between them.
#[test]
fn of_everything_at_once() {
    cleans_up(Flavour::Legacy, |node| {
        KubeProxy::nftables().sync(node, Cluster::After);
        for flavour in Flavour::ALL {
            KubeProxy::iptables(flavour).sync(node, Cluster::After);
        }
        IpvsMode { flavour: Flavour::Legacy }.sync(node, Cluster::After).unwrap();
    });
}

tests! {
    of_nftables: cleans_up(Flavour::Nft, |node| KubeProxy::nftables().sync(node, Cluster::After));
    of_iptables_nft: cleans_up(Flavour::Nft, |node| KubeProxy::iptables(Flavour::Nft).sync(node, Cluster::After));
    of_ipvs_with_nft: cleans_up_ipvs(Flavour::Nft);
    of_ipvs_with_legacy: cleans_up_ipvs(Flavour::Legacy);
}
