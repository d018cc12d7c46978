//! Switchyard in one mode after the other, under load, as when its configuration is changed.

use std::collections::BTreeMap;

use packet_rig::{NetNs, wait::until_ok};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use crate::kube_proxy::{Bystanders, Cluster, IpvsMode, Listing, programs};
use crate::support::{Load, clean_up, compare, has_ipvs, node, prepare, probes_in};

/// The objects of any mode: the tables of nftables mode, chains and jumps, and what ipvs mode has
/// besides.
fn everything(node: &NetNs, flavour: Flavour) -> Vec<String> {
    let mut all = IpvsMode::contents(node).unwrap();
    for family in IpFamily::ALL {
        all.push(format!("{:?}", Listing::read(node, family).unwrap()));
        let lines = programs::save(flavour, node, family).unwrap();
        all.extend(
            lines
                .into_iter()
                .filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL")),
        );
    }
    all.sort();
    all
}

/// Changes from mode to mode, and compares what is there with what each mode has on a node of its
/// own.
fn changes_modes(flavour: Flavour) {
    if !has_ipvs() {
        return;
    }
    let mut rig = prepare("nftables", Cluster::After);
    let node = node(&rig);
    let bystanders = Bystanders::settle(&node, flavour).unwrap();
    let nothing = everything(&node, flavour);
    let mut alone = BTreeMap::new();
    for mode in ["iptables", "ipvs", "nftables"] {
        rig.proxy.options_mut().backend = mode.to_owned();
        rig.start_again().unwrap();
        alone.insert(mode, everything(&node, flavour));
        if mode != "nftables" {
            rig.proxy.kill();
            clean_up(&rig, mode);
        }
    }
    for (from, to) in
        [("nftables", "ipvs"), ("ipvs", "iptables"), ("iptables", "ipvs"), ("ipvs", "nftables")]
    {
        println!("{from} to {to}");
        let load = Load::start(&rig);
        rig.proxy.options_mut().backend = to.to_owned();
        rig.start_again().unwrap();
        until_ok(|| compare(&alone[to], &everything(&node, flavour)));
        match from {
            // Only IPVS knows what it translates.
            "ipvs" => load.assert_only_open_ones_lost(),
            _ => load.assert_nothing_lost(),
        }
        rig.check(&probes_in(to)).unwrap();
        assert_eq!(bystanders.changes(&node).unwrap(), [""; 0]);
    }
    rig.proxy.kill();
    clean_up(&rig, "nftables");
    until_ok(|| compare(&nothing, &everything(&node, flavour)));
    assert_eq!(IpvsMode { flavour }.leftovers(&node).unwrap(), [""; 0]);
}

tests! {
    with_iptables_nft: changes_modes(Flavour::Nft);
    with_iptables_legacy: changes_modes(Flavour::Legacy);
}
