//! What a virtual server serves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use switchyard_netlink::{Attributes, Writer};

use crate::abi::service;

/// The packets that a virtual server serves. No two virtual servers have the same selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// Packets to an address and a port.
    Address {
        /// The IP protocol: TCP, UDP or SCTP.
        protocol: u16,
        /// The address.
        ip: IpAddr,
        /// The port; 0 for all ports, which only persistent virtual servers can serve.
        port: u16,
    },
    /// Packets of an address family with a mark that a firewall sets.
    Mark {
        /// `AF_INET` or `AF_INET6`.
        family: u16,
        /// The mark, not 0.
        mark: u32,
    },
}

impl Selector {
    /// Appends the attributes.
    pub(crate) fn write(&self, writer: &mut Writer) {
        match *self {
            Self::Address { protocol, ip, port } => {
                let (family, bytes) = match ip {
                    IpAddr::V4(ip) => {
                        let mut bytes = [0; 16];
                        bytes[..4].copy_from_slice(&ip.octets());
                        (libc::AF_INET, bytes)
                    }
                    IpAddr::V6(ip) => (libc::AF_INET6, ip.octets()),
                };
                writer.ne16(service::ADDRESS_FAMILY, family as u16);
                writer.ne16(service::PROTOCOL, protocol);
                writer.attribute(service::ADDRESS, &bytes);
                writer.be16(service::PORT, port);
            }
            Self::Mark { family, mark } => {
                writer.ne16(service::ADDRESS_FAMILY, family);
                writer.ne32(service::MARK, mark);
            }
        }
    }

    /// Reads the attributes of a virtual server; `None` if some are missing or malformed.
    pub(crate) fn read(attributes: Attributes<'_>) -> Option<Self> {
        let family = attributes.find_kind(service::ADDRESS_FAMILY)?.ne16()?;
        if let Some(mark) = attributes.find_kind(service::MARK) {
            return Some(Self::Mark { family, mark: mark.ne32()? });
        }
        let bytes = attributes.find_kind(service::ADDRESS)?.payload;
        let ip = match i32::from(family) {
            libc::AF_INET => {
                let (bytes, _) = bytes.split_first_chunk::<4>()?;
                IpAddr::V4(Ipv4Addr::from(*bytes))
            }
            libc::AF_INET6 => {
                let (bytes, _) = bytes.split_first_chunk::<16>()?;
                IpAddr::V6(Ipv6Addr::from(*bytes))
            }
            _ => return None,
        };
        Some(Self::Address {
            protocol: attributes.find_kind(service::PROTOCOL)?.ne16()?,
            ip,
            port: attributes.find_kind(service::PORT)?.be16()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SELECTORS: [Selector; 3] = [
        Selector::Address { protocol: 6, ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), port: 443 },
        Selector::Address {
            protocol: 132,
            ip: IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9)),
            port: 0,
        },
        Selector::Mark { family: libc::AF_INET6 as u16, mark: 0x4000 },
    ];

    fn bytes(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        write(&mut writer);
        writer.as_slice().to_vec()
    }

    #[test]
    fn what_was_written_is_read() {
        for selector in SELECTORS {
            let written = bytes(|w| selector.write(w));
            assert_eq!(Selector::read(Attributes::new(&written)), Some(selector));
        }
    }

    /// The kernel's order (`ip_vs_genl_fill_service`), with what follows the selector.
    #[test]
    fn an_answer_of_the_kernel_is_read() {
        let answer = bytes(|w| {
            w.ne16(1, 2);
            w.ne16(2, 17);
            w.attribute(3, &[10, 96, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            w.be16(4, 53);
            w.string(6, "rr");
            w.attribute(7, &[2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
            w.ne32(8, 0);
            w.be32(9, 0xffff_ffff);
            w.nest(10, |w| w.ne32(1, 5));
        });
        let ip = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));
        let expected = Selector::Address { protocol: 17, ip, port: 53 };
        assert_eq!(Selector::read(Attributes::new(&answer)), Some(expected));
    }

    #[test]
    fn what_is_missing_or_malformed_is_not_guessed() {
        for selector in SELECTORS {
            let whole = bytes(|w| selector.write(w));
            for end in 0..whole.len() {
                // The padding of the last attribute may be missing.
                let read = Selector::read(Attributes::new(&whole[..end]));
                assert!(read.is_none() || end + 2 >= whole.len(), "{end}: {read:?}");
            }
        }
        let unknown = bytes(|w| {
            w.ne16(service::ADDRESS_FAMILY, 99);
            w.attribute(service::ADDRESS, &[0; 16]);
        });
        assert_eq!(Selector::read(Attributes::new(&unknown)), None);
    }
}
