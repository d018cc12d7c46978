//! The rulesets of the stand-in serve traffic as kube-proxy's would: else they would be no
//! fixtures.

use switchyard_iptables::Flavour;

use crate::kube_proxy::{Bystanders, Cluster, IptablesMode, NftablesMode};
use crate::support::{
    KubeProxy, assert_same, contents, has_ipvs, node, nothing_of_gone, prepare, probes,
    probes_in_kube_proxys_ipvs, sticky_clients, sticky_clients_in_ipvs, until_no_chains,
    until_no_tables,
};

/// Writes the rulesets of a cluster before and after a change, and probes every frontend.
fn serves(mut kube_proxy: KubeProxy, flavour: Flavour) {
    let mut rig = prepare("nftables", Cluster::After);
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    kube_proxy.sync(&node, Cluster::Before);
    rig.check(&sticky_clients(|reaches| reaches.clients_differ = true)).unwrap();
    kube_proxy.sync(&node, Cluster::After);
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
        KubeProxy::Ipvs(_) => unreachable!("has other outcomes"),
        KubeProxy::Iptables(mode) => {
            assert!(!mode.leftovers(&node).unwrap().is_empty());
            IptablesMode { flavour }.cleanup(&node).unwrap();
            until_no_chains(&node, flavour);
        }
    }
    assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);
}

/// ipvs mode has no counterpart of the clean-up here: kube-proxy's deletes everything.
fn ipvs_mode_serves(flavour: Flavour) {
    if !has_ipvs() {
        return;
    }
    let mut rig = prepare("ipvs", Cluster::After);
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    let mut kube_proxy = KubeProxy::ipvs(flavour);
    kube_proxy.sync(&node, Cluster::Before);
    rig.check(&sticky_clients_in_ipvs(|reaches| reaches.clients_differ = true)).unwrap();
    kube_proxy.sync(&node, Cluster::After);
    rig.check(&probes_in_kube_proxys_ipvs()).unwrap();
    rig.check(&[nothing_of_gone()]).unwrap();
    let synced = contents(&node, "ipvs", flavour);
    kube_proxy.sync(&node, Cluster::After);
    assert_same(&synced, &contents(&node, "ipvs", flavour));
    assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);
}

tests! {
    nftables_mode_serves: serves(KubeProxy::nftables(), Flavour::Nft);
    iptables_mode_serves_with_nft: serves(KubeProxy::iptables(Flavour::Nft), Flavour::Nft);
    iptables_mode_serves_with_legacy: serves(KubeProxy::iptables(Flavour::Legacy), Flavour::Legacy);
    ipvs_mode_serves_with_nft: ipvs_mode_serves(Flavour::Nft);
    ipvs_mode_serves_with_legacy: ipvs_mode_serves(Flavour::Legacy);
}
