//! kube-proxy takes over from Switchyard, which was killed.

use std::{thread, time::Duration};

use packet_rig::{
    NetNs, Rig,
    case::{MANIFESTS, Reaches},
    wait::scaled,
};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;
use switchyard_kernel::ipvs::VirtualServer;

use crate::kube_proxy::{
    Bystanders, Cluster, IptablesMode, IpvsMode, Listing, NftablesMode, programs,
};
use crate::support::{
    KubeProxy, Load, assert_same, clean_up, contents, has_ipvs, is_1_30, node, nothing_of_gone,
    prepare, probes, probes_in, probes_in_kube_proxys_ipvs, sticky_clients, until_no_chains,
    until_no_tables, until_nothing_of_ipvs,
};

/// The maps that kube-proxy does not know, and leaves, for each protocol: nothing that a packet
/// enters looks at them any more.
const LEFT: [&str; 6] = [
    "-endpoints",
    "nodeport--endpoints",
    "local--endpoints",
    "local-nodeport--endpoints",
    "-affinity",
    "nodeport--affinity",
];

/// The commands in docs/swap.md that delete what kube-proxy leaves.
fn removal() -> &'static str {
    let page = include_str!("../../../../docs/swap.md");
    let start = page.find("      for family in ip ip6; do\n").expect("a loop over the families");
    let loops = &page[start..];
    let end = loops.find("      done\n").expect("the end of the loop");
    &loops[..end + "      done\n".len()]
}

/// Whether kube-proxy leaves an object of this name, as a part of a Service port's ClientIP
/// affinity.
fn is_left_by_affinity(name: &str) -> bool {
    ["remember-", "clients-", "local-clients-", "endpoints-", "local-endpoints-"]
        .into_iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Switchyard has run for a while, has seen changes, and is no more.
fn has_run(mode: &str, flavour: Flavour) -> (Rig, NetNs, Bystanders) {
    let mut rig = prepare(mode, Cluster::Before);
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    rig.start_again().unwrap();
    let differ = |reaches: &mut Reaches| reaches.clients_differ = true;
    let remember = |reaches: &mut Reaches| reaches.remember = Some("before".to_owned());
    rig.check(&sticky_clients(mode == "ipvs", differ)).unwrap();
    rig.write(MANIFESTS, Cluster::After.manifests()).unwrap();
    rig.check(&[nothing_of_gone()]).unwrap();
    rig.check(&sticky_clients(mode == "ipvs", remember)).unwrap();
    // A sync that began with the first changes leaves the others to the next, a second later.
    thread::sleep(scaled(Duration::from_millis(1500)));
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
    if is_1_30() {
        return;
    }
    let (mut rig, node, bystanders) = has_run("nftables", Flavour::Nft);
    let before = listings(&node);
    let mut mode = NftablesMode::default();
    let load = Load::start(&rig);
    mode.sync(&node, Cluster::After).unwrap();
    thread::sleep(Duration::from_millis(1100));
    // The next sync deletes what was stale.
    mode.sync(&node, Cluster::After).unwrap();
    load.assert_nothing_lost();
    assert_eq!((mode.cleanup_failures, mode.unreadable), (vec![], vec![]));
    // Clients draw an endpoint anew, and keep to it.
    rig.check(&sticky_clients(false, |_| {})).unwrap();
    check(&mut rig, &bystanders, &node);

    // Apart from what docs/swap.md lists, the table is the same as on a node where Switchyard never
    // was.
    let mut taken_over = listings(&node);
    for (before, after) in before.iter().zip(&taken_over) {
        assert!(before.sets.is_subset(&after.sets), "the same names: {before:#?} {after:#?}");
    }
    let mut left = 0;
    for listing in &mut taken_over {
        for map in LEFT {
            for protocol in ["tcp", "udp", "sctp"] {
                let map = match map.split_once("--") {
                    Some((place, kind)) => format!("{place}-{protocol}-{kind}"),
                    None => format!("{protocol}{map}"),
                };
                assert!(listing.maps.remove(&map), "{map} is gone: must the page list it?");
            }
        }
        for slots in 1..=8 {
            let set = format!("cluster-ips-{slots}");
            assert!(listing.sets.remove(&set), "{set} is gone: must the page list it?");
        }
        for names in [&mut listing.chains, &mut listing.sets, &mut listing.maps] {
            let before = names.len();
            names.retain(|name| !is_left_by_affinity(name));
            left += before - names.len();
        }
    }
    assert!(left > 6, "each Service port with affinity leaves a chain, a set and a map: {left}");
    // Nothing that a packet enters uses all this, so that it can be removed as docs/swap.md
    // describes.
    node.output("sh", &["-e", "-c", removal()], "").unwrap();
    assert_eq!(taken_over, listings(&node));
    NftablesMode::cleanup(&node).unwrap();
    NftablesMode::default().sync(&node, Cluster::After).unwrap();
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
    mode.sync(&node, Cluster::After).unwrap();
    thread::sleep(Duration::from_millis(1100));
    mode.sync(&node, Cluster::After).unwrap();
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
    kube_proxy.sync(&node, Cluster::After);
    load.assert_nothing_lost();
    rig.check(&sticky_clients(false, |reaches| reaches.same_as = Some("before".to_owned())))
        .unwrap();
    check(&mut rig, &bystanders, &node);

    // The rules are the same as on a node where Switchyard never was.
    let taken_over = contents();
    for chain in before.iter().filter(|line| line.starts_with(":KUBE-")) {
        assert!(taken_over.contains(chain), "{chain} is a name of ours alone");
    }
    IptablesMode { flavour }.cleanup(&node).unwrap();
    kube_proxy.sync(&node, Cluster::After);
    assert_eq!(taken_over, contents());

    // And back.
    rig.start_again().unwrap();
    rig.check(&probes()).unwrap();
}

/// In another mode, kube-proxy removes the old rules before it programs anything, so that
/// connections are lost with any proxy before it. Nothing may be left.
#[test]
fn by_iptables_from_nftables() {
    let (mut rig, node, bystanders) = has_run("nftables", Flavour::Nft);
    NftablesMode::cleanup(&node).unwrap();
    until_no_tables(&node);
    KubeProxy::iptables(Flavour::Nft).sync(&node, Cluster::After);
    check(&mut rig, &bystanders, &node);
}

fn by_nftables(flavour: Flavour) {
    let (mut rig, node, bystanders) = has_run("iptables", flavour);
    IptablesMode { flavour }.cleanup(&node).unwrap();
    if !is_1_30() {
        until_no_chains(&node, flavour);
    }
    KubeProxy::nftables().sync(&node, Cluster::After);
    check(&mut rig, &bystanders, &node);
}

/// kube-proxy in ipvs mode removes the rules of nftables at its start, as in another mode, and
/// before it programs its own. It repeats the making of everything else that it finds, and
/// compares virtual servers.
fn by_ipvs(flavour: Flavour) {
    if !has_ipvs() {
        return;
    }
    let (mut rig, node, bystanders) = has_run("ipvs", flavour);
    let mut kube_proxy = KubeProxy::ipvs(flavour);
    let before = IpvsMode::servers(&node).unwrap();
    NftablesMode::cleanup(&node).unwrap();
    until_no_tables(&node);
    kube_proxy.sync(&node, Cluster::After);
    // To change a scheduler, the kernel refuses connections for a while, which kube-proxy would do
    // with one virtual server after the other before it masquerades anything.
    let after = IpvsMode::servers(&node).unwrap();
    let both = |was: &&VirtualServer| after.iter().any(|server| server.selector == was.selector);
    let before: Vec<_> = before.iter().filter(both).collect();
    assert!(before.len() > 10, "{before:?}");
    for server in before {
        assert!(after.contains(server), "{server:?} was changed: {after:?}");
    }
    let same = sticky_clients(true, |reaches| reaches.same_as = Some("before".to_owned()));
    rig.check(&same).unwrap();
    rig.check(&probes_in_kube_proxys_ipvs()).unwrap();
    rig.check(&[nothing_of_gone()]).unwrap();
    assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);

    // All is the same as on a node where Switchyard never was.
    let taken_over = contents(&node, "ipvs", flavour);
    clean_up(&rig, "ipvs");
    assert_eq!(IpvsMode { flavour }.leftovers(&node).unwrap(), [""; 0]);
    kube_proxy.sync(&node, Cluster::After);
    assert_same(&taken_over, &contents(&node, "ipvs", flavour));

    // And back.
    rig.start_again().unwrap();
    rig.check(&probes_in("ipvs")).unwrap();
    rig.proxy.kill();
    clean_up(&rig, "ipvs");
    until_nothing_of_ipvs(&node, flavour);
    until_no_chains(&node, flavour);
    assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);
}

tests! {
    by_iptables_nft_from_iptables: by_iptables(Flavour::Nft);
    by_iptables_legacy_from_iptables: by_iptables(Flavour::Legacy);
    by_nftables_from_iptables_nft: by_nftables(Flavour::Nft);
    by_nftables_from_iptables_legacy: by_nftables(Flavour::Legacy);
    by_ipvs_nft_from_ipvs: by_ipvs(Flavour::Nft);
    by_ipvs_legacy_from_ipvs: by_ipvs(Flavour::Legacy);
}
