//! The backend on a kernel with IPVS, in network namespaces. Needs root, and the programs `ip`,
//! `nft` and those of iptables.

mod conformance;
mod families;
mod leftovers;
mod subject;

/// Skips the test on kernels without IPVS.
macro_rules! on_ipvs {
    ($subject:expr) => {
        match $subject {
            Some(subject) => subject,
            None => return test_netns::skipped("no IPVS in this kernel"),
        }
    };
}

use on_ipvs;
