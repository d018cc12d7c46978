//! The rulesets of the stand-in serve traffic as kube-proxy's would: else they would be no
//! fixtures.

use switchyard_iptables::Flavour;

use crate::kube_proxy::{Bystanders, IptablesMode, NftablesMode};
use crate::support::{
    KubeProxy, cluster, cluster_before, node, nothing_of_gone, prepare, probes, sticky_clients,
    until_no_chains, until_no_tables,
};

/// Writes the rulesets of a cluster before and after a change, and probes every frontend.
fn serves(mut kube_proxy: KubeProxy, flavour: Flavour) {
    let mut rig = prepare("nftables", &cluster());
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    kube_proxy.sync(&node, &cluster_before());
    rig.check(&sticky_clients(|reaches| reaches.clients_differ = true)).unwrap();
    kube_proxy.sync(&node, &cluster());
    rig.check(&probes()).unwrap();
    rig.check(&[nothing_of_gone()]).unwrap();
    assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);
    match kube_proxy {
        KubeProxy::Nftables(mode) => {
            assert_eq!(mode.cleanup_failures, [""; 0]);
            assert_eq!(mode.unreadable, [""; 0]);
            NftablesMode::cleanup(&node).unwrap();
            until_no_tables(&node);
        }
        KubeProxy::Iptables(mode) => {
            assert!(!mode.leftovers(&node).unwrap().is_empty());
            IptablesMode { flavour }.cleanup(&node).unwrap();
            until_no_chains(&node, flavour);
        }
    }
    assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);
}

#[test]
fn nftables_mode_serves() {
    serves(KubeProxy::nftables(), Flavour::Nft);
}

#[test]
fn iptables_mode_serves_with_nft() {
    serves(KubeProxy::iptables(Flavour::Nft), Flavour::Nft);
}

#[test]
fn iptables_mode_serves_with_legacy() {
    serves(KubeProxy::iptables(Flavour::Legacy), Flavour::Legacy);
}
