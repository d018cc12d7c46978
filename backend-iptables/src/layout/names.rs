//! Names of chains.
//!
//! In iptables mode, all names are kube-proxy's, so that either proxy, started after the other,
//! finds the other's chains, rewrites the chains that it needs, and deletes the rest.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};
use switchyard_core::model::ServicePortName;
use switchyard_kernel::xtables::Table;

/// The kubelet's chain as well, so that it is neither flushed nor deleted.
pub(crate) const FIREWALL: &str = "KUBE-FIREWALL";

/// The names of the chains that are always there, and the beginnings of all others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChainNames {
    pub(crate) services: &'static str,
    pub(crate) external_services: &'static str,
    pub(crate) node_ports: &'static str,
    pub(crate) postrouting: &'static str,
    pub(crate) mark_masq: &'static str,
    pub(crate) forward: &'static str,
    pub(crate) proxy_firewall: &'static str,
    pub(crate) ipvs_hairpins: &'static str,
    pub(crate) ipvs_filter: &'static str,
    pub(crate) ipvs_others: &'static str,
    /// An empty chain whose absence shows that tables were flushed: see [`crate::monitor`].
    pub(crate) canary: &'static str,
    cluster: &'static str,
    local: &'static str,
    external: &'static str,
    firewall: &'static str,
    endpoint: &'static str,
}

macro_rules! chain_names {
    ($prefix:literal) => {
        ChainNames {
            services: concat!($prefix, "SERVICES"),
            external_services: concat!($prefix, "EXTERNAL-SERVICES"),
            node_ports: concat!($prefix, "NODEPORTS"),
            postrouting: concat!($prefix, "POSTROUTING"),
            mark_masq: concat!($prefix, "MARK-MASQ"),
            forward: concat!($prefix, "FORWARD"),
            proxy_firewall: concat!($prefix, "PROXY-FIREWALL"),
            ipvs_hairpins: concat!($prefix, "IPVS-HAIRPINS"),
            ipvs_filter: concat!($prefix, "IPVS-FILTER"),
            ipvs_others: concat!($prefix, "IPVS-OTHERS"),
            canary: concat!($prefix, "PROXY-CANARY"),
            cluster: concat!($prefix, "SVC-"),
            local: concat!($prefix, "SVL-"),
            external: concat!($prefix, "EXT-"),
            firewall: concat!($prefix, "FW-"),
            endpoint: concat!($prefix, "SEP-"),
        }
    };
}

pub(crate) static KUBE_PROXY: ChainNames = chain_names!("KUBE-");
/// Names that only Switchyard has, for rules beside those of kube-proxy's modes.
pub(crate) static SWITCHYARD: ChainNames = chain_names!("SWYD-");

impl ChainNames {
    /// The prefixes of names of chains that belong to single Service ports or endpoints.
    pub(crate) fn prefixes(&self) -> [(Table, &'static str); 6] {
        [
            (Table::Nat, self.cluster),
            (Table::Nat, self.local),
            (Table::Nat, self.external),
            (Table::Nat, self.firewall),
            (Table::Nat, self.endpoint),
            (Table::Filter, self.firewall),
        ]
    }

    /// Whether the backend writes a chain of this name.
    pub(crate) fn has(&self, chain: &str) -> bool {
        let fixed = [
            self.services,
            self.external_services,
            self.node_ports,
            self.postrouting,
            self.mark_masq,
            self.forward,
            self.proxy_firewall,
            self.ipvs_hairpins,
            self.ipvs_filter,
            self.ipvs_others,
            self.canary,
        ];
        fixed.contains(&chain)
            || self.prefixes().iter().any(|(_, prefix)| chain.starts_with(prefix))
    }

    /// Whether a chain belongs to a Service port, of the past or the present.
    pub(crate) fn is_of_service_port(&self, table: Table, chain: &str) -> bool {
        self.prefixes().iter().any(|(of, prefix)| *of == table && chain.starts_with(prefix))
    }
}

/// The names of a Service port's chains: 16 characters of a hash after a prefix.
pub(crate) struct PortNames {
    /// The text that is hashed: `namespace/name:port`, and the protocol.
    identity: String,
    suffix: String,
    chains: &'static ChainNames,
}

impl PortNames {
    pub(crate) fn new(name: &ServicePortName, chains: &'static ChainNames) -> Self {
        let identity = format!("{name}{}", name.protocol.as_lower());
        let suffix = hash(&identity);
        Self { identity, suffix, chains }
    }

    /// The chain that spreads over the endpoints of the `Cluster` policy.
    pub(crate) fn cluster(&self) -> String {
        format!("{}{}", self.chains.cluster, self.suffix)
    }

    /// The chain that spreads over the endpoints of the `Local` policy.
    pub(crate) fn local(&self) -> String {
        format!("{}{}", self.chains.local, self.suffix)
    }

    /// The chain that takes traffic from outside the cluster.
    pub(crate) fn external(&self) -> String {
        format!("{}{}", self.chains.external, self.suffix)
    }

    /// The chains that let the allowed sources of load balancer addresses through, one in the nat
    /// table and one in the filter table.
    pub(crate) fn firewall(&self) -> String {
        format!("{}{}", self.chains.firewall, self.suffix)
    }

    /// The chain that translates to an endpoint, and the list of the endpoint's clients.
    pub(crate) fn endpoint(&self, address: SocketAddr) -> String {
        let suffix = hash(&format!("{}{address}", self.identity));
        format!("{}{suffix}", self.chains.endpoint)
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
        PortNames::new(&ServicePortName { service, port: port.into(), protocol }, &KUBE_PROXY)
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
            assert!(name.len() < 29 && KUBE_PROXY.is_of_service_port(Table::Nat, &name), "{name}");
        }
        assert!(KUBE_PROXY.is_of_service_port(Table::Filter, &web.firewall()));
        for other in [KUBE_PROXY.services, &web.local()] {
            assert!(!KUBE_PROXY.is_of_service_port(Table::Filter, other), "{other}");
        }
        assert!(KUBE_PROXY.has(KUBE_PROXY.services) && KUBE_PROXY.has(&web.local()));
        for other in [FIREWALL, "KUBE-KUBELET-CANARY", "KUBE-ROUTER-FORWARD", "SWYD-SERVICES"] {
            assert!(!KUBE_PROXY.has(other), "{other}");
        }
        let lengths = |names: &ChainNames| names.prefixes().map(|(_, prefix)| prefix.len());
        assert_eq!(lengths(&KUBE_PROXY), lengths(&SWITCHYARD));
    }
}
