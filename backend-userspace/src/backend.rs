//! The backend as one value: probed, opened, and cleaned up after.

use std::sync::{Mutex, PoisonError};

use switchyard_core::{
    config::NodeConfig,
    proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable},
};
use switchyard_forwarder::Forwarder;
#[cfg(target_os = "linux")]
use switchyard_iptables::{ChainNaming, IptablesBackend, IptablesConfig};
#[cfg(target_os = "linux")]
use switchyard_nft::{NftBackend, NftConfig};

use crate::{
    IntakeKind, UserspaceConfig,
    intake::{
        Intake,
        addresses::{self, Addresses},
        loopback::Loopback,
    },
    proxier::UserspaceProxier,
};
#[cfg(target_os = "linux")]
use crate::{intake::redirect::Redirect, predecessor};

/// userspace mode with its configuration.
#[derive(Debug, Default)]
pub struct UserspaceBackend {
    config: UserspaceConfig,
    /// The intake that the last probe chose. The choice means running programs.
    chosen: Mutex<Option<IntakeKind>>,
}

impl UserspaceBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: UserspaceConfig) -> Self {
        Self { config, chosen: Mutex::default() }
    }

    /// The backend whose rules redirect traffic, in a table of its own.
    #[cfg(target_os = "linux")]
    fn nftables(&self) -> NftBackend {
        let mut config = NftConfig::default();
        config.table = "switchyard-userspace";

        config.families = self.config.families;
        config.masquerade_bit = self.config.masquerade_bit;
        NftBackend::new(config)
    }

    /// The backend whose rules redirect traffic, in chains of its own.
    #[cfg(target_os = "linux")]
    fn iptables(&self) -> IptablesBackend {
        let mut config = IptablesConfig::default();
        config.chains = ChainNaming::Switchyard;

        config.families = self.config.families;
        config.masquerade_bit = self.config.masquerade_bit;
        IptablesBackend::new(config)
    }

    /// Finds out whether this node can run an intake.
    fn try_intake(&self, kind: IntakeKind) -> Result<(), String> {
        match kind {
            #[cfg(target_os = "linux")]
            IntakeKind::Nftables => redirects(&self.nftables()),
            #[cfg(target_os = "linux")]
            IntakeKind::Iptables => redirects(&self.iptables()),
            #[cfg(not(target_os = "linux"))]
            IntakeKind::Nftables | IntakeKind::Iptables => {
                Err("this system is not Linux".to_owned())
            }
            IntakeKind::Addresses => addresses::probe(),
            IntakeKind::Loopback => Ok(()),
        }
    }

    /// Chooses the intake, once, and logs why it is that one.
    fn choose(&self) -> Result<IntakeKind, Unusable> {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kind) = *chosen {
            return Ok(kind);
        }
        if let Some(kind) = self.config.intake {
            let unusable = |why| Unusable::Node(format!("the intake {kind} cannot be used: {why}"));
            self.try_intake(kind).map_err(unusable)?;
            tracing::info!(intake = %kind, "userspace mode has the intake that is configured");
            return Ok(*chosen.insert(kind));
        }
        let mut passed_over = Vec::new();
        for kind in IntakeKind::ALL {
            if kind == IntakeKind::Loopback && !self.config.may_use_loopback {
                continue;
            }
            match self.try_intake(kind) {
                Ok(()) => {
                    let why = passed_over.join("; ");
                    if kind == IntakeKind::Loopback {
                        tracing::warn!(
                            intake = %kind,
                            others = why.as_str(),
                            "userspace mode serves clients on this machine alone, at loopback addresses"
                        );
                    } else {
                        tracing::info!(
                            intake = %kind,
                            passed_over = why.as_str(),
                            "userspace mode has the best intake that this node can run"
                        );
                    }
                    return Ok(*chosen.insert(kind));
                }
                Err(why) => passed_over.push(format!("{kind}: {why}")),
            }
        }
        Err(Unusable::Node(passed_over.join("; ")))
    }

    fn open_intake(&self, kind: IntakeKind) -> Result<Box<dyn Intake>, ProxierError> {
        let families = self.config.families;
        match kind {
            #[cfg(target_os = "linux")]
            IntakeKind::Nftables => {
                Ok(Box::new(Redirect::open(self.nftables().open()?, families)?))
            }
            #[cfg(target_os = "linux")]
            IntakeKind::Iptables => {
                Ok(Box::new(Redirect::open(self.iptables().open()?, families)?))
            }
            #[cfg(not(target_os = "linux"))]
            IntakeKind::Nftables | IntakeKind::Iptables => {
                Err(ProxierError::unsupported(Mode::USERSPACE, "this system is not Linux"))
            }
            IntakeKind::Addresses => Ok(Box::new(Addresses::open(families)?)),
            IntakeKind::Loopback => {
                Ok(Box::new(Loopback::new(families, self.config.table.clone())))
            }
        }
    }
}

/// Finds out whether a backend can redirect traffic on this node, and whether the sockets can have
/// addresses that traffic can be redirected to.
#[cfg(target_os = "linux")]
fn redirects(backend: &dyn Backend) -> Result<(), String> {
    addresses::probe()?;
    backend.probe().map(drop).map_err(|unusable| unusable.to_string())
}

impl Backend for UserspaceBackend {
    fn mode(&self) -> Mode {
        Mode::USERSPACE
    }

    fn probe(&self) -> Result<Support, Unusable> {
        self.choose().map(|_| Support::new(self.config.families))
    }

    fn open(&self) -> Result<Box<dyn Proxier>, ProxierError> {
        let unsupported =
            |why: Unusable| ProxierError::unsupported(Mode::USERSPACE, why.to_string());
        let intake = self.open_intake(self.choose().map_err(unsupported)?)?;
        let forwarder = Forwarder::start(self.config.forwarder.clone()).map_err(|error| {
            ProxierError::backend(Mode::USERSPACE, "cannot start the proxy", error)
        })?;
        Ok(Box::new(UserspaceProxier::new(forwarder, intake)))
    }

    /// Removes the table, the chains and the device of every intake, and the chains of kube-proxy's own
    /// userspace mode.
    fn clean_up(&self) -> Result<(), ProxierError> {
        #[cfg(target_os = "linux")]
        {
            // A node that cannot hold the rules of a backend has none.
            let remove_rules = |backend: &dyn Backend| match backend.clean_up() {
                Err(ProxierError::Unsupported { .. }) => Ok(()),
                other => other,
            };
            let rules = [remove_rules(&self.nftables()), remove_rules(&self.iptables())];
            let all = rules.into_iter().chain([predecessor::clean_up(), addresses::clean_up()]);
            // Everything is tried before the first error is returned.
            all.collect::<Vec<_>>().into_iter().collect()
        }
        #[cfg(not(target_os = "linux"))]
        addresses::clean_up()
    }

    fn translates_flows(&self) -> bool {
        false
    }

    fn conflicts_with(&self) -> &'static [Mode] {
        let chosen = *self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        match chosen {
            // Without privileges nothing can be removed, and nothing that is there disturbs.
            Some(IntakeKind::Loopback) => &[],
            _ => &[Mode::NFTABLES, Mode::IPTABLES, Mode::IPVS],
        }
    }

    /// Prepares the node as the backend does whose rules redirect traffic.
    fn prepare(&self, node: &NodeConfig) -> Result<(), ProxierError> {
        #[cfg(target_os = "linux")]
        match self.choose() {
            Ok(IntakeKind::Nftables) => return self.nftables().prepare(node),
            Ok(IntakeKind::Iptables) => return self.iptables().prepare(node),
            _ => {}
        }
        let _ = node;
        Ok(())
    }
}
