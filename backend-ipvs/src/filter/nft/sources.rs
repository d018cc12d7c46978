//! Source ranges, as the kernel takes them: the ranges of a frontend must not overlap.
//!
//! Entries may overlap, as a Service may list a network and a part of it, or has old and new ranges for a
//! moment. So the elements of a frontend are the networks that its entries cover, and a change of an entry
//! may change several elements.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use switchyard_netlink::ipset::Entry;
use switchyard_nft_ruleset::Key;

use super::layout;
use crate::sets::Set;

/// An address, a protocol and a port.
pub(super) type Frontend = (IpAddr, u8, u16);

/// The ranges of frontends.
pub(super) type Ranges = BTreeMap<Frontend, BTreeSet<IpNet>>;

/// The ranges of a frontend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Limited {
    /// The entries.
    pub(super) entries: BTreeSet<IpNet>,
    /// The networks that the kernel has.
    pub(super) held: BTreeSet<IpNet>,
}

/// Adds entries to ranges, but for those of other sets.
pub(super) fn collect<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Ranges {
    let mut ranges = Ranges::new();
    for entry in entries {
        if let Some((frontend, net)) = split(entry) {
            ranges.entry(frontend).or_default().insert(net);
        }
    }
    ranges
}

/// Returns the frontend and the network of an entry.
pub(super) fn split(entry: &Entry) -> Option<(Frontend, IpNet)> {
    match *entry {
        Entry::IpPortNet { ip, protocol, port, net } => Some(((ip, protocol, port), net.trunc())),
        _ => None,
    }
}

/// Returns the entry of a network of a frontend.
pub(super) fn entry((ip, protocol, port): Frontend, net: IpNet) -> Entry {
    Entry::IpPortNet { ip, protocol, port, net }
}

/// Returns the element of a network of a frontend.
pub(super) fn key(frontend: Frontend, net: IpNet) -> Option<Key> {
    layout::key(Set::LoadBalancerSources, &entry(frontend, net))
}

/// Returns as few networks as possible that cover the same addresses, and do not overlap.
pub(super) fn merged<'a>(nets: impl IntoIterator<Item = &'a IpNet>) -> BTreeSet<IpNet> {
    let nets: Vec<IpNet> = nets.into_iter().copied().collect();
    IpNet::aggregate(&nets).into_iter().collect()
}

/// Returns the networks that no network of `by` contains.
pub(super) fn uncovered(nets: &BTreeSet<IpNet>, by: &BTreeSet<IpNet>) -> Vec<IpNet> {
    let is_covered = |net: &IpNet| by.iter().any(|other| other.contains(net));
    nets.iter().filter(|net| !is_covered(net)).copied().collect()
}

impl Limited {
    /// Returns the networks to delete and those to add, so that the kernel has what entries cover.
    pub(super) fn change(&self) -> (Vec<IpNet>, Vec<IpNet>) {
        let wanted = merged(&self.entries);
        let delete = self.held.difference(&wanted).copied().collect();
        (delete, wanted.difference(&self.held).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn overlapping_networks_are_one() {
        assert_eq!(merged(&nets(&["10.0.0.0/8", "10.1.0.0/16"])), nets(&["10.0.0.0/8"]));
        assert_eq!(merged(&nets(&["0.0.0.0/1", "128.0.0.0/1"])), nets(&["0.0.0.0/0"]));
        assert_eq!(merged(&nets(&["fd00::/16", "fd02::/16"])), nets(&["fd00::/16", "fd02::/16"]));
    }

    #[test]
    fn what_no_network_contains_is_uncovered() {
        let (ours, theirs) = (nets(&["10.1.0.0/16", "11.0.0.0/8"]), nets(&["10.0.0.0/8"]));
        assert_eq!(uncovered(&ours, &theirs), Vec::from_iter(nets(&["11.0.0.0/8"])));
    }

    #[test]
    fn a_part_takes_the_place_of_the_whole() {
        let part = nets(&["10.1.0.0/16"]);
        let limited = Limited { entries: part.clone(), held: nets(&["10.0.0.0/8"]) };
        assert_eq!(limited.change(), (vec!["10.0.0.0/8".parse().unwrap()], Vec::from_iter(part)));
    }
}
