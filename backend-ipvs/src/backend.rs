//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::{
    config::NodeConfig,
    proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable},
};

use switchyard_ipvs_netlink::Ipvs;
use switchyard_xtables::{InstalledPrograms, ProgramOptions, Tools};

use crate::{
    IpvsConfig, Scheduler, UnknownScheduler,
    filter::{Filter, xtables::Xtables},
    kernel_settings, leftovers, probe,
    proxier::IpvsProxier,
};

/// ipvs mode with its configuration.
#[derive(Debug, Default)]
pub struct IpvsBackend {
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
        if !probe::has_ipvs() {
            return Err(Unusable::Node("the kernel module ip_vs is missing".to_owned()));
        }
        let tools = self.tools().map_err(|e| Unusable::Backend(e.to_string()))?;
        Ok(Support::new(tools.families()))
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

    fn prepare(&self, _node: &NodeConfig) -> Result<(), ProxierError> {
        kernel_settings::apply(self.config.strict_arp)
            .map_err(failed("cannot set the kernel's parameters"))
    }
}

impl IpvsBackend {
    fn tools(&self) -> Result<Tools, ProxierError> {
        let installed = InstalledPrograms::find(&ProgramOptions::default());
        let tools = installed.choose(None, self.config.families);
        let tools =
            tools.map_err(|missing| ProxierError::unsupported(Mode::IPVS, missing.reason))?;
        tools.usable().map_err(|error| ProxierError::unsupported(Mode::IPVS, error.to_string()))
    }

    fn open_proxier(&self) -> Result<IpvsProxier, ProxierError> {
        let scheduler = self.config.scheduler.parse().unwrap_or_else(|error: UnknownScheduler| {
            tracing::error!(err = %error, "ipvs.scheduler cannot be used; rr is used instead");
            Scheduler::default()
        });
        let ipvs = Ipvs::open().map_err(failed("cannot reach IPVS"))?;
        let ipvs = ipvs.ok_or_else(|| {
            ProxierError::unsupported(Mode::IPVS, "the kernel module ip_vs is missing")
        })?;
        let tools = self.tools()?;
        let families = tools.families();
        let filter = Xtables::open(tools).map_err(failed("cannot reach ipsets"))?;
        IpvsProxier::new(self.config.clone(), families, scheduler, ipvs, Filter::Xtables(filter))
            .map_err(failed("cannot open a socket for the device"))
    }
}

fn failed<E>(message: &'static str) -> impl Fn(E) -> ProxierError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |error| ProxierError::backend(Mode::IPVS, message, error)
}
