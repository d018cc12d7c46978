//! Names of tables, chains and sets.
//!
//! Tables and base chains have the names of upstream's kube-proxy, and so have the sets and maps
//! that upstream has too, so that either proxy can take over from the other. Other regular chains
//! have a `/` in their names: upstream takes such chains for chains of deleted Services, and
//! deletes them when it takes over.

use std::{fmt, net::SocketAddr};

use sha2::{Digest, Sha256};
use switchyard_core::model::ServicePortName;
use switchyard_kernel::nftables::Table;

/// The name of both tables in nftables mode, which is upstream's.
pub(crate) const KUBE_PROXY: &str = "kube-proxy";

/// The beginning of the names of tables of a proxy with a name, beside the cluster's proxy.
pub const OF_NAMED_PROXY: &str = "service-proxy-";

/// The name of the table that guards loopback addresses where this backend has no other rules.
pub(crate) const LOOPBACK: &str = "switchyard-loopback";

/// The comment of a table, which is upstream's.
pub(crate) fn table_comment(table: &Table) -> String {
    format!("rules for {}", table.name)
}

/// Regular chains that always exist.
pub(crate) mod chain {
    pub(crate) const SERVICES: &str = "services";
    pub(crate) const CLUSTER_IPS_LB: &str = "cluster-ips/lb";
    pub(crate) const MASQUERADING: &str = "masquerading";
    pub(crate) const FIREWALL_CHECK: &str = "firewall-check";
    pub(crate) const SERVICE_ENDPOINTS_CHECK: &str = "service-endpoints-check";
    pub(crate) const NODEPORT_ENDPOINTS_CHECK: &str = "nodeport-endpoints-check";
    pub(crate) const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";
    pub(crate) const REMEMBER_CLIENTS: &str = "remember-clients";
    pub(crate) const OTHER_PORTS: &str = "other-ports";
    pub(crate) const REJECT: &str = "reject-chain";
    pub(crate) const LOOPBACK_GUARD: &str = "loopback-guard";
}

/// Sets and maps that always exist.
pub(crate) mod set {
    pub(crate) const CLUSTER_IPS: &str = "cluster-ips";
    pub(crate) const SERVICE_IPS: &str = "service-ips";
    pub(crate) const SERVICE_NODEPORTS: &str = "service-nodeports";
    pub(crate) const FIREWALL_IPS: &str = "firewall-ips";
    pub(crate) const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
    pub(crate) const NO_ENDPOINT_NODEPORTS: &str = "no-endpoint-nodeports";
    pub(crate) const NODEPORT_IPS: &str = "nodeport-ips";
    pub(crate) const HAIRPIN_CONNECTIONS: &str = "hairpin-connections";
    pub(crate) const HEALTH_CHECK_PORTS: &str = "health-check-ports";
}

/// The length of the longest name that the kernel takes, in bytes (`NFT_NAME_MAXLEN` less a NUL).
const LONGEST_NAME: usize = 255;

/// The length of the longest name that upstream makes, without the prefix.
const LONGEST_BASE: usize = 240;

/// The part of a name that identifies a Service port: `HASH-namespace/name/protocol/port`.
pub(crate) fn service_port_base(name: &ServicePortName) -> String {
    hashed(path(name))
}

fn path(ServicePortName { service, port, protocol }: &ServicePortName) -> String {
    format!("{service}/{}/{port}", protocol.as_lower())
}

/// The part of a name that identifies an endpoint of a Service port: `HASH-...__address/port`.
pub(crate) fn endpoint_base(name: &ServicePortName, endpoint: &SocketAddr) -> String {
    // nft's identifiers have no colons.
    let address = endpoint.ip().to_string().replace(':', ".");
    hashed(format!("{}__{address}/{}", path(name), endpoint.port()))
}

/// Returns a name with a prefix that upstream does not have, cut to the kernel's limit. The hash in
/// `base` is at its beginning, and stays.
pub(crate) fn with_prefix(prefix: &str, base: &str) -> String {
    let mut name = format!("{prefix}{base}");
    // Names are ASCII, so that every byte is a boundary.
    name.truncate(LONGEST_NAME);
    name
}

/// Puts eight characters of a hash before `text`, as upstream does, so that long names stay
/// different when they are cut.
fn hashed(text: String) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut name = String::with_capacity(LONGEST_BASE);
    name.push_str(&Base32(&digest[..5]).to_string());
    name.push('-');
    name.push_str(&text);
    if name.len() > LONGEST_BASE {
        name.truncate(LONGEST_BASE - 3);
        name.push_str("...");
    }
    name
}

/// Five bytes that print as eight characters of base32 (RFC 4648); no padding is needed.
struct Base32<'a>(&'a [u8]);

impl fmt::Display for Base32<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let bits = self.0.iter().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
        (0..8).rev().try_for_each(|i| {
            let digit = ALPHABET[(bits >> (5 * i) & 31) as usize];
            write!(f, "{}", char::from(digit))
        })
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::model::{Protocol, ServiceName};

    use super::*;

    fn port(name: &str, port: &str) -> ServicePortName {
        ServicePortName {
            service: ServiceName::new("ns1", name),
            port: port.into(),
            protocol: Protocol::Tcp,
        }
    }

    /// The example in upstream's own documentation of its chains.
    #[test]
    fn names_are_upstreams() {
        assert_eq!(service_port_base(&port("svc1", "p80")), "ULMVA6XW-ns1/svc1/tcp/p80");
        assert_eq!(
            endpoint_base(&port("svc1", "p80"), &"10.180.0.1:80".parse().unwrap()),
            "5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80"
        );
    }

    #[test]
    fn long_names_are_cut_and_stay_different() {
        let a = service_port_base(&port(&"x".repeat(253), "a"));
        let b = service_port_base(&port(&"x".repeat(253), "b"));
        assert_eq!(a.len(), 240);
        assert!(a.ends_with("..."));
        assert_ne!(a, b);
    }

    #[test]
    fn ipv6_has_no_colons() {
        let name = endpoint_base(&port("svc1", "p80"), &"[fd00::1]:80".parse().unwrap());
        assert!(name.ends_with("__fd00..1/80"), "{name}");
    }
}
