//! The backend on a kernel with IPVS, in network namespaces. Needs root, and the programs `ip`, `ipset`, `nft` and
//! those of iptables.

mod conformance;
mod subject;
