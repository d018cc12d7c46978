//! Names of chains.
//!
//! All names are kube-proxy's, so that either proxy, started after the other, finds the other's
//! chains, rewrites the chains that it needs, and deletes the rest.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};
use switchyard_core::model::ServicePortName;
use switchyard_xtables::Table;

/// The chains that are always there.
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
    /// An empty chain whose absence shows that tables were flushed: see [`crate::monitor`].
    pub(crate) const CANARY: &str = "KUBE-PROXY-CANARY";
}

/// The chains that ipvs mode has, too, under the same names.
pub(crate) const SHARED_WITH_IPVS: [(Table, &str); 5] = [
    (Table::Nat, chain::SERVICES),
    (Table::Nat, chain::POSTROUTING),
    (Table::Nat, chain::MARK_MASQ),
    (Table::Filter, chain::FORWARD),
    (Table::Filter, chain::PROXY_FIREWALL),
];

/// The prefixes of names of chains that belong to single Service ports or endpoints.
pub(crate) const PREFIXES: [&str; 5] =
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];

/// Whether a chain of the nat table belongs to a Service port, of the past or the present.
pub(crate) fn is_of_service_port(chain: &str) -> bool {
    PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// The names of a Service port's chains: 16 characters of a hash after a prefix.
pub(crate) struct PortNames {
    /// The text that is hashed: `namespace/name:port`, and the protocol.
    identity: String,
    suffix: String,
}

impl PortNames {
    pub(crate) fn new(name: &ServicePortName) -> Self {
        let identity = format!("{name}{}", name.protocol.as_lower());
        let suffix = hash(&identity);
        Self { identity, suffix }
    }

    /// The chain that spreads over the endpoints of the `Cluster` policy.
    pub(crate) fn cluster(&self) -> String {
        format!("KUBE-SVC-{}", self.suffix)
    }

    /// The chain that spreads over the endpoints of the `Local` policy.
    pub(crate) fn local(&self) -> String {
        format!("KUBE-SVL-{}", self.suffix)
    }

    /// The chain that takes traffic from outside the cluster.
    pub(crate) fn external(&self) -> String {
        format!("KUBE-EXT-{}", self.suffix)
    }

    /// The chain that lets the allowed sources of load balancer addresses through.
    pub(crate) fn firewall(&self) -> String {
        format!("KUBE-FW-{}", self.suffix)
    }

    /// The chain that translates to an endpoint, and the list of the endpoint's clients.
    pub(crate) fn endpoint(&self, address: SocketAddr) -> String {
        format!("KUBE-SEP-{}", hash(&format!("{}{address}", self.identity)))
    }
}

/// Returns the first 16 characters of the base32 form (RFC 4648) of the text's SHA-256.
fn hash(text: &str) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = Sha256::digest(text.as_bytes());
    let bits = digest[..10].iter().fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    (0..16).rev().map(|i| char::from(ALPHABET[(bits >> (5 * i)) as usize & 31])).collect()
}

#[cfg(test)]
mod tests {
    use switchyard_core::model::{Protocol, ServiceName};

    use super::*;

    fn names(namespace: &str, name: &str, port: &str, protocol: Protocol) -> PortNames {
        let service = ServiceName::new(namespace, name);
        PortNames::new(&ServicePortName { service, port: port.into(), protocol })
    }

    /// These names are in every kubeadm cluster.
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
