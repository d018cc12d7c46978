//! Sets: their types, and how they are created and described.

use crate::{Attributes, Writer};

use crate::ipset::abi::{NETWORK_ORDER, attribute, data};

/// The size of the table of a new hash set, which grows with the entries. It is the default of the
/// program `ipset`.
const HASH_SIZE: u32 = 1024;

/// The number of ports of a [`SetType::BitmapPort`].
const PORTS: u32 = 65_536;

/// `NFPROTO_UNSPEC`, which sets of ports have.
const NO_FAMILY: u8 = 0;
const IPV4: u8 = libc::AF_INET as u8;
const IPV6: u8 = libc::AF_INET6 as u8;

/// The type of a set's entries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum SetType {
    /// Addresses.
    HashIp,
    /// Addresses with protocol and port.
    HashIpPort,
    /// Addresses with protocol and port, and second addresses.
    HashIpPortIp,
    /// Addresses with protocol and port, and networks.
    HashIpPortNet,
    /// Ports, all of 0 to 65535.
    BitmapPort,
}

/// A set without its entries.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SetSpec {
    /// The name, of at most [`LONGEST_NAME`](crate::ipset::LONGEST_NAME) bytes.
    pub name: String,
    /// The type of the entries.
    pub kind: SetType,
    /// Whether addresses are those of IPv6. Sets of ports have no addresses: `false`.
    pub is_v6: bool,
    /// The number of entries the set can that have. Of sets of ports, the number of ports, 65,536;
    /// it is not written.
    pub max_elements: u32,
}

impl SetType {
    /// All types.
    pub const ALL: [Self; 5] =
        [Self::HashIp, Self::HashIpPort, Self::HashIpPortIp, Self::HashIpPortNet, Self::BitmapPort];

    /// The kernel's name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashIpPort => "hash:ip,port",
            Self::HashIpPortIp => "hash:ip,port,ip",
            Self::HashIpPortNet => "hash:ip,port,net",
            Self::BitmapPort => "bitmap:port",
        }
    }

    /// The kernel module that has the type.
    pub fn module(self) -> String {
        format!("ip_set_{}", self.as_str().replace(':', "_").replace(',', ""))
    }

    /// The family of sets of the type.
    pub(crate) fn family(self, is_v6: bool) -> u8 {
        match (self, is_v6) {
            (Self::BitmapPort, _) => NO_FAMILY,
            (_, false) => IPV4,
            (_, true) => IPV6,
        }
    }

    /// Reads the type of a set from the attributes of the set; `None` if it is unknown.
    pub(crate) fn of(attributes: Attributes<'_>) -> Option<Self> {
        let name = attributes.find_kind(attribute::TYPE_NAME)?.str()?;
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// The revision of the type that sets are made of: those of Linux 3.18, which all newer kernels
    /// and programs know. A program lists no set of a revision that is newer than itself.
    pub(crate) fn revision(self) -> u8 {
        match self {
            Self::BitmapPort => 3,
            Self::HashIp => 4,
            Self::HashIpPort | Self::HashIpPortIp => 5,
            Self::HashIpPortNet => 7,
        }
    }
}

impl SetSpec {
    /// Appends the attributes that create the set.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.string(attribute::SET_NAME, &self.name);
        writer.string(attribute::TYPE_NAME, self.kind.as_str());
        writer.u8(attribute::REVISION, self.kind.revision());
        writer.u8(attribute::FAMILY, self.kind.family(self.is_v6));
        writer.nest(attribute::DATA, |w| match self.kind {
            SetType::BitmapPort => {
                w.be16(data::PORT | NETWORK_ORDER, 0);
                w.be16(data::LAST_PORT | NETWORK_ORDER, u16::MAX);
            }
            _ => {
                w.be32(data::HASH_SIZE | NETWORK_ORDER, HASH_SIZE);
                w.be32(data::MAX_ELEMENTS | NETWORK_ORDER, self.max_elements);
            }
        });
    }

    /// Reads the attributes of a set; `None` if some are missing or malformed, or if the type is
    /// unknown.
    pub(crate) fn read(attributes: Attributes<'_>) -> Option<Self> {
        let kind = SetType::of(attributes)?;
        let described = attributes.find_kind(attribute::DATA)?.nested();
        let max_elements = match kind {
            SetType::BitmapPort => {
                let [first, last] = [data::PORT, data::LAST_PORT]
                    .map(|kind| described.find_kind(kind).and_then(|port| port.be16()));
                PORTS - u32::from(first?) - (u32::from(u16::MAX) - u32::from(last?))
            }
            _ => described.find_kind(data::MAX_ELEMENTS)?.be32()?,
        };
        Some(Self {
            name: attributes.find_kind(attribute::SET_NAME)?.str()?.to_owned(),
            kind,
            is_v6: attributes.find_kind(attribute::FAMILY)?.u8()? == IPV6,
            max_elements,
        })
    }
}
