//! Hashes of connections, alike on every node.

use std::net::{IpAddr, SocketAddr};

use crate::forwarder::ends::Ends;

/// The part of a connection that an algorithm hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The client's address.
    Source,
    /// The client's address and port.
    SourceAndPort,
    /// The address that the client has connected to.
    Destination,
}

impl Key {
    /// Hashes the ends of a connection. Further attempts give further hashes.
    pub(super) fn hash(self, ends: Ends, attempt: u8) -> u64 {
        match self {
            Self::Source => hash(SocketAddr::new(ends.client.ip(), 0), attempt),
            Self::SourceAndPort => hash(ends.client, attempt),
            Self::Destination => hash(SocketAddr::new(ends.destination.ip(), 0), attempt),
        }
    }
}

/// FNV-1a with the finalizer of SplitMix64, since FNV alone hardly mixes the last bytes.
fn hash(address: SocketAddr, seed: u8) -> u64 {
    // An IPv4 address is the same client when an IPv6 socket has mapped it.
    let (ip, length) = match address.ip().to_canonical() {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 4),
        IpAddr::V6(ip) => (ip.to_bits(), 16),
    };
    let ip = ip.to_be_bytes();
    let bytes = [seed].into_iter().chain(ip.into_iter().take(length));
    let bytes = bytes.chain(address.port().to_be_bytes());
    mix(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }))
}

/// The finalizer of SplitMix64.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The sizes of tables, which are prime numbers, each with the largest number of endpoints: as in
/// nftables mode, and ten slots for each endpoint of larger pools.
const TABLES: [(usize, usize); 5] =
    [(6, 1_021), (20, 4_093), (1_638, 16_381), (13_107, 131_071), (usize::MAX, 1_048_573)];

/// Returns the number of slots of a table for so many endpoints.
pub(super) fn table_size(endpoints: usize) -> usize {
    let fits = TABLES.iter().find(|(most, _)| endpoints <= *most);
    fits.map_or(0, |(_, slots)| *slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(client: &str) -> Ends {
        Ends {
            client: client.parse().unwrap(),
            destination: "192.0.2.1:53".parse().unwrap(),
            is_shown: false,
        }
    }

    /// Nodes agree only as long as the hashes stay what they are.
    #[test]
    fn hashes_stay_what_they_are() {
        let client = ends("198.51.100.7:4711");
        let hashes = [Key::Source, Key::SourceAndPort, Key::Destination].map(|k| k.hash(client, 0));
        let expected =
            [5_890_698_751_877_389_694, 1_105_716_380_177_380_315, 17_048_502_420_748_465_043];
        assert_eq!(hashes, expected);
    }

    #[test]
    fn a_key_has_only_what_its_algorithm_names() {
        let [one, other] = ["198.51.100.7:1", "198.51.100.7:2"].map(ends);
        assert_eq!(Key::Source.hash(one, 0), Key::Source.hash(other, 0));
        assert_ne!(Key::SourceAndPort.hash(one, 0), Key::SourceAndPort.hash(other, 0));
        let far = ends("198.51.100.8:1");
        assert_ne!(Key::Source.hash(one, 0), Key::Source.hash(far, 0));
        assert_eq!(Key::Destination.hash(one, 0), Key::Destination.hash(far, 0));
        let mapped = ends("[::ffff:198.51.100.7]:1");
        assert_eq!(Key::Source.hash(one, 0), Key::Source.hash(mapped, 0));
        assert_ne!(Key::Source.hash(one, 0), Key::Source.hash(one, 1), "a further attempt");
    }
}
