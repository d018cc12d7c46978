//! The stand-in writes the rules that genuine kube-proxy writes, where `KUBE_PROXY` names the
//! program; else there is nothing to compare with, and these tests do nothing.
//!
//! Compared is what decides about packets: not comments, nor the order of sets, chains and matches,
//! nor the counters of packets by nfacct, for which kube-proxy has its own rules.

use std::collections::BTreeSet;

use packet_rig::{NetNs, Topology, kube_proxy};
use switchyard_core::model::IpFamily;
use switchyard_iptables::Flavour;

use crate::kube_proxy::{Cluster, IptablesMode, NftablesMode, programs};
use crate::support::{assert_same, is_1_30};

/// The matches of iptables that only count packets.
const COUNTERS: [&str; 2] = [
    " -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts",
    " -m nfacct --nfacct-name  localhost_nps_accepted_pkts",
];

/// A node for genuine kube-proxy, which finds its addresses there, and a namespace for the
/// stand-in.
fn nodes() -> Option<(Topology, NetNs)> {
    kube_proxy::find().unwrap()?;
    Some((Topology::new().unwrap(), NetNs::new().unwrap()))
}

/// A rule without its comment, as `comment "text"`.
fn without_comment(line: &str) -> &str {
    line.split(" comment \"").next().unwrap_or_default()
}

/// The objects of a table as nft lists them, each a line: rules in their order, elements sorted.
fn objects(listing: &str) -> Vec<String> {
    let mut objects = Vec::new();
    // Objects begin with one tab, and their lines with two or more.
    for line in listing.lines().skip(1).filter(|line| !matches!(line.trim(), "" | "}")) {
        let text = line.trim();
        match (line.starts_with("\t\t"), objects.last_mut()) {
            (false, _) => objects.push(vec![text.to_owned()]),
            (true, Some(lines)) if !text.starts_with("comment ") => {
                lines.push(without_comment(text).to_owned());
            }
            (true, _) => (),
        }
    }
    let line = |lines: Vec<String>| match lines[0].starts_with("chain") {
        true => lines.join("; "),
        false => {
            let text = lines.join(" ");
            let parts: BTreeSet<&str> = text.split([',', '{', '}']).map(str::trim).collect();
            parts.into_iter().collect::<Vec<_>>().join(", ")
        }
    };
    let mut objects: Vec<String> = objects.into_iter().map(line).collect();
    objects.sort();
    objects
}

#[test]
fn in_nftables_mode() {
    let Some((topology, stand_in)) = nodes().filter(|_| !is_1_30()) else { return };
    let genuine = &topology.node().namespace;
    NftablesMode::default().sync(genuine, Cluster::After).unwrap();
    NftablesMode::default().write(&stand_in, Cluster::After).unwrap();
    for family in ["ip", "ip6"] {
        let list = |node: &NetNs| {
            objects(
                &node.output("nft", &["-s", "list", "table", family, "kube-proxy"], "").unwrap(),
            )
        };
        let (genuine, stand_in) = (list(genuine), list(&stand_in));
        assert!(genuine.len() > 40, "{genuine:#?}");
        assert_same(&genuine, &stand_in);
    }
}

/// A line of `iptables-save` without its comment, its words in order.
fn sorted_words(line: &str) -> String {
    let line = COUNTERS.iter().fold(line.to_owned(), |line, counter| line.replace(counter, ""));
    // Every second part is within quotation marks.
    let unquoted = line.split('"').step_by(2);
    let mut words: Vec<&str> = unquoted.flat_map(str::split_whitespace).collect();
    words.sort_unstable();
    words.join(" ")
}

fn in_iptables_mode(flavour: Flavour) {
    let Some((topology, stand_in)) = nodes() else { return };
    let genuine = &topology.node().namespace;
    IptablesMode { flavour }.sync(genuine, Cluster::After).unwrap();
    IptablesMode { flavour }.write(&stand_in, Cluster::After).unwrap();
    for family in IpFamily::ALL {
        let rules = |node: &NetNs| {
            let lines = programs::save(flavour, node, family).unwrap();
            // The rules of node ports at loopback addresses have a copy that counts.
            let is_compared = |line: &&String| !line.contains("--nfacct-name  localhost");
            let mut rules: Vec<_> =
                lines.iter().filter(is_compared).map(|line| sorted_words(line)).collect();
            rules.sort();
            rules
        };
        let (genuine, stand_in) = (rules(genuine), rules(&stand_in));
        assert!(genuine.len() > 100, "{genuine:#?}");
        assert_same(&genuine, &stand_in);
    }
}

tests! {
    in_iptables_mode_with_nft: in_iptables_mode(Flavour::Nft);
    in_iptables_mode_with_legacy: in_iptables_mode(Flavour::Legacy);
}
