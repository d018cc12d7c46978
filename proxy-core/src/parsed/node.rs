//! Nodes: the facts that the Node object of this node states.

use std::net::IpAddr;

use ipnet::IpNet;

use super::problem::Problems;
use crate::{
    model::{IpFamily, parse_cidr, parse_ip},
    objects,
};

/// The label that names a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The taint of a node that is about to be removed: load balancers should stop using it.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The facts that the Node states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeFacts {
    /// The node's first address, and the first of the other family: internal addresses come before
    /// external ones.
    pub addresses: Vec<IpAddr>,
    /// The number of the addresses, from the first on, that are internal.
    pub(crate) internal: usize,
    /// `spec.podCIDRs`, without values that cannot be used.
    pub pod_cidrs: Vec<IpNet>,
    /// The node's zone, unless the label is missing or empty.
    pub zone: Option<String>,
    /// Whether the node may have traffic from load balancers: it is neither being deleted nor
    /// tainted as such.
    pub is_eligible: bool,
}

impl NodeFacts {
    /// Parses `object`. Values that cannot be used are left out and added to `problems`.
    pub(crate) fn parse(object: &objects::Node, problems: &mut Problems) -> Self {
        let (addresses, internal) = parse_addresses(&object.status.addresses, problems);
        Self {
            addresses,
            internal,
            pod_cidrs: parse_cidrs("spec.podCIDRs", &object.spec.pod_cidrs, problems),
            zone: object.metadata.labels.get(ZONE).filter(|zone| !zone.is_empty()).cloned(),
            is_eligible: object.metadata.deletion_timestamp.is_unknown()
                && object.spec.taints.iter().all(|taint| taint.key != TO_BE_DELETED),
        }
    }

    /// Adds the addresses and pod networks of `before` in families that have none here. An internal
    /// address of `before` takes the place of an external one: a node keeps its address while the
    /// Node lacks it.
    pub(crate) fn fill_from(&mut self, before: &Self) {
        let mut found = Vec::new();
        let (own, known) =
            (self.addresses.split_at(self.internal), before.addresses.split_at(before.internal));
        add_families(&mut found, own.0);
        add_families(&mut found, known.0);
        self.internal = found.len();
        add_families(&mut found, own.1);
        add_families(&mut found, known.1);
        self.addresses = found;
        let lacks_net = |net| {
            let family = IpFamily::of_net(net);
            self.pod_cidrs.iter().all(|known| IpFamily::of_net(known) != family)
        };
        let kept: Vec<IpNet> =
            before.pod_cidrs.iter().filter(|net| lacks_net(net)).copied().collect();
        self.pod_cidrs.extend(kept);
    }

    /// The node's own address in `family`: `bind_address` if it is of that family and not all
    /// zeros, else the Node's.
    pub fn ip(&self, bind_address: Option<IpAddr>, family: IpFamily) -> Option<IpAddr> {
        let bound = bind_address.filter(|ip| !ip.is_unspecified());
        let candidates = bound.into_iter().chain(self.addresses.iter().copied());
        candidates.into_iter().find(|ip| IpFamily::of(ip) == family)
    }

    /// The family of `bind_address`, unless that is all zeros, else of the Node's first address;
    /// IPv4 if neither is known.
    pub fn primary_family(&self, bind_address: Option<IpAddr>) -> IpFamily {
        let bound = bind_address.filter(|ip| !ip.is_unspecified());
        let first = bound.or_else(|| self.addresses.first().copied());
        first.map_or(IpFamily::V4, |ip| IpFamily::of(&ip))
    }
}

/// Adds the first address of each family that is not there yet.
fn add_families(found: &mut Vec<IpAddr>, addresses: &[IpAddr]) {
    for ip in addresses {
        if found.iter().all(|known| IpFamily::of(known) != IpFamily::of(ip)) {
            found.push(*ip);
        }
    }
}

/// Returns the first address of each family, and how many of them are internal: these come first.
fn parse_addresses(
    addresses: &[objects::NodeAddress],
    problems: &mut Problems,
) -> (Vec<IpAddr>, usize) {
    let (mut found, mut internal) = (Vec::new(), 0);
    for kind in ["InternalIP", "ExternalIP"] {
        internal = found.len();
        for (i, address) in addresses.iter().enumerate() {
            if address.kind != kind {
                continue;
            }
            match parse_ip(&address.address) {
                Ok(ip) => add_families(&mut found, &[ip]),
                Err(error) => problems.add(
                    format!("status.addresses[{i}].address"),
                    format_args!("{error}; ignored"),
                ),
            }
        }
    }
    (found, internal)
}

/// Parses a list of networks.
pub(crate) fn parse_cidrs(field: &str, texts: &[String], problems: &mut Problems) -> Vec<IpNet> {
    let parse = |(i, text): (usize, &String)| {
        parse_cidr(text)
            .map_err(|error| {
                problems.add(format!("{field}[{i}]"), format_args!("{error}; ignored"));
            })
            .ok()
    };
    texts.iter().enumerate().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_family_is_that_of_the_first_or_the_bind_address() {
        use IpFamily::{V4, V6};
        let detect = |ips: &[&str], bind: &str| {
            let addresses = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let facts = NodeFacts { addresses, ..NodeFacts::default() };
            let bind = bind.parse::<IpAddr>().ok();
            let ip = |family| facts.ip(bind, family).map_or(String::new(), |ip| ip.to_string());
            (facts.primary_family(bind), ip(V4), ip(V6))
        };
        let is = |primary, v4: &str, v6: &str| (primary, v4.to_owned(), v6.to_owned());
        assert_eq!(detect(&[], ""), is(V4, "", ""));
        assert_eq!(detect(&[], "::"), is(V4, "", ""), "all zeros are no address");
        assert_eq!(detect(&["10.0.0.1"], "::"), is(V4, "10.0.0.1", ""));
        assert_eq!(detect(&["fd00::1", "10.0.0.1"], ""), is(V6, "10.0.0.1", "fd00::1"));
        assert_eq!(detect(&["fd00::1", "10.0.0.1"], "10.0.0.9"), is(V4, "10.0.0.9", "fd00::1"));
        assert_eq!(detect(&["10.0.0.1"], "fd00::9"), is(V6, "10.0.0.1", "fd00::9"));
    }
}
