//! The backend as one value: probed, opened, and cleaned up after.

use std::{thread, time::Duration};

use switchyard_core::{
    error::ErrorChain,
    model::PerFamily,
    proxier::{Backend, KernelTable, Mode, Probed, Profile, Proxier, ProxierError},
};
use switchyard_iptables::{IptablesBackend, IptablesConfig};
use switchyard_kernel::ipvs::Ipvs;
use switchyard_nft::{NftBackend, NftConfig};

use crate::{
    IpvsConfig, Scheduler, UnknownScheduler, dump, leftovers, probe,
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

    /// Chooses the backend beneath, with a warning if it is not nftables'.
    fn choose(&self) -> Result<(Probed, Option<String>), ProxierError> {
        let (nftables, iptables) = (|| self.nftables().probe(), || self.iptables().probe());
        match self.config.rules {
            Some(Mode::IPTABLES) => Ok((iptables()?, None)),
            Some(_) => Ok((nftables()?, None)),
            None => first_of(nftables, iptables, PAUSES),
        }
    }
}

/// Probes nftables, more than once before the rules that may serve are given up, or else iptables.
fn first_of<T>(
    nftables: impl Fn() -> Result<T, ProxierError>,
    iptables: impl FnOnce() -> Result<T, ProxierError>,
    pauses: [Duration; 2],
) -> Result<(T, Option<String>), ProxierError> {
    let mut pauses = pauses.into_iter();
    let why = loop {
        match (nftables(), pauses.next()) {
            (Ok(probed), _) => return Ok((probed, None)),
            (Err(_), Some(pause)) => thread::sleep(pause),
            (Err(why), None) => break why,
        }
    };
    let why = ErrorChain(&why);
    let probed = iptables().map_err(|also| {
        let also = ErrorChain(&also);
        ProxierError::lacking(Mode::IPVS, format!("rules need one of both: {why}; {also}"))
    })?;
    let warning = format!(
        "the rules of ipvs mode are those of iptables, some for each Service, as there is no \
         nftables: {why}"
    );
    Ok((probed, Some(warning)))
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
    /// `kube-ipvs0`: elsewhere, the virtual servers are another program's.
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

    fn dump(&self, most: usize) -> Vec<KernelTable> {
        let mut rules = self.nftables().dump(most / 2);
        if rules.iter().all(|table| table.text.is_none()) {
            rules = self.iptables().dump(most / 2);
        }
        rules.push(dump::dump(most / 2));
        rules
    }
}

fn failed<E>(message: &'static str) -> impl Fn(E) -> ProxierError
where
    E: std::error::Error + Send + Sync + 'static,
{
    move |error| ProxierError::backend(Mode::IPVS, message, error)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The choice on a node where nftables can be probed after these failures.
    fn choice(failures: usize, has_iptables: bool) -> Result<(Mode, Option<String>), ProxierError> {
        let left = Cell::new(failures);
        let lacking = |mode, what: &str| Err(ProxierError::lacking(mode, what.to_owned()));
        let nftables = || match left.replace(left.get().saturating_sub(1)) {
            0 => Ok(Mode::NFTABLES),
            _ => lacking(Mode::NFTABLES, "the netlink socket is full"),
        };
        let iptables = || match has_iptables {
            true => Ok(Mode::IPTABLES),
            false => lacking(Mode::IPTABLES, "no program"),
        };
        first_of(nftables, iptables, [Duration::ZERO; 2])
    }

    #[test]
    fn rules_are_those_of_iptables_only_where_nftables_fails_again_and_again() {
        for failures in 0..3 {
            assert_eq!(choice(failures, true).unwrap(), (Mode::NFTABLES, None));
        }
        let (mode, warning) = choice(3, true).unwrap();
        assert_eq!(mode, Mode::IPTABLES);
        assert!(warning.unwrap().contains("the netlink socket is full"));
        let error = ErrorChain(&choice(3, false).unwrap_err()).to_string();
        assert!(error.contains("socket is full") && error.contains("no program"), "{error}");
    }
}
