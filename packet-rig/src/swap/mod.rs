//! A stand-in for kube-proxy v1.36, for as far as the kernel can tell: to take over from it, and to
//! be taken over by it.
//!
//! From a description of a cluster ([`Cluster`]), [`NftablesMode`] and [`IptablesMode`] write what
//! kube-proxy writes at a sync, and in the same steps: what it lists, how it tells what is stale,
//! which declarations it repeats for what may exist, what goes into one transaction, and what waits
//! for the next. On an empty node the first sync leaves its ruleset; on one that another proxy
//! has left, it is a take-over. [`Cluster::manifests`] are the same Services for the proxy under
//! test.
//!
//! Left out: partial syncs (every sync here is one of its full ones, of which a partial one is a
//! part), nfacct counters, what topology and conditions of endpoints decide, and the large-cluster
//! mode. Sources: its documented behaviour, and the names in its documentation.

mod bystanders;
mod cluster;
mod iptables;
mod listing;
mod names;
mod nftables;

pub use self::{
    bystanders::Bystanders,
    cluster::{Cluster, Port, Service},
    iptables::{Flavour, IptablesMode},
    listing::Listing,
    nftables::NftablesMode,
};

/// The bit that marks what is to be masqueraded.
const MARK: &str = "0x4000";

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl IpFamily {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// nft's word for it.
    pub fn nft(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    fn has(self, ip: &std::net::IpAddr) -> bool {
        ip.is_ipv4() == (self == Self::V4)
    }

    /// Where pods are: kube-proxy's `clusterCIDR`.
    fn cluster_cidr(self) -> &'static str {
        match self {
            Self::V4 => "10.244.0.0/16",
            Self::V6 => "fd00:10:244::/48",
        }
    }

    fn node_ip(self) -> std::net::IpAddr {
        let node = crate::address::underlay(1);
        match self {
            Self::V4 => node.v4.into(),
            Self::V6 => node.v6.into(),
        }
    }
}
