//! The backend as one value: probed, opened, and cleaned up after.

use std::sync::{Mutex, PoisonError};

use switchyard_core::{
    config::NodeConfig,
    proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable},
};
use switchyard_forwarder::Forwarder;

use crate::{
    IntakeKind, UserspaceConfig,
    intake::{
        Intake,
        addresses::{self, Addresses},
        loopback::Loopback,
        redirect::{Redirects, Rules},
    },
    proxier::UserspaceProxier,
};

/// userspace mode with its configuration.
#[derive(Debug)]
pub struct UserspaceBackend {
    config: UserspaceConfig,
    redirects: Redirects,
    /// The intake that the first probe chose. The choice means running programs.
    chosen: Mutex<Option<IntakeKind>>,
}

impl Default for UserspaceBackend {
    fn default() -> Self {
        Self::new(UserspaceConfig::default())
    }
}

impl UserspaceBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: UserspaceConfig) -> Self {
        Self { redirects: Redirects::new(&config), config, chosen: Mutex::default() }
    }

    /// Finds out whether this node can run an intake.
    fn probe_intake(&self, kind: IntakeKind) -> Result<(), String> {
        match kind {
            IntakeKind::Nftables => self.redirects.probe(Rules::Nftables),
            IntakeKind::Iptables => self.redirects.probe(Rules::Iptables),
            IntakeKind::Addresses => addresses::probe(),
            IntakeKind::Loopback => Ok(()),
        }
    }

    /// Returns the intake, which is chosen once. The choice is logged with its reason.
    fn choose(&self) -> Result<IntakeKind, Unusable> {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        match *chosen {
            Some(kind) => Ok(kind),
            None => Ok(*chosen.insert(match self.config.intake {
                Some(kind) => self.choose_configured(kind)?,
                None => self.choose_best()?,
            })),
        }
    }

    fn choose_configured(&self, kind: IntakeKind) -> Result<IntakeKind, Unusable> {
        self.probe_intake(kind)
            .map_err(|why| Unusable::Node(format!("the intake {kind} cannot be used: {why}")))?;
        tracing::info!(intake = %kind, "userspace mode has the intake that is configured");
        Ok(kind)
    }

    fn choose_best(&self) -> Result<IntakeKind, Unusable> {
        let is_allowed =
            |kind: &IntakeKind| *kind != IntakeKind::Loopback || self.config.may_use_loopback;
        let mut passed_over = Vec::new();
        for kind in IntakeKind::ALL.into_iter().filter(is_allowed) {
            if let Err(why) = self.probe_intake(kind) {
                passed_over.push(format!("{kind}: {why}"));
                continue;
            }
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
            return Ok(kind);
        }
        Err(Unusable::Node(passed_over.join("; ")))
    }

    fn open_intake(&self, kind: IntakeKind) -> Result<Box<dyn Intake>, ProxierError> {
        let families = self.config.families;
        match kind {
            IntakeKind::Nftables => self.redirects.open(Rules::Nftables),
            IntakeKind::Iptables => self.redirects.open(Rules::Iptables),
            IntakeKind::Addresses => Ok(Box::new(Addresses::open(families)?)),
            IntakeKind::Loopback => {
                Ok(Box::new(Loopback::new(families, self.config.table.clone())))
            }
        }
    }
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

    /// Removes the tables, the chains and the addresses of every intake, and the chains of kube-proxy's own
    /// userspace mode.
    fn clean_up(&self) -> Result<(), ProxierError> {
        let rules = self.redirects.clean_up();
        rules.and(addresses::clean_up())
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

    fn is_prepared(&self, node: &NodeConfig) -> Result<(), ProxierError> {
        match self.choose() {
            Ok(IntakeKind::Nftables) => self.redirects.is_prepared(Rules::Nftables, node),
            Ok(IntakeKind::Iptables) => self.redirects.is_prepared(Rules::Iptables, node),
            _ => Ok(()),
        }
    }

    /// Prepares the node as the backend does whose rules redirect traffic.
    fn prepare(&self, node: &NodeConfig) -> Result<(), ProxierError> {
        match self.choose() {
            Ok(IntakeKind::Nftables) => self.redirects.prepare(Rules::Nftables, node),
            Ok(IntakeKind::Iptables) => self.redirects.prepare(Rules::Iptables, node),
            _ => Ok(()),
        }
    }
}
