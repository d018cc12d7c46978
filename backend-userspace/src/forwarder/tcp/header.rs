//! The PROXY protocol: the client's address, ahead of the client's bytes
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>).

use std::net::{IpAddr, SocketAddr};

use switchyard_core::model::ProxyProtocol;

use crate::forwarder::ends::Ends;

/// The signature of a header of version 2, and the version with the command `PROXY` (section 2.2).
const V2: [u8; 13] = *b"\r\n\r\n\0\r\nQUIT\n\x21";
/// TCP over IPv4, and over IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Returns the header for a TCP connection.
pub(super) fn header(version: ProxyProtocol, ends: Ends) -> Vec<u8> {
    let Ends { client, destination, .. } = ends;
    let (from, to) = in_one_family(client.ip(), destination.ip());
    match version {
        ProxyProtocol::V1 => {
            let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
            let ports = format_args!("{} {}", client.port(), destination.port());
            format!("PROXY {family} {from} {to} {ports}\r\n").into_bytes()
        }
        ProxyProtocol::V2 => {
            let mut addresses = Vec::new();
            for ip in [from, to] {
                match ip {
                    IpAddr::V4(v4) => addresses.extend(v4.octets()),
                    IpAddr::V6(v6) => addresses.extend(v6.octets()),
                }
            }
            for end in [client, destination] {
                addresses.extend(SocketAddr::port(&end).to_be_bytes());
            }
            let family = if from.is_ipv4() { TCP4 } else { TCP6 };
            let length = addresses.len() as u16;
            [&V2[..], &[family], &length.to_be_bytes(), &addresses].concat()
        }
    }
}

/// Writes two addresses as those of one family, which they are unless the system has mapped one.
fn in_one_family(a: IpAddr, b: IpAddr) -> (IpAddr, IpAddr) {
    let mapped = |ip| match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
        v6 => v6,
    };
    match (a.to_canonical(), b.to_canonical()) {
        (a, b) if a.is_ipv4() == b.is_ipv4() => (a, b),
        (a, b) => (mapped(a), mapped(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [&str; 2] = ["192.0.2.7:54321", "198.51.100.1:80"];
    const V6: [&str; 2] = ["[2001:db8::7]:54321", "[2001:db8:1::1]:443"];

    fn of(version: ProxyProtocol, [client, destination]: [&str; 2]) -> Vec<u8> {
        let (client, destination) = (client.parse().unwrap(), destination.parse().unwrap());
        header(version, Ends { client, destination, is_shown: false })
    }

    #[test]
    fn version_1_is_a_line() {
        let line = |ends| String::from_utf8(of(ProxyProtocol::V1, ends)).unwrap();
        assert_eq!(line(V4), "PROXY TCP4 192.0.2.7 198.51.100.1 54321 80\r\n");
        assert_eq!(line(V6), "PROXY TCP6 2001:db8::7 2001:db8:1::1 54321 443\r\n");
        assert_eq!(
            line(["[::ffff:192.0.2.7]:1", "198.51.100.1:80"]),
            "PROXY TCP4 192.0.2.7 198.51.100.1 1 80\r\n"
        );
    }

    #[test]
    fn version_2_is_binary() {
        #[rustfmt::skip]
        assert_eq!(of(ProxyProtocol::V2, V4), [
            0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a,
            0x21, 0x11, 0, 12,
            192, 0, 2, 7, 198, 51, 100, 1,
            0xd4, 0x31, 0, 80,
        ]);
        #[rustfmt::skip]
        assert_eq!(of(ProxyProtocol::V2, V6), [
            0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a,
            0x21, 0x21, 0, 36,
            0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7,
            0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
            0xd4, 0x31, 0x01, 0xbb,
        ]);
    }
}
