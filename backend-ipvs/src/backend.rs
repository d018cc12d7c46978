//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::proxier::{Backend, Mode, Probed, Profile, ProxierError};
use switchyard_netlink::ipvs::Ipvs;
use switchyard_xtables::ProgramOptions;

use crate::{
    IpvsConfig, Scheduler, UnknownScheduler,
    filter::{Filter, nft::NftFilter, xtables::Xtables},
    leftovers,
    packet_filter::{self, PacketFilter},
    probe,
    proxier::{IpvsProxier, PROFILE},
};

/// ipvs mode with its configuration.
#[derive(Clone, Debug, Default)]
pub struct IpvsBackend {
    config: IpvsConfig,
}

impl IpvsBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: IpvsConfig) -> Self {
        Self { config }
    }
}

fn open(config: IpvsConfig, filter: PacketFilter) -> Result<IpvsProxier, ProxierError> {
    let scheduler = config.scheduler.parse().unwrap_or_else(|error: UnknownScheduler| {
        tracing::error!(err = %error, "ipvs.scheduler cannot be used; rr is used instead");
        Scheduler::default()
    });
    let ipvs = Ipvs::open().map_err(failed("cannot reach IPVS"))?;
    let ipvs = ipvs.ok_or_else(|| probe::missing(["ip_vs"]))?;
    let families = filter.families(config.families);
    let filter = match filter {
        PacketFilter::Iptables(tools) => {
            Filter::Xtables(Xtables::open(tools).map_err(failed("cannot reach IP sets"))?)
        }
        PacketFilter::Nftables { .. } => {
            Filter::Nft(NftFilter::open().map_err(failed("cannot reach nftables"))?)
        }
    };
    IpvsProxier::new(config, families, scheduler, ipvs, filter)
        .map_err(failed("cannot reach rtnetlink"))
}

impl Backend for IpvsBackend {
    fn profile(&self) -> Profile {
        PROFILE
    }

    fn probe(&self) -> Result<Probed, ProxierError> {
        let config = self.config.clone();
        let choose = || packet_filter::packet_filter(&ProgramOptions::default(), config.families);
        let (families, filter) = probe::probe(config.families, choose)?;
        Ok(Probed::new(families, || Ok(Box::new(open(config, filter)?))))
    }

    /// Removes chains and jumps, virtual servers, ipsets and `kube-ipvs0`, by netlink and without
    /// any program. Blocks for a few seconds at most while other programs change rules. Leaves the chains
    /// that iptables mode has under the same names as long as that mode serves.
    ///
    /// kube-proxy deletes every virtual server of the node. This backend deletes those with an
    /// address, and only on a node that has `kube-ipvs0` or an ipset of ipvs mode: elsewhere, the
    /// virtual servers are another program's.
    fn clean_up(&self, keep: Option<Mode>) -> Result<(), ProxierError> {
        match keep {
            Some(Mode::IPTABLES) => leftovers::remove_beside_iptables(),
            _ => leftovers::remove_all(),
        }
    }
}

fn failed<E>(message: &'static str) -> impl Fn(E) -> ProxierError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |error| ProxierError::backend(Mode::IPVS, message, error)
}
