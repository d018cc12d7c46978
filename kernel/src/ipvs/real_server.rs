//! Real servers.

use std::net::SocketAddr;

use crate::{
    ipvs::{abi::destination, address},
    netlink::{Attributes, Writer},
};

/// A real server, to which a virtual server sends connections. No two real servers of a virtual
/// server have the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RealServer {
    /// Where connections go.
    pub address: SocketAddr,
    /// The share of the new connections, in relation to other real servers; 0 for none: connections
    /// that exist stay. At most 2,147,483,647. Schedulers without weights see only whether it is 0.
    pub weight: u32,
    /// The number of connections that are established. Not written.
    pub active: u32,
    /// The number of all other connections that the kernel remembers. Not written.
    pub inactive: u32,
    /// Whether addresses are translated, as they are for all real servers that are written. Other
    /// programs can choose other methods: tunnels, and routing without translation.
    pub is_masquerading: bool,
}

impl RealServer {
    /// Returns a real server that masquerades, without connections.
    pub fn new(address: SocketAddr, weight: u32) -> Self {
        Self { address, weight, active: 0, inactive: 0, is_masquerading: true }
    }

    /// Whether the kernel remembers connections, which shows in one that was listed.
    pub fn has_connections(&self) -> bool {
        self.active > 0 || self.inactive > 0
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        write_address(self.address, writer);
        writer.ne32(destination::FORWARDING, destination::MASQUERADE);
        writer.ne32(destination::WEIGHT, self.weight);
        writer.ne32(destination::UPPER_THRESHOLD, 0);
        writer.ne32(destination::LOWER_THRESHOLD, 0);
    }

    /// Reads the attributes of a real server; `None` if some are missing or malformed. Old kernels
    /// leave out the family, which is that of the virtual server then.
    pub(crate) fn read(attributes: Attributes<'_>, family_of_server: u16) -> Option<Self> {
        let (mut ip, mut port, mut family) = (None, None, family_of_server);
        let (mut forwarding, mut weight, mut active, mut inactive) = (None, None, None, None);
        // In one pass, as all attributes of tens of thousands of real servers may be read.
        for attribute in attributes {
            match attribute.kind {
                destination::ADDRESS => ip = Some(attribute.payload),
                destination::PORT => port = attribute.be16(),
                destination::FORWARDING => forwarding = attribute.ne32(),
                destination::WEIGHT => weight = attribute.ne32(),
                destination::ACTIVE => active = attribute.ne32(),
                destination::INACTIVE => inactive = attribute.ne32(),
                destination::ADDRESS_FAMILY => family = attribute.ne16()?,
                _ => {}
            }
        }
        Some(Self {
            address: SocketAddr::new(address::read(family, ip?)?, port?),
            weight: weight?,
            active: active?,
            inactive: inactive?,
            is_masquerading: forwarding? & destination::METHOD == destination::MASQUERADE,
        })
    }
}

/// Appends the attributes that select a real server.
pub(crate) fn write_address(address: SocketAddr, writer: &mut Writer) {
    writer.attribute(destination::ADDRESS, &address::bytes(address.ip()));
    writer.be16(destination::PORT, address.port());
    writer.ne16(destination::ADDRESS_FAMILY, address::family(address.ip()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: u16 = libc::AF_INET as u16;

    fn answer(fill: impl FnOnce(&mut Writer)) -> Writer {
        let mut writer = Writer::new();
        fill(&mut writer);
        writer
    }

    /// The kernel's order (`ip_vs_genl_fill_dest`), with what follows.
    fn answer_for_v4(family: Option<u16>, forwarding: u32) -> Writer {
        answer(|w| {
            w.attribute(1, &[10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            w.be16(2, 8080);
            w.ne32(3, forwarding);
            for (kind, number) in [(4, 100), (5, 0), (6, 0), (7, 11), (8, 12), (9, 13)] {
                w.ne32(kind, number);
            }
            if let Some(family) = family {
                w.ne16(11, family);
            }
            w.nest(10, |w| w.ne32(1, 5));
        })
    }

    #[test]
    fn an_answer_of_the_kernel_is_read() {
        let mut expected = RealServer::new("10.0.0.7:8080".parse().unwrap(), 100);
        (expected.active, expected.inactive) = (11, 12);
        for family in [Some(V4), None] {
            let answer = answer_for_v4(family, 0);
            let read = RealServer::read(Attributes::new(answer.as_slice()), V4);
            assert_eq!(read, Some(expected));
        }
        // A tunnel, and a bit beside the methods.
        for (forwarding, is_masquerading) in [(2, false), (0x100, true), (0x103, false)] {
            let answer = answer_for_v4(None, forwarding);
            let read = RealServer::read(Attributes::new(answer.as_slice()), V4).unwrap();
            assert_eq!(read.is_masquerading, is_masquerading);
        }
    }

    #[test]
    fn the_family_is_that_of_the_real_server() {
        let v6: SocketAddr = "[fd00::7]:53".parse().unwrap();
        let answer = answer(|w| {
            RealServer::new(v6, 0).write(w);
            w.ne32(destination::ACTIVE, 0);
            w.ne32(destination::INACTIVE, 0);
        });
        let read = RealServer::read(Attributes::new(answer.as_slice()), V4);
        assert_eq!(read, Some(RealServer::new(v6, 0)));
    }

    #[test]
    fn what_is_missing_or_malformed_is_not_guessed() {
        let whole = answer_for_v4(Some(V4), 0);
        // Up to the number of inactive connections.
        for end in 0..20 + 8 + 6 * 8 {
            let attributes = Attributes::new(&whole.as_slice()[..end]);
            assert_eq!(RealServer::read(attributes, V4), None, "{end}");
        }
        let attributes = Attributes::new(whole.as_slice());
        assert!(RealServer::read(attributes, V4).is_some());
        let answer = answer_for_v4(Some(99), 0);
        assert_eq!(RealServer::read(Attributes::new(answer.as_slice()), V4), None);
    }
}
