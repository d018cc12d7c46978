//! The names of kube-proxy's chains and sets, computed here a second time, so that the tests see
//! whether the proxy under test has the same.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};

use super::cluster::ServicePort;

/// The longest name in nftables mode, without the prefix.
const LONGEST: usize = 240;

/// Unpadded base32 (RFC 4648) of the text's SHA-256, cut after `length` characters.
fn hash(text: &str, length: usize) -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = Sha256::digest(text.as_bytes());
    let bit = |i: usize| (digest[i / 8] >> (7 - i % 8)) & 1;
    let digit = |i: usize| (0..5).fold(0, |digit, j| (digit << 1) | bit(5 * i + j));
    (0..length).map(|i| char::from(DIGITS[usize::from(digit(i))])).collect()
}

fn hashed(text: &str) -> String {
    let mut name = format!("{}-{text}", hash(text, 8));
    if name.len() > LONGEST {
        name.truncate(LONGEST - 3);
        name += "...";
    }
    name
}

/// The part of names after `service-`, `local-`, `external-` and `firewall-` in nftables mode.
pub fn nft_service(port: &ServicePort<'_>) -> String {
    hashed(&nft_identity(port))
}

/// The part of names after `endpoint-` and `affinity-` in nftables mode.
pub fn nft_endpoint(port: &ServicePort<'_>, endpoint: SocketAddr) -> String {
    let ip = endpoint.ip().to_string().replace(':', ".");
    hashed(&format!("{}__{ip}/{}", nft_identity(port), endpoint.port()))
}

fn nft_identity(port: &ServicePort<'_>) -> String {
    format!("default/{}/{}/{}", port.service.name, port.protocol(), port.port.name)
}

/// The part of names after `KUBE-SVC-` and similar prefixes in iptables mode.
pub fn iptables_service(port: &ServicePort<'_>) -> String {
    hash(&format!("{}{}", port.name(), port.protocol()), 16)
}

/// The part of names after `KUBE-SEP-` in iptables mode.
pub fn iptables_endpoint(port: &ServicePort<'_>, endpoint: SocketAddr) -> String {
    hash(&format!("{}{}{endpoint}", port.name(), port.protocol()), 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples in kube-proxy's own documentation, and in every cluster.
    #[test]
    fn hashes_are_kube_proxys() {
        assert_eq!(hashed("ns1/svc1/tcp/p80"), "ULMVA6XW-ns1/svc1/tcp/p80");
        let endpoint = hashed("ns1/svc1/tcp/p80__10.180.0.1/80");
        assert_eq!(endpoint, "5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80");
        assert_eq!(hash("default/kubernetes:httpstcp", 16), "NPX46M4PTMTKRN6Y");
        assert_eq!(hash("kube-system/kube-dns:dnsudp", 16), "TCOU7JCQXEZGVUNU");
    }
}
