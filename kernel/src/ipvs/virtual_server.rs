//! Virtual servers.

use crate::{
    ipvs::{Selector, abi::service},
    netlink::{Attributes, Writer},
};

/// A virtual server: packets, and how they are spread over real servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServer {
    /// The packets that are served.
    pub selector: Selector,
    /// The name of the scheduler, as `rr`; empty for none. A virtual server without a scheduler
    /// drops new connections.
    pub scheduler: String,
    /// Flags: [`Self::PERSISTENT`] and those that follow. The kernel's own flag
    /// `IP_VS_SVC_F_HASHED` is neither written nor read.
    pub flags: u32,
    /// The time that a client keeps its real server after its last connection has ended, in
    /// seconds. The kernel keeps the number without [`Self::PERSISTENT`], too, but does not use it.
    pub timeout: u32,
    /// The clients that share a real server if the virtual server is persistent.
    ///
    /// IPv4: a mask of which the most significant bits are those of the first byte of an address,
    /// `0xffff_ffff` for single addresses, and 0 for all clients together. IPv6: the length of a
    /// prefix from 1 to 128, which is 128 for single addresses; the kernel refuses 0, also if the
    /// virtual server is not persistent.
    pub netmask: u32,
}

impl VirtualServer {
    /// The flag of a virtual server whose clients keep their real server
    /// (`IP_VS_SVC_F_PERSISTENT`).
    pub const PERSISTENT: u32 = 1;
    /// The first flag of the scheduler (`IP_VS_SVC_F_SCHED1`). `sh` and `mh` have a fallback then:
    /// a real server that cannot take connections is replaced by another one.
    pub const SCHED1: u32 = 8;
    /// The second flag of the scheduler (`IP_VS_SVC_F_SCHED2`). `sh` and `mh` hash the client's
    /// port, too, then.
    pub const SCHED2: u32 = 0x10;

    pub(crate) fn write(&self, writer: &mut Writer) {
        self.selector.write(writer);
        let none = self.scheduler.is_empty();
        let scheduler = if none { service::NO_SCHEDULER } else { self.scheduler.as_str() };
        writer.string(service::SCHEDULER, scheduler);
        let mut flags = [0; 8];
        flags[..4].copy_from_slice(&(self.flags & !service::HASHED).to_ne_bytes());
        flags[4..].copy_from_slice(&(!service::HASHED).to_ne_bytes());
        writer.attribute(service::FLAGS, &flags);
        writer.ne32(service::TIMEOUT, self.timeout);
        if self.is_ipv4() {
            writer.be32(service::NETMASK, self.netmask);
        } else {
            writer.ne32(service::NETMASK, self.netmask);
        }
    }

    /// Reads the attributes; `None` if some are missing or malformed.
    pub(crate) fn read(attributes: Attributes<'_>) -> Option<Self> {
        let selector = Selector::read(attributes)?;
        let scheduler = attributes.find_kind(service::SCHEDULER)?.str()?;
        let scheduler = if scheduler == service::NO_SCHEDULER { "" } else { scheduler };
        let flags = attributes.find_kind(service::FLAGS)?.payload.first_chunk::<4>()?;
        let mut server = Self {
            selector,
            scheduler: scheduler.to_owned(),
            flags: u32::from_ne_bytes(*flags) & !service::HASHED,
            timeout: attributes.find_kind(service::TIMEOUT)?.ne32()?,
            netmask: 0,
        };
        let netmask = attributes.find_kind(service::NETMASK)?;
        server.netmask = if server.is_ipv4() { netmask.be32() } else { netmask.ne32() }?;
        Some(server)
    }

    fn is_ipv4(&self) -> bool {
        self.selector.family() == libc::AF_INET as u16
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;

    fn bytes(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        write(&mut writer);
        writer.as_slice().to_vec()
    }

    fn servers() -> [VirtualServer; 2] {
        let v4 = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));
        let v6 = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9));
        [
            VirtualServer {
                selector: Selector::Address { protocol: 17, ip: v4, port: 53 },
                scheduler: "rr".to_owned(),
                flags: VirtualServer::PERSISTENT,
                timeout: 10_800,
                netmask: 0xffff_ff00,
            },
            VirtualServer {
                selector: Selector::Address { protocol: 6, ip: v6, port: 443 },
                scheduler: String::new(),
                flags: 0,
                timeout: 0,
                netmask: 128,
            },
        ]
    }

    #[test]
    fn what_is_missing_or_malformed_is_not_guessed() {
        for server in servers() {
            let whole = bytes(|w| server.write(w));
            for end in 0..whole.len() {
                let read = VirtualServer::read(Attributes::new(&whole[..end]));
                assert_eq!(read, None, "{end}");
            }
        }
    }
}
