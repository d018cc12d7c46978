//! Addresses, as the kernel's protocol has them: a family, and 16 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the family of an address.
pub(crate) fn family(ip: IpAddr) -> u16 {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u16
}

/// Returns `union nf_inet_addr`, of which IPv4 uses the first four bytes.
pub(crate) fn bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Reads an address; `None` if the family is unknown or bytes are missing.
pub(crate) fn read(family: u16, bytes: &[u8]) -> Option<IpAddr> {
    Some(match i32::from(family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?)),
        _ => return None,
    })
}
