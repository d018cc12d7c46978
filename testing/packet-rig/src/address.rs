//! The address plan, the same in every case so that cases can write addresses as literals.
//!
//! | | IPv4 | IPv6 |
//! |---|---|---|
//! | underlay | 192.168.10.0/24 | fd00:192:168:10::/64 |
//! | `node-1`, second address | .1, .11 | ::1, ::11 |
//! | `node-2` | .2 | ::2 |
//! | `client`, more addresses | .100, .101 to .116 | ::100, ::101 to ::116 |
//! | gateway that refuses | .254 | ::fe |
//! | pods of node N | 10.244.N.0/24 | fd00:10:244:N::/64 |
//! | pods `a`, `b` on `node-1`; `c`, `d` on `node-2` | .10, .11 | ::10, ::11 |
//! | cluster IPs | 10.96.0.0/16 | fd00:10:96::/112 |
//! | load balancer IPs | 203.0.113.0/24 | 2001:db8:113::/64 |
//! | external IPs | 198.51.100.0/24 | 2001:db8:100::/64 |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Both cluster CIDRs, as `--cluster-cidr` takes them. They cover the pods of both nodes.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:10:244::/48";

/// Networks that are reached through `node-1` from everywhere.
pub const SERVICE_NETWORKS: [&str; 6] = [
    "10.96.0.0/16",
    "203.0.113.0/24",
    "198.51.100.0/24",
    "fd00:10:96::/112",
    "2001:db8:113::/64",
    "2001:db8:100::/64",
];

/// The number of addresses that `client` has besides the first.
pub const MORE_CLIENT_ADDRESSES: u8 = 16;

/// One address of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Addresses {
    /// The address of the same family as `other`.
    pub fn of_family(&self, other: IpAddr) -> IpAddr {
        match other {
            IpAddr::V4(_) => self.v4.into(),
            IpAddr::V6(_) => self.v6.into(),
        }
    }
}

/// An address on the underlay, whose IPv6 ending reads like the IPv4 one (100 is `::100`).
pub fn underlay(host: u8) -> Addresses {
    let tail = if host == 254 { 0xfe } else { digits_as_hex(host) };
    Addresses {
        v4: Ipv4Addr::new(192, 168, 10, host),
        v6: Ipv6Addr::new(0xfd00, 0x192, 0x168, 0x10, 0, 0, 0, tail),
    }
}

/// The addresses of the `index`th pod of node `node`.
pub fn pod(node: u8, index: u8) -> Addresses {
    let host = 10 + index;
    Addresses {
        v4: Ipv4Addr::new(10, 244, node, host),
        v6: Ipv6Addr::new(0xfd00, 0x10, 0x244, node.into(), 0, 0, 0, digits_as_hex(host)),
    }
}

/// Reads the decimal digits of `number` as hexadecimal ones, so that 100 looks like 100.
fn digits_as_hex(number: u8) -> u16 {
    let number = u16::from(number);
    ((number / 100) << 8) | ((number / 10 % 10) << 4) | (number % 10)
}
