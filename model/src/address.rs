//! Addresses and networks as API objects spell them.
//!
//! The API has always taken octets with leading zeros and read them as decimal
//! (`k8s.io/utils/net`'s "sloppy" parsers), so old objects still carry them. They are parsed here,
//! once, and are printed canonically everywhere else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};

/// Why a text is not an address or a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Not an IP address.
    #[error("`{}` is not an IP address", .0.escape_debug())]
    Address(String),
    /// Not a network in CIDR notation.
    #[error("`{}` is not a network in CIDR notation", .0.escape_debug())]
    Cidr(String),
}

/// Reads an IP address: octets may have leading zeros and are decimal; an IPv4 address mapped into
/// IPv6 is IPv4; zone identifiers (`%eth0`) are refused.
pub fn parse_ip(text: &str) -> Result<IpAddr, AddressError> {
    parse_v4(text)
        .map(IpAddr::V4)
        .or_else(|| parse_v6(text).map(canonical))
        .ok_or_else(|| AddressError::Address(shortened(text)))
}

/// Reads a network in CIDR notation; host bits are masked off.
pub fn parse_cidr(text: &str) -> Result<IpNet, AddressError> {
    let refused = || AddressError::Cidr(shortened(text));
    let (address, length) = text.split_once('/').ok_or_else(refused)?;
    if length.is_empty() || length.len() > 3 || !length.bytes().all(|b| b.is_ascii_digit()) {
        return Err(refused());
    }
    let length: u8 = length.parse().map_err(|_| refused())?;
    let net = match parse_v4(address) {
        Some(v4) => IpNet::from(Ipv4Net::new(v4, length).map_err(|_| refused())?),
        None => {
            let v6 = parse_v6(address).ok_or_else(refused)?;
            match canonical(v6) {
                IpAddr::V4(v4) if length >= 96 => IpNet::new(v4.into(), length - 96),
                _ => IpNet::new(v6.into(), length),
            }
            .map_err(|_| refused())?
        }
    };
    Ok(net.trunc())
}

/// The same addresses in as few networks as possible: sorted, without overlaps.
pub fn aggregated(nets: &[IpNet]) -> Vec<IpNet> {
    let mut merged = IpNet::aggregate(&nets.to_vec());
    merged.sort_unstable();
    merged
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

fn parse_v6(text: &str) -> Option<Ipv6Addr> {
    // A dotted quad at the end may have leading zeros too.
    match text.rsplit_once(':') {
        Some((head, quad)) if quad.contains('.') => {
            format!("{head}:{}", parse_v4(quad)?).parse().ok()
        }
        _ => text.parse().ok(),
    }
}

fn canonical(address: Ipv6Addr) -> IpAddr {
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// At most 64 characters of `text`, for messages.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(64) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_decimal() {
        assert_eq!(parse_ip("010.1.2.003").unwrap(), IpAddr::from([10, 1, 2, 3]));
        assert_eq!(parse_ip("000.0.0000.00255").unwrap(), IpAddr::from([0, 0, 0, 255]));
        assert_eq!(parse_ip("::ffff:010.0.0.1").unwrap(), IpAddr::from([10, 0, 0, 1]));
        assert_eq!(parse_cidr("010.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(parse_cidr("fd00::1/64").unwrap().to_string(), "fd00::/64");
        assert_eq!(parse_cidr("::ffff:10.1.0.0/112").unwrap().to_string(), "10.1.0.0/16");
    }

    #[test]
    fn what_is_not_an_address_is_refused() {
        for text in [
            "",
            "10.0.0",
            "10.0.0.0.1",
            "10.0.0.256",
            "fe80::1%eth0",
            "a.b.c.d",
            " 10.0.0.1",
            "1e1.0.0.1",
        ] {
            assert_eq!(parse_ip(text), Err(AddressError::Address(text.into())), "{text}");
        }
        for text in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "fd00::/129", "/8"] {
            assert_eq!(parse_cidr(text), Err(AddressError::Cidr(text.into())), "{text}");
        }
    }
}
