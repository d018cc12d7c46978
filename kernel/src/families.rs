//! The IP families of this kernel, and their addresses as it writes them.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use switchyard_model::{IpFamily, PerFamily};

/// Returns the families that the kernel has in this network namespace: IPv4 always, IPv6 unless it
/// is missing or switched off (`net.ipv6.conf.all.disable_ipv6`).
pub fn families() -> PerFamily<bool> {
    let disabled = fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let v6 = fs::exists("/proc/net/if_inet6").unwrap_or(false)
        && disabled.map_or(true, |text| text.trim() != "1");
    PerFamily { v4: true, v6 }
}

/// Returns the address in these bytes, in network byte order; `None` unless there are 4 or 16.
pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

/// Returns the bytes of an address in network byte order.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Returns the number of a family: `AF_INET` or `AF_INET6`, which `NFPROTO_IPV4` and `NFPROTO_IPV6`
/// are as well.
pub(crate) fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => libc::AF_INET as u8,
        IpFamily::V6 => libc::AF_INET6 as u8,
    }
}
