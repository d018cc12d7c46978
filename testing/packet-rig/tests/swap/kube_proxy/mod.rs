//! A stand-in for kube-proxy v1.36, as far as the kernel can tell: something to take over from,
//! and to be taken over by. Where the variable `KUBE_PROXY` names the genuine program, the modes
//! run it instead, with the objects of [`Cluster::manifests`].
//!
//! The rules of kube-proxy for two states of a cluster are recorded ([`Cluster`]).
//! [`NftablesMode`], [`IptablesMode`] and [`IpvsMode`] write them in the steps of a full sync: what
//! is listed, what is stale, what goes into one transaction, and what waits for the next.
//!
//! Left out: partial syncs, nfacct counters, the large-cluster mode, what topology and the
//! conditions of endpoints decide, the clean-up of conntrack, sysctls, the ACCEPT rules for health
//! check node ports, and in nftables mode `list --terse`.
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
