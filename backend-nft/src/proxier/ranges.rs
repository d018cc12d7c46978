//! The elements of a set of source ranges, compared.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use switchyard_core::{state::ResolvedServicePort, transition::PortChange};
use switchyard_nft_ruleset::{Element, Key, SetName};

use super::changes::{Changes, difference};
use crate::layout::source_ranges;

/// The change of the elements of a set that exists.
#[derive(Clone, Debug)]
pub(super) struct RangeChange {
    pub(super) delete: Vec<Key>,
    pub(super) add: Vec<Element>,
}

/// Compares the set of source ranges of a Service port. Returns its name if the set is made anew: its
/// chain must be made anew, too.
pub(super) fn compare(changes: &mut Changes, port: PortChange<'_>) -> Option<SetName> {
    let set = || source_ranges::set(&port.id.name, port.id.family.into());
    let ranges = |port: Option<&Arc<ResolvedServicePort>>| {
        port.and_then(|port| source_ranges::in_set(port)).cloned()
    };
    let (before, wanted) = match (ranges(port.before), ranges(port.after)) {
        (None, None) => return None,
        (Some(_), None) => {
            changes.delete_sets.push(source_ranges::set_name(&port.id.name));
            return None;
        }
        (None, Some(wanted)) => {
            let set = set();
            changes.change_own(&set, Vec::new(), Element::intervals(&wanted[..]));
            changes.add_sets.push(set);
            return None;
        }
        (Some(before), Some(wanted)) if before == wanted => return None,
        (Some(before), Some(wanted)) => (before, wanted),
    };
    let (set, elements) = (set(), Element::intervals(&wanted[..]));
    let known = Element::intervals(&before[..]).into_iter().map(|element| element.key);
    let change = RangeChange::between(known, elements.clone());
    if !change.needs_new_set() {
        changes.change_own(&set, change.delete, change.add);
        return None;
    }
    let name = set.name.clone();
    changes.delete_sets.push(name.clone());
    changes.change_own(&set, Vec::new(), elements);
    changes.add_sets.push(set);
    Some(name)
}

impl RangeChange {
    /// The change from the elements `known` to those that are `wanted`.
    pub(super) fn between(known: impl IntoIterator<Item = Key>, wanted: Vec<Element>) -> Self {
        let (mut delete, add) = difference(known, wanted);
        delete.sort_unstable();
        Self { delete, add }
    }

    /// Whether the set must be made anew: an address at which an interval that goes begins or ends is
    /// also one of an interval that comes. Kernels before 5.18 take these two for an overlap.
    pub(super) fn needs_new_set(&self) -> bool {
        let gone: HashSet<IpAddr> = self.delete.iter().flat_map(boundaries).collect();
        self.add.iter().flat_map(|element| boundaries(&element.key)).any(|at| gone.contains(&at))
    }
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

    fn change(known: &[&str], wanted: &[&str]) -> RangeChange {
        let elements = |nets: &[&str]| {
            let nets: Vec<ipnet::IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
            Element::intervals(&nets)
        };
        let known = elements(known).into_iter().map(|element| element.key);
        RangeChange::between(known, elements(wanted))
    }

    #[test]
    fn only_differences_are_sent() {
        let same = change(&["10.0.0.0/8"], &["10.0.0.0/8"]);
        assert!(same.delete.is_empty() && same.add.is_empty());
        let more = change(&["10.0.0.0/8", "12.0.0.0/8"], &["12.0.0.0/8", "14.0.0.0/8"]);
        assert_eq!((more.delete.len(), more.add.len()), (1, 1));
        assert!(!more.needs_new_set());
    }

    #[test]
    fn intervals_that_share_a_boundary_need_a_new_set() {
        for (known, wanted) in [
            (&["10.0.0.0/24"][..], &["10.0.0.0/23"][..]),
            (&["10.0.0.0/23"], &["10.0.1.0/24"]),
            (&["10.0.0.0/24"], &["10.0.1.0/24"]),
            (&["10.0.1.0/24"], &["10.0.0.0/24"]),
        ] {
            assert!(change(known, wanted).needs_new_set(), "{known:?} {wanted:?}");
        }
        assert!(!change(&["240.0.0.0/4"], &["224.0.0.0/5"]).needs_new_set());
    }
}
