//! Names of chains.
//!
//! All are kube-proxy's: whichever of the two starts after the other finds the other's chains by
//! name, and rewrites those that it needs and deletes those that it does not.

use std::net::SocketAddr;

use proxy_core::model::ServicePortName;
use sha2::{Digest, Sha256};

/// Chains that are always there.
pub(crate) mod chain {
    pub(crate) const SERVICES: &str = "KUBE-SERVICES";
    pub(crate) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
    pub(crate) const NODE_PORTS: &str = "KUBE-NODEPORTS";
    pub(crate) const POSTROUTING: &str = "KUBE-POSTROUTING";
    pub(crate) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
    pub(crate) const FORWARD: &str = "KUBE-FORWARD";
    pub(crate) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
    /// The kubelet's as well, so that it is neither flushed nor deleted.
    pub(crate) const FIREWALL: &str = "KUBE-FIREWALL";
    /// Empty, and there to be missed: see [`crate::monitor`].
    pub(crate) const CANARY: &str = "KUBE-PROXY-CANARY";
}

/// How names of chains begin that belong to single Service ports or endpoints.
const PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];

/// Whether a chain of the nat table belongs to a Service port, perhaps one that is gone.
pub(crate) fn is_of_service_port(chain: &str) -> bool {
    PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// The names of a Service port's chains: 16 characters of a hash after a prefix.
pub(crate) struct PortNames {
    /// What is hashed: `namespace/name:port`, and the protocol.
    identity: String,
    suffix: String,
}

impl PortNames {
    pub(crate) fn of(name: &ServicePortName) -> Self {
        let identity = format!("{name}{}", name.protocol.as_lower());
        let suffix = hash(&identity);
        Self { identity, suffix }
    }

    /// Spreads over the endpoints of the `Cluster` policy.
    pub(crate) fn cluster(&self) -> String {
        format!("KUBE-SVC-{}", self.suffix)
    }

    /// Spreads over the endpoints of the `Local` policy.
    pub(crate) fn local(&self) -> String {
        format!("KUBE-SVL-{}", self.suffix)
    }

    /// Takes traffic from outside the cluster.
    pub(crate) fn external(&self) -> String {
        format!("KUBE-EXT-{}", self.suffix)
    }

    /// Lets sources through that load balancer addresses may be reached from.
    pub(crate) fn firewall(&self) -> String {
        format!("KUBE-FW-{}", self.suffix)
    }

    /// Translates to an endpoint; also the list that remembers the endpoint's clients.
    pub(crate) fn endpoint(&self, address: SocketAddr) -> String {
        format!("KUBE-SEP-{}", hash(&format!("{}{address}", self.identity)))
    }
}

/// The first 16 characters of the base32 form (RFC 4648) of the text's SHA-256.
fn hash(text: &str) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = Sha256::digest(text.as_bytes());
    let bits = digest[..10].iter().fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    (0..16).rev().map(|i| char::from(ALPHABET[(bits >> (5 * i)) as usize & 31])).collect()
}

#[cfg(test)]
mod tests {
    use proxy_core::model::{Protocol, ServiceName};

    use super::*;

    fn names(namespace: &str, name: &str, port: &str, protocol: Protocol) -> PortNames {
        let service = ServiceName::new(namespace, name);
        PortNames::of(&ServicePortName { service, port: port.into(), protocol })
    }

    /// The names that every kubeadm cluster has.
    #[test]
    fn names_are_those_of_kube_proxy() {
        let api = names("default", "kubernetes", "https", Protocol::Tcp);
        assert_eq!(api.cluster(), "KUBE-SVC-NPX46M4PTMTKRN6Y");
        let dns = |port, protocol| names("kube-system", "kube-dns", port, protocol).cluster();
        assert_eq!(dns("dns", Protocol::Udp), "KUBE-SVC-TCOU7JCQXEZGVUNU");
        assert_eq!(dns("dns-tcp", Protocol::Tcp), "KUBE-SVC-ERIFXISQEP7F7OF4");
    }

    #[test]
    fn names_differ_by_endpoint_and_fit() {
        let web = names("default", "web", "", Protocol::Tcp);
        let one = web.endpoint("10.0.0.1:80".parse().unwrap());
        let other = web.endpoint("[fd00::1]:80".parse().unwrap());
        assert_ne!(one, other);
        for name in [one, other, web.local(), web.external(), web.firewall()] {
            // XT_EXTENSION_MAXNAMELEN, with the zero at the end.
            assert!(name.len() < 29 && is_of_service_port(&name), "{name}");
        }
        assert!(!is_of_service_port(chain::SERVICES));
    }
}
