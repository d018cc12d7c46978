//! A stand-in for kube-proxy v1.36, as far as the kernel can tell: something to take over from,
//! and to be taken over by.
//!
//! The rules of kube-proxy for two states of a cluster are recorded ([`Cluster`]).
//! [`NftablesMode`], [`IptablesMode`] and [`IpvsMode`] write it in the steps of a sync: which
//! objects are listed, which are stale, which declarations are repeated for objects that may exist,
//! what goes into one transaction, and what waits for the next. On an empty node, the first sync
//! leaves kube-proxy's ruleset; on a node with another proxy's rules, the first sync is a
//! take-over. [`IpvsMode`] serves where the kernel has IPVS. [`Cluster::manifests`] returns the
//! same Services for the proxy under test.
//!
//! Where the variable `KUBE_PROXY` names the genuine program, the modes run it instead, with the
//! objects that the manifests have.
//!
//! Left out of the stand-in:
//!
//! - partial syncs (every sync here is one of kube-proxy's full ones, of which a partial sync is a
//!   part), nfacct counters, the large-cluster mode, and what topology and the conditions of
//!   endpoints decide;
//! - the clean-up of conntrack, sysctls, the ACCEPT rules for health check node ports;
//! - in nftables mode, `list --terse`: the stand-in lists tables with their elements.
//!
//! Sources: kube-proxy's documented behaviour, and the names in its documentation.

mod bystanders;
mod cluster;
mod genuine;
mod host;
mod iptables;
mod ipvs;
mod listing;
mod nftables;
pub mod programs;

pub use self::{
    bystanders::Bystanders, cluster::Cluster, iptables::IptablesMode, ipvs::IpvsMode,
    listing::Listing, nftables::NftablesMode,
};

/// A failure of the stand-in fails the test, which prints it.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
