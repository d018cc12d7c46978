//! The backend as one value: probed, opened, and cleaned up after.

use std::{thread, time::Duration};

use switchyard_core::{
    error::ErrorChain,
    model::PerFamily,
    proxier::{Backend, Mode, Probed, Profile, Proxier, ProxierError},
};
use switchyard_iptables::{IptablesBackend, IptablesConfig};
use switchyard_netlink::ipvs::Ipvs;
use switchyard_nft::{NftBackend, NftConfig};

use crate::{
    IpvsConfig, Scheduler, UnknownScheduler, leftovers, probe,
    proxier::{IpvsProxier, PROFILE, kernel::NodeKernel},
    rules::Rules,
};

/// The times after which a probe of nftables is tried again, which may have failed by chance.
const PAUSES: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];

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

    fn nftables(&self) -> NftBackend {
        let mut config = NftConfig::default();
        config.families = self.config.families;
        config.masquerade_bit = self.config.masquerade_bit;
        config.beneath_ipvs = true;
        NftBackend::new(config)
    }

    fn iptables(&self) -> IptablesBackend {
        let mut config = IptablesConfig::default();
        config.families = self.config.families;
        config.masquerade_bit = self.config.masquerade_bit;
        config.beneath_ipvs = true;
        IptablesBackend::new(config)
    }

    /// Chooses the backend beneath: nftables, or else iptables, with a warning.
    fn choose(&self) -> Result<(Probed, Option<String>), ProxierError> {
        let why = match self.config.rules {
            Some(Mode::IPTABLES) => return Ok((self.iptables().probe()?, None)),
            Some(_) => return Ok((self.nftables().probe()?, None)),
            None => match self.probe_nftables() {
                Ok(probed) => return Ok((probed, None)),
                Err(why) => why,
            },
        };
        let why = ErrorChain(&why);
        let probed = self.iptables().probe().map_err(|also| {
            let also = ErrorChain(&also);
            ProxierError::lacking(Mode::IPVS, format!("rules need one of both: {why}; {also}"))
        })?;
        let warning = format!(
            "the rules of ipvs mode are those of iptables, some for each Service, as there is no \
             nftables: {why}"
        );
        Ok((probed, Some(warning)))
    }

    /// Probes nftables, more than once before the rules that may serve are given up.
    fn probe_nftables(&self) -> Result<Probed, ProxierError> {
        for pause in PAUSES {
            match self.nftables().probe() {
                Ok(probed) => return Ok(probed),
                Err(_) => thread::sleep(pause),
            }
        }
        self.nftables().probe()
    }
}

fn open(
    config: IpvsConfig,
    families: PerFamily<bool>,
    rules: Box<dyn Proxier>,
    warning: Option<String>,
) -> Result<IpvsProxier, ProxierError> {
    let scheduler = config.scheduler.parse().unwrap_or_else(|error: UnknownScheduler| {
        tracing::error!(err = %error, "ipvs.scheduler cannot be used; rr is used instead");
        Scheduler::default()
    });
    let ipvs = Ipvs::open().map_err(failed("cannot reach IPVS"))?;
    let ipvs = ipvs.ok_or_else(|| probe::missing("ip_vs"))?;
    let kernel = NodeKernel::new(ipvs).map_err(failed("cannot reach rtnetlink"))?;
    let proxier =
        IpvsProxier::new(config, families, scheduler, Box::new(kernel), Rules::new(rules));
    Ok(proxier.with_warning(warning))
}

impl Backend for IpvsBackend {
    fn profile(&self) -> Profile {
        PROFILE
    }

    fn probe(&self) -> Result<Probed, ProxierError> {
        probe::probe()?;
        let (rules, warning) = self.choose()?;
        let (config, families) = (self.config.clone(), rules.families);
        let open = move || -> Result<Box<dyn Proxier>, ProxierError> {
            Ok(Box::new(open(config, families, rules.open()?, warning)?))
        };
        Ok(Probed::new(families, open))
    }

    /// Removes rules, virtual servers, the IP sets of kube-proxy's ipvs mode and `kube-ipvs0`, by
    /// netlink and without any program. Blocks for a few seconds at most while other programs
    /// change rules. Leaves the rules that another mode has under the same names as long as that
    /// mode serves.
    ///
    /// kube-proxy deletes every virtual server of the node. This backend deletes those with an
    /// address that is not within [`IpvsConfig::excluded`], and only on a node that has
    /// `kube-ipvs0` or an IP set of ipvs mode: elsewhere, the virtual servers are another
    /// program's.
    fn clean_up(&self, keep: Option<Mode>) -> Result<(), ProxierError> {
        let excluded = &self.config.excluded;
        match keep {
            Some(Mode::IPTABLES) => leftovers::remove_beside_iptables(excluded),
            Some(_) => leftovers::remove_all(excluded),
            None => {
                let rules = self.nftables().clean_up(None).and(self.iptables().clean_up(None));
                leftovers::remove_all(excluded).and(rules)
            }
        }
    }
}

fn failed<E>(message: &'static str) -> impl Fn(E) -> ProxierError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |error| ProxierError::backend(Mode::IPVS, message, error)
}
