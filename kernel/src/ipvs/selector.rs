//! The selector of a virtual server.

use std::net::IpAddr;

use crate::{
    ipvs::{abi::service, address},
    netlink::{Attributes, Writer},
};

/// The packets that a virtual server serves. No two virtual servers have the same selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// The address family of the packets: `AF_INET` or `AF_INET6`.
    pub(crate) fn family(&self) -> u16 {
        match *self {
            Self::Address { ip, .. } => address::family(ip),
            Self::Mark { family, .. } => family,
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.ne16(service::ADDRESS_FAMILY, self.family());
        match *self {
            Self::Address { protocol, ip, port } => {
                writer.ne16(service::PROTOCOL, protocol);
                writer.attribute(service::ADDRESS, &address::bytes(ip));
                writer.be16(service::PORT, port);
            }
            Self::Mark { mark, .. } => writer.ne32(service::MARK, mark),
        }
    }

    /// Reads the attributes of a virtual server; `None` if some are missing or malformed.
    pub(crate) fn read(attributes: Attributes<'_>) -> Option<Self> {
        let family = attributes.find_kind(service::ADDRESS_FAMILY)?.ne16()?;
        if let Some(mark) = attributes.find_kind(service::MARK) {
            return Some(Self::Mark { family, mark: mark.ne32()? });
        }
        Some(Self::Address {
            protocol: attributes.find_kind(service::PROTOCOL)?.ne16()?,
            ip: address::read(family, attributes.find_kind(service::ADDRESS)?.payload)?,
            port: attributes.find_kind(service::PORT)?.be16()?,
        })
    }
}
