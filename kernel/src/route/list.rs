//! Devices and addresses, as the kernel's rtnetlink lists them.

use std::{collections::BTreeSet, net::IpAddr};

use crate::netlink::{Error, Message, Socket, Writer, flags};

use self::abi::{address, link};

pub(crate) struct Link {
    pub(crate) index: u32,
    /// The type; `None` for hardware.
    pub(crate) kind: Option<String>,
    /// The alias, which programs give devices.
    pub(crate) alias: Option<String>,
}

/// Returns the device of this name; `None` if there is none.
pub(crate) fn find(socket: &mut Socket, device: &str) -> Result<Option<Link>, Error> {
    let fill = |w: &mut Writer| {
        w.raw(&link::NO_INDEX);
        w.string(link::NAME, device);
    };
    socket.find(libc::RTM_GETLINK, fill, libc::ENODEV, |message| {
        read_link(message).ok_or(Error::Malformed("a device"))
    })
}

/// Lists the addresses of all interfaces, in both families.
///
/// # Errors
/// If the kernel refuses.
pub fn interface_addresses() -> Result<BTreeSet<IpAddr>, Error> {
    addresses(&mut Socket::open(libc::NETLINK_ROUTE)?, 0, |_, _| true)
}

/// Lists the addresses of all interfaces, each with the length of its network, in both families.
///
/// # Errors
/// If the kernel refuses.
pub fn interface_networks() -> Result<Vec<(IpAddr, u8)>, Error> {
    with_prefixes(&mut Socket::open(libc::NETLINK_ROUTE)?, 0, |_, _| true)
}

/// Lists the addresses of both families that `keep` keeps, of the device with this index, or of
/// all if it is 0.
pub(crate) fn addresses(
    socket: &mut Socket,
    index: u32,
    keep: impl Fn(u32, IpAddr) -> bool,
) -> Result<BTreeSet<IpAddr>, Error> {
    let found = with_prefixes(socket, index, keep)?;
    Ok(found.into_iter().map(|(ip, _)| ip).collect())
}

/// Lists the same with the lengths of the networks.
pub(crate) fn with_prefixes(
    socket: &mut Socket,
    index: u32,
    keep: impl Fn(u32, IpAddr) -> bool,
) -> Result<Vec<(IpAddr, u8)>, Error> {
    let mut addresses = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let of_family = socket.dump(
            |writer, sequence| {
                writer.message(libc::RTM_GETADDR, flags::DUMP, sequence, |w| {
                    w.raw(&address::header(family as u8, 0, 0, 0, index));
                });
            },
            |found: &mut Vec<(IpAddr, u8)>, message| {
                let (of, ip) = read_address(&message).ok_or(Error::Malformed("an address"))?;
                let prefix = message.payload.get(address::PREFIX).copied().unwrap_or_default();
                found.extend(ip.filter(|ip| keep(of, *ip)).map(|ip| (ip, prefix)));
                Ok(())
            },
        )?;
        addresses.extend(of_family);
    }
    Ok(addresses)
}

/// Returns the index of the device whose address changed; `None` if the message reports no such
/// change.
pub(crate) fn changed_device(message: &Message<'_>) -> Option<u32> {
    let is_change = matches!(message.kind, libc::RTM_NEWADDR | libc::RTM_DELADDR);
    read_address(message).filter(|_| is_change).map(|(index, _)| index)
}

/// Returns the address that came to a device or went, and whether it is there; `None` if the message
/// reports no such change.
pub(crate) fn change(message: &Message<'_>) -> Option<(IpAddr, bool)> {
    let is_there = match message.kind {
        libc::RTM_NEWADDR => true,
        libc::RTM_DELADDR => false,
        _ => return None,
    };
    let (_, ip) = read_address(message)?;
    Some((ip?, is_there))
}

fn read_link(message: Message<'_>) -> Option<Link> {
    let index = message.payload.get(4..)?.first_chunk::<4>()?;
    let attributes = message.attributes(link::HEADER);
    let info = attributes.find_kind(link::INFO);
    let kind = info.and_then(|info| info.nested().text(link::INFO_KIND));
    Some(Link {
        index: u32::from_ne_bytes(*index),
        kind: kind.map(str::to_owned),
        alias: attributes.text(link::ALIAS).map(str::to_owned),
    })
}

/// Returns the index of a device, and the device's address, if that is one of IPv4 or IPv6.
fn read_address(message: &Message<'_>) -> Option<(u32, Option<IpAddr>)> {
    let [family, _, _, _, index @ ..] = *message.payload.first_chunk::<{ address::HEADER }>()?;
    let index = u32::from_ne_bytes(index);
    let find = |kind| message.attributes(address::HEADER).find_kind(kind);
    // On a point-to-point link, `ADDRESS` is the other end's.
    let bytes = find(address::LOCAL).or_else(|| find(address::ADDRESS))?.payload;
    let ip = match i32::from(family) {
        libc::AF_INET => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        libc::AF_INET6 => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
        _ => None,
    };
    Some((index, ip))
}

/// The numbers of the kernel's protocol.
pub(crate) mod abi {
    /// Devices (`linux/if_link.h`).
    pub(crate) mod link {

        /// The length of `struct ifinfomsg`, of which bytes 4 to 7 are the index.
        pub(crate) const HEADER: usize = 16;
        /// A header with index 0: the name selects the device.
        pub(crate) const NO_INDEX: [u8; HEADER] = [0; HEADER];

        /// `IFLA_IFNAME`
        pub(crate) const NAME: u16 = 3;
        /// `IFLA_LINKINFO`
        pub(crate) const INFO: u16 = 18;
        /// `IFLA_IFALIAS`
        pub(crate) const ALIAS: u16 = 20;
        /// `IFLA_INFO_KIND`
        pub(crate) const INFO_KIND: u16 = 1;
        pub(crate) const DUMMY: &str = "dummy";
        pub(crate) const BRIDGE: &str = "bridge";
    }

    /// Addresses (`linux/if_addr.h`).
    pub(crate) mod address {
        /// The groups that are notified of changes, `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR`
        /// (`linux/rtnetlink.h`).
        pub(crate) const GROUPS: [i32; 2] = [5, 9];

        /// `IFA_ADDRESS`
        pub(crate) const ADDRESS: u16 = 1;
        /// `IFA_LOCAL`
        pub(crate) const LOCAL: u16 = 2;
        /// `IFA_CACHEINFO`: `struct ifa_cacheinfo`.
        pub(crate) const LIFETIMES: u16 = 6;
        /// Preferred for no time, valid for ever; and two numbers that the kernel sets.
        pub(crate) const NEVER_PREFERRED: [u8; 16] =
            [0, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0];
        /// `IFA_F_NODAD`
        pub(crate) const NO_DETECTION: u8 = 2;

        /// The length of `struct ifaddrmsg`.
        pub(crate) const HEADER: usize = 8;
        /// The place of `ifa_prefixlen` there.
        pub(crate) const PREFIX: usize = 1;

        pub(crate) fn header(
            family: u8,
            prefix: u8,
            flags: u8,
            scope: u8,
            index: u32,
        ) -> [u8; HEADER] {
            let [i0, i1, i2, i3] = index.to_ne_bytes();
            [family, prefix, flags, scope, i0, i1, i2, i3]
        }
    }
}
