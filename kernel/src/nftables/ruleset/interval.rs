//! Intervals of addresses: the elements of sets with `flags interval`. The key of such an element
//! is the first and the last address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{Element, Key};
use crate::families::address;

impl Key {
    /// The key of the addresses from `first` to `last`, which are of one family.
    pub fn interval(first: IpAddr, last: IpAddr) -> Self {
        Self::new().address(first).address(last)
    }

    /// The first and the last address, if this is the key of an interval.
    pub fn as_interval(&self) -> Option<(IpAddr, IpAddr)> {
        bounds(self.as_slice())
    }
}

impl Element {
    /// Returns the elements of an interval set that contains these networks, which are of one
    /// family: sorted, and as few as possible. Networks that overlap or are neighbours become one
    /// interval.
    pub fn intervals<'a>(nets: impl IntoIterator<Item = &'a IpNet>) -> Vec<Self> {
        let mut nets: Vec<(IpAddr, IpAddr)> =
            nets.into_iter().map(|net| (net.network(), net.broadcast())).collect();
        nets.sort_unstable();
        let mut merged: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(nets.len());
        for (first, last) in nets {
            match merged.last_mut() {
                // An interval up to the last address has everything that follows.
                Some((_, end)) if successor(*end).is_none_or(|next| first <= next) => {
                    *end = last.max(*end);
                }
                _ => merged.push((first, last)),
            }
        }
        merged.into_iter().map(|(first, last)| Self::new(Key::interval(first, last))).collect()
    }
}

/// The first and the last address of an interval, if these bytes are the key of one.
pub(crate) fn bounds(key: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (first, last) = key.split_at(key.len() / 2);
    Some((address(first)?, address(last)?))
}

/// The next address; `None` after the last.
pub(crate) fn successor(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => Some(Ipv4Addr::from(u32::from(address).checked_add(1)?).into()),
        IpAddr::V6(address) => Some(Ipv6Addr::from(u128::from(address).checked_add(1)?).into()),
    }
}

/// The address before; `None` before the first.
pub(crate) fn predecessor(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => Some(Ipv4Addr::from(u32::from(address).checked_sub(1)?).into()),
        IpAddr::V6(address) => Some(Ipv6Addr::from(u128::from(address).checked_sub(1)?).into()),
    }
}

/// The network that is this interval, if one is.
pub(crate) fn network(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let (width, host_bits) = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            (32, 32 - (u32::from(first) ^ u32::from(last)).leading_zeros())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            (128, 128 - (u128::from(first) ^ u128::from(last)).leading_zeros())
        }
        _ => return None,
    };
    let net = IpNet::new(first, u8::try_from(width - host_bits).ok()?).ok()?;
    (net.network() == first && net.broadcast() == last).then_some(net)
}

/// Where an interval begins, or the address behind one, as the kernel stores intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Boundary {
    pub address: IpAddr,
    pub is_end: bool,
}

/// Returns the keys of the intervals between these boundaries, which may be in any order. An end
/// that ends nothing is left out: nft writes one at the first address.
pub(crate) fn between(mut boundaries: Vec<Boundary>) -> Vec<Key> {
    // Where one interval ends and another begins, the end comes first.
    boundaries.sort_unstable_by_key(|boundary| (boundary.address, !boundary.is_end));
    let mut keys = Vec::with_capacity(boundaries.len() / 2 + 1);
    let mut open: Option<IpAddr> = None;
    for Boundary { address, is_end } in boundaries {
        if let (Some(first), Some(last)) = (open, predecessor(address)) {
            keys.push(Key::interval(first, last));
        }
        open = (!is_end).then_some(address);
    }
    if let Some(first) = open {
        let last = match first {
            IpAddr::V4(_) => Ipv4Addr::BROADCAST.into(),
            IpAddr::V6(_) => Ipv6Addr::from(u128::MAX).into(),
        };
        keys.push(Key::interval(first, last));
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(nets: &[&str]) -> Vec<String> {
        let nets: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
        let bounds = |element: &Element| element.key.as_interval().unwrap();
        let elements = Element::intervals(&nets);
        elements.iter().map(bounds).map(|(first, last)| format!("{first}-{last}")).collect()
    }

    #[test]
    fn networks_become_disjoint_intervals() {
        assert!(intervals(&[]).is_empty());
        assert_eq!(
            intervals(&["10.0.2.0/24", "10.0.0.0/24", "10.0.1.0/24", "10.0.0.7/32", "9.0.0.0/8"]),
            ["9.0.0.0-10.0.2.255"]
        );
        assert_eq!(
            intervals(&["10.0.3.0/24", "10.0.0.0/23", "10.0.1.0/24"]),
            ["10.0.0.0-10.0.1.255", "10.0.3.0-10.0.3.255"]
        );
        assert_eq!(
            intervals(&["0.0.0.0/0", "255.255.255.255/32", "1.2.3.4/32"]),
            ["0.0.0.0-255.255.255.255"]
        );
        assert_eq!(
            intervals(&["ffff::/16", "::/127", "::2/128"]),
            ["::-::2", "ffff::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"]
        );
    }

    #[test]
    fn boundaries_are_paired_in_any_order() {
        let boundary = |text: &str, is_end| Boundary { address: text.parse().unwrap(), is_end };
        let keys = between(vec![
            boundary("240.0.0.0", false),
            boundary("10.0.0.0", true),
            boundary("10.0.0.0", false),
            boundary("0.0.0.0", true),
            boundary("9.0.0.0", false),
            boundary("10.0.1.0", true),
        ]);
        let keys: Vec<_> = keys.iter().map(|key| key.as_interval().unwrap()).collect();
        let pair = |a: &str, b: &str| (a.parse().unwrap(), b.parse().unwrap());
        assert_eq!(
            keys,
            [
                pair("9.0.0.0", "9.255.255.255"),
                pair("10.0.0.0", "10.0.0.255"),
                pair("240.0.0.0", "255.255.255.255"),
            ]
        );
    }

    #[test]
    fn an_interval_is_a_network_or_not() {
        let of = |a: &str, b: &str| {
            network(a.parse().unwrap(), b.parse().unwrap()).map(|net| net.to_string())
        };
        assert_eq!(of("10.0.0.0", "10.255.255.255").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(of("10.0.0.1", "10.0.0.1").as_deref(), Some("10.0.0.1/32"));
        assert_eq!(of("0.0.0.0", "255.255.255.255").as_deref(), Some("0.0.0.0/0"));
        assert_eq!(of("10.0.0.0", "10.0.0.2"), None);
        assert_eq!(of("10.0.0.1", "10.0.0.2"), None);
        assert_eq!(of("fd00::", "fd00::ffff").as_deref(), Some("fd00::/112"));
    }
}
