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
    fn numbers(&self) -> [(u16, u32); 3] {
        [
            (attribute::TIMEOUT_TCP, self.tcp),
            (attribute::TIMEOUT_TCP_FIN, self.tcp_fin),
            (attribute::TIMEOUT_UDP, self.udp),
        ]
    }

    /// Appends the attributes. The kernel takes 0 for what it has.
    pub(crate) fn write(&self, writer: &mut Writer) {
        for (kind, seconds) in self.numbers() {
            writer.ne32(kind, seconds);
        }
    }

    /// Reads the attributes. The kernel leaves out protocols that it was built without: 0.
    pub(crate) fn read(attributes: Attributes<'_>) -> Self {
        let seconds = |kind| attributes.find_kind(kind).and_then(|found| found.ne32());
        Self {
            tcp: seconds(attribute::TIMEOUT_TCP).unwrap_or(0),
            tcp_fin: seconds(attribute::TIMEOUT_TCP_FIN).unwrap_or(0),
            udp: seconds(attribute::TIMEOUT_UDP).unwrap_or(0),
        }
    }
}
