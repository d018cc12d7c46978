//! The backend as one value: probed, opened, and cleaned up after.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable},
};
use switchyard_interfaces::KernelVersion;
use switchyard_ipvs_netlink::Ipvs;
use switchyard_xtables::ProgramOptions;

use crate::{
    IpvsConfig, Scheduler, UnknownScheduler,
    filter::{Filter, nft::NftFilter, xtables::Xtables},
    kernel_settings, leftovers,
    packet_filter::{self, PacketFilter},
    probe,
    proxier::IpvsProxier,
};

/// ipvs mode with its configuration.
#[derive(Debug, Default)]
pub struct IpvsBackend {
    config: IpvsConfig,
    /// The packet filter that the last probe chose. The choice means running programs.
    filter: Mutex<Option<PacketFilter>>,
}

impl IpvsBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: IpvsConfig) -> Self {
        Self { config, filter: Mutex::default() }
    }

    /// The packet filter, which is chosen once.
    fn packet_filter(&self) -> PacketFilter {
        let mut filter = self.filter.lock().unwrap_or_else(PoisonError::into_inner);
        let choose =
            || packet_filter::packet_filter(&ProgramOptions::default(), self.config.families);
        filter.get_or_insert_with(choose).clone()
    }

    fn open_proxier(&self) -> Result<IpvsProxier, ProxierError> {
        let scheduler = self.config.scheduler.parse().unwrap_or_else(|error: UnknownScheduler| {
            tracing::error!(err = %error, "ipvs.scheduler cannot be used; rr is used instead");
            Scheduler::default()
        });
        let ipvs = match probe::has_ipvs() {
            true => Ipvs::open().map_err(failed("cannot reach IPVS"))?,
            false => None,
        };
        let ipvs = ipvs.ok_or_else(|| {
            ProxierError::unsupported(Mode::IPVS, "the kernel module ip_vs is missing")
        })?;
        let filter = self.packet_filter();
        let families = filter.families(self.config.families);
        let filter = match filter {
            PacketFilter::Iptables(tools) => {
                Filter::Xtables(Xtables::open(tools).map_err(failed("cannot reach IP sets"))?)
            }
            PacketFilter::Nftables { .. } => {
                Filter::Nft(NftFilter::open().map_err(failed("cannot reach nftables"))?)
            }
        };
        IpvsProxier::new(self.config.clone(), families, scheduler, ipvs, filter)
            .map_err(failed("cannot reach rtnetlink"))
    }
}

impl Backend for IpvsBackend {
    fn mode(&self) -> Mode {
        Mode::IPVS
    }

    fn probe(&self) -> Result<Support, Unusable> {
        probe::probe(self.config.families, || self.packet_filter())
    }

    fn open(&self) -> Result<Box<dyn Proxier>, ProxierError> {
        Ok(Box::new(self.open_proxier()?))
    }

    /// Removes chains and jumps, virtual servers, ipsets and `kube-ipvs0`, by netlink and without
    /// any program. Blocks for a few seconds at most while other programs change rules.
    ///
    /// kube-proxy deletes every virtual server of the node. This backend deletes those with an
    /// address, and only on a node that has `kube-ipvs0` or an ipset of ipvs mode: elsewhere, the
    /// virtual servers are another program's.
    fn clean_up(&self) -> Result<(), ProxierError> {
        leftovers::remove_all()
    }

    /// Leaves the chains that iptables mode has under the same names as long as that mode serves.
    fn clean_up_beside(&self, active: Mode) -> Result<(), ProxierError> {
        match active {
            Mode::IPTABLES => leftovers::remove_beside_iptables(),
            _ => leftovers::remove_all(),
        }
    }

    fn conflicts_with(&self) -> &'static [Mode] {
        &[Mode::NFTABLES, Mode::IPTABLES]
    }

    /// Sets the kernel's parameters for IPVS.
    fn prepare(&self, _node: &NodeConfig) -> Result<(), ProxierError> {
        // The parameters appear with the module.
        probe::has_ipvs();
        let root = Path::new(kernel_settings::PROC_SYS);
        let unset = kernel_settings::apply(root, self.config.strict_arp, KernelVersion::running());
        for error in unset.optional().map_err(failed("cannot prepare the kernel for IPVS"))? {
            tracing::warn!(err = %ErrorChain(&error), "A parameter of the kernel is not what IPVS needs");
        }
        Ok(())
    }
}

fn failed<E>(message: &'static str) -> impl Fn(E) -> ProxierError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |error| ProxierError::backend(Mode::IPVS, message, error)
}
