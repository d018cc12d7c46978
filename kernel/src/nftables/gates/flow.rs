//! New connections that gates are asked about.

use std::net::{IpAddr, SocketAddr};

use crate::{families::octets, nftables::abi::expression};

/// The first packet of a connection to an endpoint, as it comes to the hooks `forward` and `output`:
/// with the endpoint as its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFlow {
    /// The source; `None` if it is not known.
    pub source: Option<IpAddr>,
    /// The destination.
    pub destination: SocketAddr,
    /// The number of the protocol, which has ports.
    pub protocol: u8,
    /// Whether connection tracking has translated the destination to this one.
    pub is_translated: bool,
}

impl NewFlow {
    /// The number of the family (`NFPROTO_IPV4`, `NFPROTO_IPV6`).
    pub(super) fn family(&self) -> u8 {
        (if self.destination.is_ipv4() { libc::NFPROTO_IPV4 } else { libc::NFPROTO_IPV6 }) as u8
    }

    /// The bytes of a header of the packet, if they are a part of one known field.
    pub(super) fn bytes(&self, base: u32, offset: usize, length: usize) -> Option<Vec<u8>> {
        let [protocol, source, destination] =
            if self.destination.is_ipv4() { [9, 12, 16] } else { [6, 8, 24] };
        let to = self.destination;
        let fields = match base {
            expression::BASE_NETWORK => vec![
                (protocol, vec![self.protocol]),
                (source, self.source.map(octets).unwrap_or_default()),
                (destination, octets(to.ip())),
            ],
            expression::BASE_TRANSPORT => vec![(2, to.port().to_be_bytes().to_vec())],
            _ => Vec::new(),
        };
        fields.into_iter().find_map(|(at, bytes)| {
            let begin = offset.checked_sub(at)?;
            Some(bytes.get(begin..begin.checked_add(length)?)?.to_vec())
        })
    }
}
