//! Switchyard takes over from kube-proxy.

use std::{thread, time::Duration};

use packet_rig::{NetNs, Rig};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use crate::kube_proxy::{Bystanders, IptablesMode, IpvsMode, Listing, NftablesMode, programs};
use crate::support::{
    KubeProxy, Load, cluster, cluster_before, node, nothing_of_gone, prepare, probes,
    sticky_clients, until_no_chains, until_no_tables, until_nothing_of_ipvs,
};

/// Switchyard's rules, in a form that can be compared.
fn contents(node: &NetNs, mode: &str, flavour: Flavour) -> Vec<String> {
    let mut contents: Vec<String> = match mode {
        "nftables" => IpFamily::ALL
            .iter()
            .map(|family| format!("{:#?}", Listing::read(node, *family).unwrap()))
            .collect(),
        // Jumps stand in the order of their insertion.
        _ => IpFamily::ALL
            .iter()
            .flat_map(|family| programs::save(flavour, node, *family).unwrap())
            .collect(),
    };
    contents.sort();
    contents
}

fn take_over(mut kube_proxy: KubeProxy, flavour: Flavour, mode: &str) {
    take_over_changed(&mut kube_proxy, flavour, mode, |_| {});
}

fn take_over_changed(
    kube_proxy: &mut KubeProxy,
    flavour: Flavour,
    mode: &str,
    change: impl Fn(&NetNs),
) {
    let mut rig = prepare(mode, &cluster());
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    kube_proxy.sync(&node, &cluster_before());
    change(&node);
    rig.check(&sticky_clients(|reaches| reaches.remember = Some("before".to_owned()))).unwrap();

    let load = Load::start(&rig);
    rig.start_again().unwrap();
    // Long enough for what other modes left to be removed, mostly, while the load goes on.
    thread::sleep(Duration::from_millis(600));
    load.assert_nothing_lost();

    let is_same_mode = matches!(
        (&*kube_proxy, mode),
        (KubeProxy::Nftables(_), "nftables") | (KubeProxy::Iptables(_), "iptables")
    );
    rig.check(&sticky_clients(|reaches| {
        reaches.same_as = is_same_mode.then(|| "before".to_owned());
    }))
    .unwrap();
    assert_taken_over(rig, &bystanders, flavour, mode);
}

/// Asserts that all Services are served, that other rules stay, and that the rules are those of a node
/// where kube-proxy never was.
fn assert_taken_over(mut rig: Rig, bystanders: &Bystanders, flavour: Flavour, mode: &str) {
    let node = node(&rig);
    rig.check(&probes()).unwrap();
    rig.check(&[nothing_of_gone()]).unwrap();
    match mode {
        "nftables" => until_no_chains(&node, flavour),
        _ => until_no_tables(&node),
    }
    assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);

    let taken_over = contents(&node, mode, flavour);
    rig.proxy.kill();
    NftablesMode::cleanup(&node).unwrap();
    IptablesMode { flavour }.cleanup(&node).unwrap();
    rig.start_again().unwrap();
    assert_eq!(taken_over, contents(&node, mode, flavour));
}

#[test]
fn from_nftables_with_nftables() {
    take_over(KubeProxy::nftables(), Flavour::Nft, "nftables");
}

#[test]
fn from_nftables_with_iptables() {
    take_over(KubeProxy::nftables(), Flavour::Nft, "iptables");
}

#[test]
fn from_iptables_nft_with_nftables() {
    take_over(KubeProxy::iptables(Flavour::Nft), Flavour::Nft, "nftables");
}

#[test]
fn from_iptables_legacy_with_nftables() {
    take_over(KubeProxy::iptables(Flavour::Legacy), Flavour::Legacy, "nftables");
}

#[test]
fn from_iptables_nft_with_iptables() {
    take_over(KubeProxy::iptables(Flavour::Nft), Flavour::Nft, "iptables");
}

#[test]
fn from_iptables_legacy_with_iptables() {
    take_over(KubeProxy::iptables(Flavour::Legacy), Flavour::Legacy, "iptables");
}

/// Base chains that have changed since, or are no more, and a chain that nothing needs.
const OLDER: &str = "
delete chain ip kube-proxy filter-input
delete chain ip6 kube-proxy filter-prerouting-pre-dnat
table ip kube-proxy {
    chain filter-input { type filter hook input priority -110; ct state new jump services-of-old; }
    chain filter-output-post-dnat { type filter hook output priority -90; }
    chain services-of-old { }
    chain mark-for-masquerade { mark set mark or 0x4000; }
}
";

#[test]
fn from_older_nftables_with_nftables() {
    let mut kube_proxy = KubeProxy::nftables();
    take_over_changed(&mut kube_proxy, Flavour::Nft, "nftables", |node| node.nft(OLDER).unwrap());
}

/// After ipvs mode. The stand-in for that mode serves nothing, so there is no traffic before.
fn from_ipvs(flavour: Flavour, mode: &str) {
    let ipvs = IpvsMode { flavour };
    let mut rig = prepare(mode, &cluster());
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    ipvs.leave(&node, &cluster_before()).unwrap();
    assert!(ipvs.leftovers(&node).unwrap().len() > 60, "the fixtures");

    rig.start_again().unwrap();
    until_nothing_of_ipvs(&node, flavour);
    // Services that went away and node ports at cluster IPs are refused, as on any node: no address
    // of a Service is the node's any more.
    assert_taken_over(rig, &bystanders, flavour, mode);
}

#[test]
fn from_ipvs_nft_with_nftables() {
    from_ipvs(Flavour::Nft, "nftables");
}

#[test]
fn from_ipvs_legacy_with_nftables() {
    from_ipvs(Flavour::Legacy, "nftables");
}

#[test]
fn from_ipvs_nft_with_iptables() {
    from_ipvs(Flavour::Nft, "iptables");
}

#[test]
fn from_ipvs_legacy_with_iptables() {
    from_ipvs(Flavour::Legacy, "iptables");
}
