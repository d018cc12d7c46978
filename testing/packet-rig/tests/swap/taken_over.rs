//! kube-proxy takes over from Switchyard, which was killed.

use std::{thread, time::Duration};

use packet_rig::{NetNs, Rig, case::MANIFESTS};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use crate::kube_proxy::{Bystanders, IptablesMode, Listing, NftablesMode, programs};
use crate::support::{
    KubeProxy, Load, assert_no_chains, assert_no_tables, cluster, cluster_before, node,
    nothing_of_gone, prepare, probes, sticky_clients,
};

/// The maps that kube-proxy does not know, and leaves: no rule looks at them any more.
const LEFT: [&str; 12] = [
    "tcp-endpoints",
    "udp-endpoints",
    "sctp-endpoints",
    "nodeport-tcp-endpoints",
    "nodeport-udp-endpoints",
    "nodeport-sctp-endpoints",
    "local-tcp-endpoints",
    "local-udp-endpoints",
    "local-sctp-endpoints",
    "local-nodeport-tcp-endpoints",
    "local-nodeport-udp-endpoints",
    "local-nodeport-sctp-endpoints",
];

/// Switchyard has run for a while, has seen changes, and is no more.
fn has_run(mode: &str, flavour: Flavour) -> (Rig, NetNs, Bystanders) {
    let mut rig = prepare(mode, &cluster_before());
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    rig.start_again().unwrap();
    rig.check(&sticky_clients(|reaches| reaches.clients_differ = true)).unwrap();
    rig.write(MANIFESTS, &cluster().manifests()).unwrap();
    rig.check(&[nothing_of_gone()]).unwrap();
    rig.check(&sticky_clients(|reaches| reaches.remember = Some("before".to_owned()))).unwrap();
    // A sync that began with the first changes leaves the others to the next, a second later.
    thread::sleep(Duration::from_millis(1500));
    rig.proxy.kill();
    (rig, node, bystanders)
}

/// Checks the outcomes after kube-proxy has taken over.
fn check(rig: &mut Rig, bystanders: &Bystanders, node: &NetNs) {
    rig.check(&probes()).unwrap();
    rig.check(&[nothing_of_gone()]).unwrap();
    assert_eq!(bystanders.changes(node).unwrap(), [""; 0]);
}

fn listings(node: &NetNs) -> Vec<Listing> {
    IpFamily::ALL.map(|family| Listing::read(node, family).unwrap()).into()
}

#[test]
fn by_nftables_from_nftables() {
    let (mut rig, node, bystanders) = has_run("nftables", Flavour::Nft);
    let before = listings(&node);
    let mut mode = NftablesMode::default();
    let load = Load::start(&rig);
    mode.sync(&node, &cluster()).unwrap();
    thread::sleep(Duration::from_millis(1100));
    // The next sync deletes what was stale.
    mode.sync(&node, &cluster()).unwrap();
    load.assert_nothing_lost();
    assert_eq!((mode.cleanup_failures, mode.unreadable), (vec![], vec![]));
    rig.check(&sticky_clients(|reaches| reaches.same_as = Some("before".to_owned()))).unwrap();
    check(&mut rig, &bystanders, &node);

    // Apart from these maps, the table is the same as on a node where Switchyard never was.
    let mut taken_over = listings(&node);
    for (before, after) in before.iter().zip(&taken_over) {
        assert!(before.sets.is_subset(&after.sets), "the same names: {before:#?} {after:#?}");
    }
    for listing in &mut taken_over {
        for map in LEFT {
            assert!(listing.maps.remove(map), "{map} is gone: does it have to be in the list?");
        }
    }
    // No rule uses the maps, so they can be removed, as docs/swap.md describes.
    let removals = LEFT
        .map(|map| format!("delete map ip kube-proxy {map}\ndelete map ip6 kube-proxy {map}\n"));
    node.nft(&removals.concat()).unwrap();
    assert_eq!(taken_over, listings(&node));
    NftablesMode::cleanup(&node).unwrap();
    NftablesMode::default().sync(&node, &cluster()).unwrap();
    assert_eq!(taken_over, listings(&node));

    // And back.
    rig.start_again().unwrap();
    rig.check(&probes()).unwrap();
}

/// With other settings, and with elements that kube-proxy cannot read.
#[test]
fn by_nftables_in_other_ways() {
    let (mut rig, node, _) = has_run("nftables", Flavour::Nft);
    let mut mode = NftablesMode::default();
    (mode.all_node_addresses, mode.reads_no_elements) = (true, true);
    mode.sync(&node, &cluster()).unwrap();
    thread::sleep(Duration::from_millis(1100));
    mode.sync(&node, &cluster()).unwrap();
    assert_eq!(mode.cleanup_failures, [""; 0]);
    rig.check(&probes()).unwrap();
}

fn by_iptables(flavour: Flavour) {
    let (mut rig, node, bystanders) = has_run("iptables", flavour);
    let contents = || {
        let families = IpFamily::ALL.iter();
        let mut lines: Vec<_> =
            families.flat_map(|family| programs::save(flavour, &node, *family).unwrap()).collect();
        lines.sort();
        lines
    };
    let before = contents();
    let mut kube_proxy = KubeProxy::iptables(flavour);
    let load = Load::start(&rig);
    kube_proxy.sync(&node, &cluster());
    load.assert_nothing_lost();
    rig.check(&sticky_clients(|reaches| reaches.same_as = Some("before".to_owned()))).unwrap();
    check(&mut rig, &bystanders, &node);

    // The rules are the same as on a node where Switchyard never was.
    let taken_over = contents();
    for chain in before.iter().filter(|line| line.starts_with(":KUBE-")) {
        assert!(taken_over.contains(chain), "{chain} is a name of ours alone");
    }
    IptablesMode { flavour }.cleanup(&node).unwrap();
    kube_proxy.sync(&node, &cluster());
    assert_eq!(taken_over, contents());

    // And back.
    rig.start_again().unwrap();
    rig.check(&probes()).unwrap();
}

#[test]
fn by_iptables_nft_from_iptables() {
    by_iptables(Flavour::Nft);
}

#[test]
fn by_iptables_legacy_from_iptables() {
    by_iptables(Flavour::Legacy);
}

/// In another mode, kube-proxy removes the old rules before it programs anything, so that connections
/// are lost with any proxy before it. Nothing may be left.
#[test]
fn by_iptables_from_nftables() {
    let (mut rig, node, bystanders) = has_run("nftables", Flavour::Nft);
    NftablesMode::cleanup(&node).unwrap();
    assert_no_tables(&node);
    KubeProxy::iptables(Flavour::Nft).sync(&node, &cluster());
    check(&mut rig, &bystanders, &node);
}

fn by_nftables(flavour: Flavour) {
    let (mut rig, node, bystanders) = has_run("iptables", flavour);
    IptablesMode { flavour }.cleanup(&node).unwrap();
    assert_no_chains(&node, flavour);
    KubeProxy::nftables().sync(&node, &cluster());
    check(&mut rig, &bystanders, &node);
}

#[test]
fn by_nftables_from_iptables_nft() {
    by_nftables(Flavour::Nft);
}

#[test]
fn by_nftables_from_iptables_legacy() {
    by_nftables(Flavour::Legacy);
}
