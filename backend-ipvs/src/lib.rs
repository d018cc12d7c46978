//! The IPVS backend: Services as virtual servers of the kernel's own load balancer.
//!
//! The backend will speak generic netlink to IPVS, keep Service addresses on `kube-ipvs0`, and use
//! the ipsets and the few iptables chains of kube-proxy's ipvs mode under the same names. So far
//! [`IpvsBackend`] removes what that mode leaves on a node; [`IpvsBackend::open`] reports that the
//! rest is not built yet.

mod chains;
mod config;
mod device;
mod leftovers;
mod sets;

use std::{path::Path, process::Command};

use switchyard_core::proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable};
use switchyard_xtables::OwnedChains;

use chains::SHARED_WITH_IPTABLES;

pub use self::config::{IpvsConfig, IpvsTimeouts};

const NOT_BUILT: &str = "the ipvs backend is not built yet; use nftables";

/// ipvs mode with its configuration.
#[derive(Debug, Default)]
pub struct IpvsBackend {
    #[expect(dead_code, reason = "nothing is programmed yet")]
    config: IpvsConfig,
}

impl IpvsBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: IpvsConfig) -> Self {
        Self { config }
    }
}

impl Backend for IpvsBackend {
    fn mode(&self) -> Mode {
        Mode::IPVS
    }

    fn probe(&self) -> Result<Support, Unusable> {
        if !has_ipvs() {
            return Err(Unusable::Node("the kernel module ip_vs is missing".to_owned()));
        }
        Err(Unusable::Backend(NOT_BUILT.to_owned()))
    }

    fn open(&self) -> Result<Box<dyn Proxier>, ProxierError> {
        Err(ProxierError::unsupported(Mode::IPVS, NOT_BUILT))
    }

    /// Removes chains and jumps, virtual servers, ipsets and `kube-ipvs0`, by netlink and without
    /// any program. Blocks for a few seconds at most while other programs change rules.
    ///
    /// kube-proxy deletes every virtual server of the node. This backend deletes those with an
    /// address, and only on a node that has `kube-ipvs0` or an ipset of ipvs mode: elsewhere, the
    /// virtual servers are another program's.
    fn clean_up(&self) -> Result<(), ProxierError> {
        remove(&chains::owned())
    }

    /// Leaves the chains that iptables mode has under the same names as long as that mode serves.
    fn clean_up_beside(&self, active: Mode) -> Result<(), ProxierError> {
        match active {
            Mode::IPTABLES => remove(&chains::owned().without(&SHARED_WITH_IPTABLES)),
            _ => self.clean_up(),
        }
    }

    fn conflicts_with(&self) -> &'static [Mode] {
        &[Mode::NFTABLES, Mode::IPTABLES]
    }
}

fn remove(chains: &OwnedChains) -> Result<(), ProxierError> {
    leftovers::remove(chains).map_err(|error| {
        ProxierError::backend(Mode::IPVS, "cannot remove everything of ipvs mode", error)
    })
}

/// Whether the kernel has IPVS, if need be after loading its module.
fn has_ipvs() -> bool {
    is_loaded() || {
        // The output of modprobe is of no use: the file shows whether it worked.
        let _ = Command::new("modprobe").args(["-q", "ip_vs"]).output();
        is_loaded()
    }
}

/// Whether the kernel has IPVS now.
fn is_loaded() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}
