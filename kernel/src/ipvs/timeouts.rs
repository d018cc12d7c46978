//! The time that the kernel remembers connections.

use crate::{
    ipvs::abi::attribute,
    netlink::{Attributes, Writer},
};

/// The time that IPVS remembers connections without packets, in seconds. The numbers belong to a
/// network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp: u32,
    /// TCP connections after a FIN.
    pub tcp_fin: u32,
    /// UDP.
    pub udp: u32,
}

impl Timeouts {
    /// Appends the attributes. The kernel takes 0 for what it has.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.ne32(attribute::TIMEOUT_TCP, self.tcp);
        writer.ne32(attribute::TIMEOUT_TCP_FIN, self.tcp_fin);
        writer.ne32(attribute::TIMEOUT_UDP, self.udp);
    }

    /// Reads the attributes. The kernel leaves out protocols that it was built without: 0.
    pub(crate) fn read(attributes: Attributes<'_>) -> Self {
        let of = |kind| attributes.ne32(kind).unwrap_or(0);
        Self {
            tcp: of(attribute::TIMEOUT_TCP),
            tcp_fin: of(attribute::TIMEOUT_TCP_FIN),
            udp: of(attribute::TIMEOUT_UDP),
        }
    }
}
