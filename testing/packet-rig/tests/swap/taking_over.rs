//! Switchyard takes over from kube-proxy.

use std::{thread, time::Duration};

use packet_rig::{NetNs, Rig, case::Reaches, wait::scaled};
use switchyard_iptables::Flavour;

use crate::kube_proxy::{Bystanders, Cluster, IptablesMode, IpvsMode, NftablesMode};
use crate::support::{
    KubeProxy, Load, assert_same, clean_up, contents, has_ipvs, is_1_30, node, nothing_of_gone,
    prepare, probes_in, sticky_clients, until_no_chains, until_no_tables, until_nothing_of_ipvs,
};

fn take_over(mut kube_proxy: KubeProxy, flavour: Flavour, mode: &str) {
    if (mode == "ipvs" || matches!(kube_proxy, KubeProxy::Ipvs(_))) && !has_ipvs() {
        return;
    }
    take_over_changed(&mut kube_proxy, flavour, mode, |_| {});
}

fn take_over_changed(
    kube_proxy: &mut KubeProxy,
    flavour: Flavour,
    mode: &str,
    change: impl Fn(&NetNs),
) {
    let mut rig = prepare(mode, Cluster::After);
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    kube_proxy.sync(&node, Cluster::Before);
    change(&node);
    let is_ipvs = mode == "ipvs" || matches!(kube_proxy, KubeProxy::Ipvs(_));
    let remember = |reaches: &mut Reaches| reaches.remember = Some("before".to_owned());
    rig.check(&sticky_clients(is_ipvs, remember)).unwrap();

    let load = Load::start(&rig);
    rig.start_again().unwrap();
    // Long enough for what other modes left to be removed, mostly, while the load goes on.
    thread::sleep(scaled(Duration::from_millis(600)));
    load.assert_nothing_lost();

    let is_same_mode = matches!(
        (&*kube_proxy, mode),
        (KubeProxy::Nftables(_), "nftables")
            | (KubeProxy::Iptables(_), "iptables")
            | (KubeProxy::Ipvs(_), "ipvs")
    );
    let same = |reaches: &mut Reaches| {
        reaches.same_as = is_same_mode.then(|| "before".to_owned());
    };
    rig.check(&sticky_clients(is_ipvs, same)).unwrap();
    assert_taken_over(rig, &bystanders, flavour, mode);
}

/// Asserts that all Services are served, that other rules stay, and that the rules are those of a
/// node where kube-proxy never was.
fn assert_taken_over(mut rig: Rig, bystanders: &Bystanders, flavour: Flavour, mode: &str) {
    let node = node(&rig);
    rig.check(&probes_in(mode)).unwrap();
    rig.check(&[nothing_of_gone()]).unwrap();
    match mode {
        // The rules of ipvs mode are those of nftables mode.
        "nftables" | "ipvs" => until_no_chains(&node, flavour),
        _ => until_no_tables(&node),
    }
    assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);

    let taken_over = contents(&node, mode, flavour);
    rig.proxy.kill();
    match mode {
        "ipvs" => clean_up(&rig, mode),
        _ => {
            NftablesMode::cleanup(&node).unwrap();
            IptablesMode { flavour }.cleanup(&node).unwrap();
        }
    }
    rig.start_again().unwrap();
    assert_same(&taken_over, &contents(&node, mode, flavour));
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
    // The tables of 1.30 are older ones as they are.
    let change = |node: &NetNs| {
        if !is_1_30() {
            node.nft(OLDER).unwrap()
        }
    };
    take_over_changed(&mut kube_proxy, Flavour::Nft, "nftables", change);
}

/// After ipvs mode, which ends the connections that IPVS forwards. Where the kernel has no IPVS,
/// the stand-in serves nothing, so there is no traffic before.
fn from_ipvs(flavour: Flavour, mode: &str) {
    let ipvs = IpvsMode { flavour };
    let mut rig = prepare(mode, Cluster::After);
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    ipvs.sync(&node, Cluster::Before).unwrap();
    assert!(ipvs.leftovers(&node).unwrap().len() > 60, "the fixtures");

    let load = has_ipvs().then(|| Load::start(&rig));
    rig.start_again().unwrap();
    until_nothing_of_ipvs(&node, flavour);
    if let Some(load) = load {
        load.assert_only_open_ones_lost();
    }
    // Services that went away and node ports at cluster IPs are refused, as on any node: no address
    // of a Service is the node's any more.
    assert_taken_over(rig, &bystanders, flavour, mode);
}

tests! {
    from_nftables_with_ipvs: take_over(KubeProxy::nftables(), Flavour::Nft, "ipvs");
    from_iptables_nft_with_ipvs: take_over(KubeProxy::iptables(Flavour::Nft), Flavour::Nft, "ipvs");
    from_iptables_legacy_with_ipvs: take_over(KubeProxy::iptables(Flavour::Legacy), Flavour::Legacy, "ipvs");
    from_ipvs_nft_with_ipvs: take_over(KubeProxy::ipvs(Flavour::Nft), Flavour::Nft, "ipvs");
    from_ipvs_legacy_with_ipvs: take_over(KubeProxy::ipvs(Flavour::Legacy), Flavour::Legacy, "ipvs");
    from_nftables_with_nftables: take_over(KubeProxy::nftables(), Flavour::Nft, "nftables");
    from_nftables_with_iptables: take_over(KubeProxy::nftables(), Flavour::Nft, "iptables");
    from_iptables_nft_with_nftables: take_over(KubeProxy::iptables(Flavour::Nft), Flavour::Nft, "nftables");
    from_iptables_legacy_with_nftables: take_over(KubeProxy::iptables(Flavour::Legacy), Flavour::Legacy, "nftables");
    from_iptables_nft_with_iptables: take_over(KubeProxy::iptables(Flavour::Nft), Flavour::Nft, "iptables");
    from_iptables_legacy_with_iptables: take_over(KubeProxy::iptables(Flavour::Legacy), Flavour::Legacy, "iptables");
    from_ipvs_nft_with_nftables: from_ipvs(Flavour::Nft, "nftables");
    from_ipvs_legacy_with_nftables: from_ipvs(Flavour::Legacy, "nftables");
    from_ipvs_nft_with_iptables: from_ipvs(Flavour::Nft, "iptables");
    from_ipvs_legacy_with_iptables: from_ipvs(Flavour::Legacy, "iptables");
}
