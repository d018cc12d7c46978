//! Kubernetes Services programmed with iptables, for nodes whose kernel or policies rule nftables
//! out.
//!
//! Chains, marks and jumps have kube-proxy's names, so that either proxy can take over from the
//! other; but endpoints elsewhere have no chains of their own, and a sync tells
//! `iptables-restore --noflush` what changed and nothing else.
//!
//! - `layout`: how Services become chains and rules.
//! - `tool`: the programs, of either [`Flavour`].
//! - `proxier`: compares what should be with what is: [`IptablesProxier`], the backend.
//! - `leftovers`: removes everything, without the programs.
//! - `monitor`: notices when somebody flushes our chains, or changes them.

mod layout;
mod leftovers;
mod monitor;
mod proxier;
mod stats;
mod tool;

use std::path::PathBuf;

use proxy_core::model::{IpFamily, PerFamily};

pub use self::{
    leftovers::LeftoverError,
    proxier::{IptablesProxier, cleanup, probe, render, route_localnet},
    stats::{RuleCount, Stats},
    tool::{Flavour, ToolError},
};

/// The `mode` that selects this backend.
pub const MODE: &str = "iptables";

/// What is fixed for the lifetime of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IptablesConfig {
    /// Which bit of the packet mark says that a packet is to be masqueraded, 0 to 31. It must
    /// differ from those that the CNI and the kubelet use.
    pub masquerade_bit: u8,
    /// Which families are programmed.
    pub families: PerFamily<bool>,
    /// Whether node ports are served on IPv4's loopback addresses as well, if `nodePortAddresses`
    /// allows all addresses. The kernel is then told to route those (`route_localnet`).
    pub localhost_node_ports: bool,
    /// The flavour to use; `None` for the one that the host uses.
    pub flavour: Option<Flavour>,
    /// The directory of the programs; `None` for those of `PATH`.
    pub programs: Option<PathBuf>,
}

impl Default for IptablesConfig {
    /// kube-proxy's.
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            families: PerFamily { v4: true, v6: true },
            localhost_node_ports: true,
            flavour: None,
            programs: None,
        }
    }
}

impl IptablesConfig {
    /// The families that are programmed.
    fn families(&self) -> impl Iterator<Item = IpFamily> + use<> {
        let families = self.families;
        IpFamily::ALL.into_iter().filter(move |family| *families.of(*family))
    }
}
