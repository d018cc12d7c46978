//! Values that several kinds of objects have: port numbers, addresses, texts in messages.

use std::net::IpAddr;

use super::problem::Problems;
use crate::model::Protocol;

/// Returns the number as a port, or `None` if it is not within 1 and 65535, which is added to
/// `problems` with what becomes of the field.
pub(super) fn parse_port(
    number: i64,
    field: impl FnOnce() -> String,
    consequence: &str,
    problems: &mut Problems,
) -> Option<u16> {
    let port = u16::try_from(number).ok().filter(|&port| port != 0);
    if port.is_none() {
        problems.add(field(), format_args!("{number} is not within 1 and 65535; {consequence}"));
    }
    port
}

/// Parses the protocol of a port. Another one is added to `problems`.
pub(super) fn parse_protocol(
    text: &str,
    field: impl FnOnce() -> String,
    problems: &mut Problems,
) -> Option<Protocol> {
    let protocol = text.parse().ok();
    if protocol.is_none() {
        problems.add(
            field(),
            format_args!("`{}` is not TCP, UDP or SCTP; the port is ignored", clip(text)),
        );
    }
    protocol
}

/// Whether the API refuses the address for external IPs and endpoints: such an address means
/// something else on each host, and redirecting to it would reach into the node.
pub(crate) fn is_special(ip: &IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    is_never_shared(ip) || link_local
}

/// Whether the address means the host itself, or a group: no Service can be reached at one. The API
/// takes 255.255.255.255 and the addresses of 0.0.0.0/8, which no host may send to (RFC 1122,
/// section 3.2.1.3), and some kernels refuse.
pub(crate) fn is_never_shared(ip: &IpAddr) -> bool {
    let is_of_no_host = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.is_unspecified(),
    };
    is_of_no_host || ip.is_loopback() || ip.is_multicast()
}

/// Returns at most 64 characters of a value, for messages; characters that could upset a terminal
/// are escaped.
pub(crate) fn clip(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
