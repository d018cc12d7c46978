//! Source ranges: for each Service port that has some, a chain that drops what comes from
//! elsewhere.
//!
//! A few ranges are a rule each: with a thousand such Service ports, sets would make commits
//! several times as long, as the kernel looks sets up in a list. More ranges are a set, and the
//! chain has two rules: the time for a packet is then the same for nine ranges and for 60,000.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ipnet::IpNet;
use switchyard_core::{model::ServicePortName, state::ResolvedServicePort};
use switchyard_kernel::nftables::{
    ChainName, Element, Family, Key, Rule, Selector, SetDef, SetName, Side, Statement, Verdict,
};

use super::{ChainRules, names};

/// The most ranges that are a rule each.
const FEW: usize = 8;

/// The name of the chain, which is upstream's.
pub(crate) fn chain_name(name: &ServicePortName) -> ChainName {
    format!("firewall-{}", names::service_port_base(name)).into()
}

/// The name of the set. Upstream has no such set: its rule holds the ranges.
pub(crate) fn set_name(name: &ServicePortName) -> SetName {
    format!("sources-{}", names::service_port_base(name)).into()
}

pub(crate) fn set(name: &ServicePortName, family: Family) -> Arc<SetDef> {
    Arc::new(SetDef::interval_set(set_name(name), family.address_field()))
}

/// The ranges of a Service port, sorted and without overlaps; `None` if traffic may come from
/// anywhere.
pub(crate) fn all(port: &ResolvedServicePort) -> Option<&Arc<[IpNet]>> {
    port.frontends.iter().find_map(|frontend| frontend.allowed_sources.as_ref())
}

/// The ranges that are elements of the set of a Service port; `None` if there is no set.
pub(crate) fn in_set(port: &ResolvedServicePort) -> Option<&Arc<[IpNet]>> {
    all(port).filter(|ranges| ranges.len() > FEW)
}

/// The chain, with its rules; `None` if traffic may come from anywhere.
pub(crate) fn chain(port: &ResolvedServicePort) -> Option<ChainRules> {
    let name = &port.id.name;
    let allow = |source| Rule::new([source, Statement::Verdict(Verdict::Return)]);
    let mut rules: Vec<Rule> = match in_set(port) {
        Some(_) => {
            let key = vec![Selector::SourceAddress];
            vec![allow(Statement::Lookup { key, set: set_name(name) })]
        }
        None => {
            let range = |&net| Statement::Address { side: Side::Source, negated: false, net };
            all(port)?.iter().map(|net| allow(range(net))).collect()
        }
    };
    rules.push(Rule::new([Statement::Verdict(Verdict::Drop)]));
    Some(ChainRules::new(chain_name(name), rules))
}

/// Whether a set must be made anew to lose and get these elements: an address at which an interval
/// that goes begins or ends is also one of an interval that comes. Kernels before 5.18 take these
/// two for an overlap.
pub(crate) fn share_boundary(gone: &[Key], come: &[Element]) -> bool {
    let gone: HashSet<IpAddr> = gone.iter().flat_map(boundaries).collect();
    come.iter().flat_map(|element| boundaries(&element.key)).any(|at| gone.contains(&at))
}

/// The first address of an interval, and the first one behind it, if there is one.
fn boundaries(key: &Key) -> impl Iterator<Item = IpAddr> + use<> {
    let interval = key.as_interval();
    let behind = interval.and_then(|(_, last)| match last {
        IpAddr::V4(last) => Some(IpAddr::V4(Ipv4Addr::from(u32::from(last).checked_add(1)?))),
        IpAddr::V6(last) => Some(IpAddr::V6(Ipv6Addr::from(u128::from(last).checked_add(1)?))),
    });
    interval.map(|(first, _)| first).into_iter().chain(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_that_share_a_boundary_need_a_new_set() {
        let share = |gone: &str, come: &str| {
            let elements = |net: &str| Element::intervals(&[net.parse::<IpNet>().unwrap()]);
            share_boundary(&[elements(gone)[0].key], &elements(come))
        };
        for (gone, come) in [
            ("10.0.0.0/24", "10.0.0.0/23"),
            ("10.0.0.0/23", "10.0.1.0/24"),
            ("10.0.0.0/24", "10.0.1.0/24"),
            ("10.0.1.0/24", "10.0.0.0/24"),
        ] {
            assert!(share(gone, come), "{gone} {come}");
        }
        assert!(!share("240.0.0.0/4", "224.0.0.0/5"));
        assert!(!share("10.0.0.0/8", "14.0.0.0/8"));
    }
}
