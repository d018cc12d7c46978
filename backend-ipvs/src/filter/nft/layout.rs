//! The sets of the table, and how entries become their elements.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ipnet::IpNet;
use switchyard_core::model::{IpFamily, Protocol};
use switchyard_netlink::ipset::{Entry, SetType};
use switchyard_nft_ruleset::{Field, Key, Selector, SetDef, SetName, Table};

use crate::sets::Set;

/// Returns the table of a family.
pub(super) fn table(family: IpFamily) -> Table {
    Table::new(family.into(), "switchyard-ipvs")
}

/// Returns the name of the nft set that holds the entries of a set. Node ports of TCP and of UDP are in
/// one.
pub(super) const fn name(set: Set) -> &'static str {
    match set {
        Set::LoopBack => "hairpins",
        Set::ClusterIp => "cluster-ips",
        Set::ExternalIp => "external-ips",
        Set::ExternalIpLocal => "external-ips-local",
        Set::LoadBalancer => "load-balancer-ips",
        Set::LoadBalancerLocal => "load-balancer-ips-local",
        Set::LoadBalancerFirewall => "limited-ips",
        Set::LoadBalancerSources => "allowed-sources",
        Set::NodePort(Protocol::Sctp) => "node-ports-sctp",
        Set::NodePort(Protocol::Tcp | Protocol::Udp) => "node-ports",
        Set::NodePortLocal(Protocol::Sctp) => "node-ports-local-sctp",
        Set::NodePortLocal(Protocol::Tcp | Protocol::Udp) => "node-ports-local",
        Set::HealthCheck => "health-check-ports",
        Set::Bound => "service-ips",
        Set::Silent => "silent-ips",
    }
}

/// Returns the definitions of the sets that hold entries.
pub(super) fn definitions(family: IpFamily) -> Vec<Arc<SetDef>> {
    let mut names = BTreeSet::new();
    let sets = Set::ALL.into_iter().filter(|set| names.insert(name(*set)));
    sets.map(|set| definition(set, family)).collect()
}

/// Returns the definition of the nft set that holds the entries of a set.
pub(super) fn definition(set: Set, family: IpFamily) -> Arc<SetDef> {
    use Field::{InetProto, InetService};
    let ip = address_field(family);
    let name = name(set);
    Arc::new(match set.kind() {
        SetType::HashIp => SetDef::set(name, [ip]),
        SetType::HashIpPort => SetDef::set(name, [ip, InetProto, InetService]),
        SetType::HashIpPortIp => SetDef::set(name, [ip, InetProto, InetService, ip]),
        SetType::HashIpPortNet => {
            SetDef::concat_interval_set(name, [ip, InetProto, InetService], ip)
        }
        SetType::BitmapPort => SetDef::set(name, [InetProto, InetService]),
    })
}

/// Returns the parts of a packet to a Service that are compared with an element.
pub(super) fn selectors(set: Set) -> Vec<Selector> {
    use Selector::{DestinationAddress, DestinationPort, Protocol, SourceAddress};
    match set.kind() {
        SetType::HashIp => vec![DestinationAddress],
        SetType::HashIpPort => vec![DestinationAddress, Protocol, DestinationPort],
        SetType::HashIpPortIp | SetType::HashIpPortNet => {
            vec![DestinationAddress, Protocol, DestinationPort, SourceAddress]
        }
        SetType::BitmapPort => vec![Protocol, DestinationPort],
    }
}

/// The type of a family's addresses.
pub(super) fn address_field(family: IpFamily) -> Field {
    switchyard_nft_ruleset::Family::from(family).address_field()
}

/// Returns the element of an entry; `None` for an entry that the set cannot hold.
pub(super) fn key(set: Set, entry: &Entry) -> Option<Key> {
    let at = |ip, number, port| Some(Key::new().address(ip).protocol(protocol(number)?).port(port));
    match *entry {
        Entry::Ip(ip) => Some(Key::new().address(ip)),
        Entry::IpPort { ip, protocol, port } => at(ip, protocol, port),
        Entry::IpPortIp { ip, protocol, port, second } => {
            Some(at(ip, protocol, port)?.address(second))
        }
        Entry::IpPortNet { ip, protocol, port, net } => {
            Some(at(ip, protocol, port)?.interval_of(net))
        }
        Entry::Port(port) => Some(Key::new().protocol(protocol_of(set)?).port(port)),
    }
}

/// Returns the entry of an element of the nft set with this name; `None` if no entry has this element.
pub(super) fn entry(family: IpFamily, set: &SetName, element: &Key) -> Option<(Set, Entry)> {
    let sets = Set::ALL.into_iter().filter(|candidate| name(*candidate) == set.as_str());
    let entries = sets.filter_map(|set| Some((set, read(set, family, element)?)));
    entries.into_iter().find(|(set, entry)| key(*set, entry) == Some(*element))
}

fn read(set: Set, family: IpFamily, element: &Key) -> Option<Entry> {
    let mut fields = Fields { family, rest: element.as_slice() };
    Some(match set.kind() {
        SetType::HashIp => Entry::Ip(fields.address()?),
        SetType::BitmapPort => {
            fields.protocol()?;
            Entry::Port(fields.port()?)
        }
        kind => {
            let (ip, protocol, port) = (fields.address()?, fields.protocol()?, fields.port()?);
            match kind {
                SetType::HashIpPortIp => {
                    Entry::IpPortIp { ip, protocol, port, second: fields.address()? }
                }
                SetType::HashIpPortNet => {
                    let net = network(fields.address()?, fields.address()?)?;
                    Entry::IpPortNet { ip, protocol, port, net }
                }
                _ => Entry::IpPort { ip, protocol, port },
            }
        }
    })
}

/// The fields of an element that are still to be read.
struct Fields<'a> {
    family: IpFamily,
    rest: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*field)
    }

    fn address(&mut self) -> Option<IpAddr> {
        Some(match self.family {
            IpFamily::V4 => Ipv4Addr::from(self.take::<4>()?).into(),
            IpFamily::V6 => Ipv6Addr::from(self.take::<16>()?).into(),
        })
    }

    fn protocol(&mut self) -> Option<u8> {
        self.take::<4>().map(|[number, ..]| number)
    }

    fn port(&mut self) -> Option<u16> {
        self.take::<4>().map(|[high, low, ..]| u16::from_be_bytes([high, low]))
    }
}

fn protocol(number: u8) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
}

/// The protocol of the entries of a set of ports.
fn protocol_of(set: Set) -> Option<Protocol> {
    match set {
        Set::NodePort(protocol) | Set::NodePortLocal(protocol) => Some(protocol),
        Set::HealthCheck => Some(Protocol::Tcp),
        _ => None,
    }
}

/// Returns the network from one address to another; `None` if there is none.
fn network(first: IpAddr, last: IpAddr) -> Option<IpNet> {
    let length = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            (u32::from(first) ^ u32::from(last)).leading_zeros()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            (u128::from(first) ^ u128::from(last)).leading_zeros()
        }
        _ => return None,
    };
    let net = IpNet::new(first, u8::try_from(length).ok()?).ok()?;
    (net.network() == first && net.broadcast() == last).then_some(net)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_an_element_of_its_own() {
        for (family, ip, net) in
            [(IpFamily::V4, "10.0.0.1", "10.1.0.0/16"), (IpFamily::V6, "fd00::1", "fd01::/33")]
        {
            let (ip, net): (IpAddr, IpNet) = (ip.parse().unwrap(), net.parse().unwrap());
            let mut keys = BTreeSet::new();
            for set in Set::ALL {
                let (protocol, port) = (17, 53);
                let made = match set.kind() {
                    SetType::HashIp => Entry::Ip(ip),
                    SetType::HashIpPort => Entry::IpPort { ip, protocol, port },
                    SetType::HashIpPortIp => Entry::IpPortIp { ip, protocol, port, second: ip },
                    SetType::HashIpPortNet => Entry::IpPortNet { ip, protocol, port, net },
                    SetType::BitmapPort => Entry::Port(port),
                };
                let key = key(set, &made).unwrap();
                assert_eq!(entry(family, &name(set).into(), &key), Some((set, made)));
                assert!(keys.insert((name(set), key)), "{set:?}");
            }
        }
    }

    #[test]
    fn other_elements_are_no_entries() {
        let of = |set, key| entry(IpFamily::V4, &name(set).into(), &key);
        let port = Key::new().protocol(Protocol::Sctp).port(30_000);
        assert_eq!(of(Set::NodePort(Protocol::Tcp), port), None);
        let at = Key::new().address([10, 0, 0, 1].into()).protocol(Protocol::Tcp).port(80);
        assert!(of(Set::ClusterIp, at).is_some());
        let range = at.address([10, 0, 0, 1].into()).address([10, 0, 0, 2].into());
        assert_eq!(of(Set::LoadBalancerSources, range), None);
        assert_eq!(of(Set::Bound, Key::new()), None);
    }
}
