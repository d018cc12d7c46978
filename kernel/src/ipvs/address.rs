//! Addresses, as the kernel's protocol has them: a family, and 16 bytes.

use std::net::IpAddr;

use switchyard_model::IpFamily;

use crate::families::{address, family_number, octets};

/// Returns the family of an address.
pub(crate) fn family(ip: IpAddr) -> u16 {
    family_number(IpFamily::of(&ip)).into()
}

/// Returns `union nf_inet_addr`, of which IPv4 uses the first four bytes.
pub(crate) fn bytes(ip: IpAddr) -> [u8; 16] {
    let (octets, mut bytes) = (octets(ip), [0; 16]);
    bytes[..octets.len()].copy_from_slice(&octets);
    bytes
}

/// Reads an address; `None` if the family is unknown or bytes are missing.
pub(crate) fn read(family: u16, bytes: &[u8]) -> Option<IpAddr> {
    let length = match i32::from(family) {
        libc::AF_INET => 4,
        libc::AF_INET6 => 16,
        _ => return None,
    };
    address(bytes.get(..length)?)
}
