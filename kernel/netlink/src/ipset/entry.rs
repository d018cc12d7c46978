//! Entries of sets.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

use crate::ipset::{
    SetType,
    abi::{NETWORK_ORDER, NO_MATCH, data},
};
use crate::{Attribute, Attributes, Writer};

/// An entry of a set of the type of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Entry {
    /// An address.
    Ip(IpAddr),
    /// A port of an address.
    IpPort {
        /// The address.
        ip: IpAddr,
        /// The IP protocol.
        protocol: u8,
        /// The port.
        port: u16,
    },
    /// A port of an address, and a second address.
    IpPortIp {
        /// The address.
        ip: IpAddr,
        /// The IP protocol.
        protocol: u8,
        /// The port.
        port: u16,
        /// The second address.
        second: IpAddr,
    },
    /// A port of an address, and a network.
    ///
    /// The kernel refuses networks of all addresses, whose prefix is 0 bits long: two halves say
    /// the same, `0.0.0.0/1` and `128.0.0.0/1`. Bits behind the prefix are dropped, so the entry is
    /// listed without them.
    IpPortNet {
        /// The address.
        ip: IpAddr,
        /// The IP protocol.
        protocol: u8,
        /// The port.
        port: u16,
        /// The network.
        net: IpNet,
    },
    /// A port.
    Port(u16),
}

impl fmt::Display for Entry {
    /// Writes the entry as the program `ipset` does: `10.96.0.10,tcp:80`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |f: &mut fmt::Formatter<'_>, ip, protocol: u8, port| match i32::from(protocol) {
            libc::IPPROTO_TCP => write!(f, "{ip},tcp:{port}"),
            libc::IPPROTO_UDP => write!(f, "{ip},udp:{port}"),
            libc::IPPROTO_SCTP => write!(f, "{ip},sctp:{port}"),
            other => write!(f, "{ip},{other}:{port}"),
        };
        match *self {
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::IpPort { ip, protocol, port } => at(f, ip, protocol, port),
            Self::IpPortIp { ip, protocol, port, second } => {
                at(f, ip, protocol, port)?;
                write!(f, ",{second}")
            }
            Self::IpPortNet { ip, protocol, port, net } => {
                at(f, ip, protocol, port)?;
                write!(f, ",{net}")
            }
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}

impl Entry {
    /// Appends the attributes.
    pub(crate) fn write(&self, writer: &mut Writer) {
        match *self {
            Self::Ip(ip) => write_ip(data::IP, ip, writer),
            Self::IpPort { ip, protocol, port } => write_ip_port(ip, protocol, port, writer),
            Self::IpPortIp { ip, protocol, port, second } => {
                write_ip_port(ip, protocol, port, writer);
                write_ip(data::SECOND_IP, second, writer);
            }
            Self::IpPortNet { ip, protocol, port, net } => {
                write_ip_port(ip, protocol, port, writer);
                write_ip(data::SECOND_IP, net.addr(), writer);
                writer.u8(data::SECOND_PREFIX, net.prefix_len());
            }
            Self::Port(port) => write_port(port, writer),
        }
    }

    /// Reads the attributes of an entry of a set of type `kind`; `None` if some are missing or
    /// malformed.
    pub(crate) fn read(kind: SetType, attributes: Attributes<'_>) -> Option<Self> {
        let ip = || read_ip(attributes.find_kind(data::IP)?);
        let second = || read_ip(attributes.find_kind(data::SECOND_IP)?);
        let port = || attributes.find_kind(data::PORT)?.be16();
        let protocol = || attributes.find_kind(data::PROTOCOL)?.u8();
        Some(match kind {
            SetType::HashIp => Self::Ip(ip()?),
            SetType::HashIpPort => Self::IpPort { ip: ip()?, protocol: protocol()?, port: port()? },
            SetType::HashIpPortIp => Self::IpPortIp {
                ip: ip()?,
                protocol: protocol()?,
                port: port()?,
                second: second()?,
            },
            SetType::HashIpPortNet => {
                let prefix = attributes.find_kind(data::SECOND_PREFIX)?.u8()?;
                let net = IpNet::new(second()?, prefix).ok()?;
                Self::IpPortNet { ip: ip()?, protocol: protocol()?, port: port()?, net }
            }
            SetType::BitmapPort => Self::Port(port()?),
        })
    }

    /// Whether the entry is an exception from a wider one (`nomatch` of the program `ipset`).
    pub(crate) fn is_exception(attributes: Attributes<'_>) -> bool {
        let flags = attributes.find_kind(data::FLAGS).and_then(|flags| flags.be32());
        flags.is_some_and(|flags| flags & NO_MATCH != 0)
    }
}

fn write_ip_port(ip: IpAddr, protocol: u8, port: u16, writer: &mut Writer) {
    write_ip(data::IP, ip, writer);
    write_port(port, writer);
    writer.u8(data::PROTOCOL, protocol);
}

fn write_port(port: u16, writer: &mut Writer) {
    writer.be16(data::PORT | NETWORK_ORDER, port);
}

fn write_ip(kind: u16, ip: IpAddr, writer: &mut Writer) {
    writer.nest(kind, |w| match ip {
        IpAddr::V4(ip) => w.attribute(data::IPV4 | NETWORK_ORDER, &ip.octets()),
        IpAddr::V6(ip) => w.attribute(data::IPV6 | NETWORK_ORDER, &ip.octets()),
    });
}

fn read_ip(attribute: Attribute<'_>) -> Option<IpAddr> {
    let address = attribute.nested().next()?;
    match address.kind {
        data::IPV4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(address.payload).ok()?).into()),
        data::IPV6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(address.payload).ok()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<(SetType, Entry)> {
        let [v4, v6]: [IpAddr; 2] = ["192.0.2.1", "2001:db8::1"].map(|ip| ip.parse().unwrap());
        let net = "2001:db8::/33".parse().unwrap();
        let (protocol, port) = (132, 8080);
        vec![
            (SetType::HashIp, Entry::Ip(v4)),
            (SetType::HashIpPort, Entry::IpPort { ip: v6, protocol, port }),
            (SetType::HashIpPortIp, Entry::IpPortIp { ip: v4, protocol, port, second: v4 }),
            (SetType::HashIpPortNet, Entry::IpPortNet { ip: v6, protocol, port, net }),
            (SetType::BitmapPort, Entry::Port(port)),
        ]
    }

    #[test]
    fn what_was_written_is_read() {
        for (kind, entry) in entries() {
            let mut writer = Writer::new();
            entry.write(&mut writer);
            assert_eq!(Entry::read(kind, Attributes::new(writer.as_slice())), Some(entry));
        }
    }

    #[test]
    fn what_is_missing_or_malformed_is_not_guessed() {
        for (kind, entry) in entries() {
            let mut writer = Writer::new();
            entry.write(&mut writer);
            let whole = writer.as_slice();
            for end in 0..whole.len() {
                // The padding of the last attribute, of three bytes at most, may be missing.
                let read = Entry::read(kind, Attributes::new(&whole[..end]));
                assert!(read.is_none() || end + 3 >= whole.len(), "{entry:?} {end}: {read:?}");
            }
        }
        let too_long = Entry::read(
            SetType::HashIpPortNet,
            Attributes::new(
                {
                    let mut writer = Writer::new();
                    write_ip_port("192.0.2.1".parse().unwrap(), 6, 80, &mut writer);
                    write_ip(data::SECOND_IP, "192.0.2.0".parse().unwrap(), &mut writer);
                    writer.u8(data::SECOND_PREFIX, 33);
                    writer
                }
                .as_slice(),
            ),
        );
        assert_eq!(too_long, None);
    }

    #[test]
    fn an_entry_is_that_of_the_kernels_header() {
        let mut writer = Writer::new();
        let net = "10.0.0.0/8".parse().unwrap();
        let ip = "192.0.2.1".parse().unwrap();
        Entry::IpPortNet { ip, protocol: 17, port: 53, net }.write(&mut writer);
        #[rustfmt::skip]
        let expected = [
            12, 0, 1, 0x80, 8, 0, 1, 0x40, 192, 0, 2, 1,
            6, 0, 4, 0x40, 0, 53, 0, 0,
            5, 0, 7, 0, 17, 0, 0, 0,
            12, 0, 20, 0x80, 8, 0, 1, 0x40, 10, 0, 0, 0,
            5, 0, 21, 0, 8, 0, 0, 0,
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(writer.as_slice(), expected);
        }
    }

    #[test]
    fn entries_read_as_those_of_the_program() {
        let ip = IpAddr::from([10, 96, 0, 10]);
        let net = "10.0.0.0/8".parse().unwrap();
        let to_itself = Entry::IpPortIp { ip, protocol: 132, port: 80, second: ip };
        for (entry, expected) in [
            (Entry::Ip(ip), "10.96.0.10"),
            (Entry::IpPort { ip, protocol: 6, port: 80 }, "10.96.0.10,tcp:80"),
            (to_itself, "10.96.0.10,sctp:80,10.96.0.10"),
            (Entry::IpPortNet { ip, protocol: 17, port: 53, net }, "10.96.0.10,udp:53,10.0.0.0/8"),
            (Entry::Port(30080), "30080"),
        ] {
            assert_eq!(entry.to_string(), expected);
        }
    }
}
