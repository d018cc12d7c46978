//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::{
    error::ErrorChain,
    proxier::{Backend, Mode, Probed, Profile, ProxierError},
};
use switchyard_forwarder::Forwarder;

use crate::{
    IntakeKind, UserspaceConfig,
    intake::{
        Intake, SystemError,
        addresses::{self, Addresses},
        loopback::Loopback,
        redirect::{Redirects, Rules},
    },
    proxier::{PROFILE, UserspaceProxier},
};

/// userspace mode with its configuration.
#[derive(Clone, Debug, Default)]
pub struct UserspaceBackend {
    config: UserspaceConfig,
}

/// Opens an intake that this node can run.
pub(crate) type OpenIntake = Box<dyn FnOnce() -> Result<Box<dyn Intake>, ProxierError> + Send>;

impl UserspaceBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: UserspaceConfig) -> Self {
        Self { config }
    }

    /// Finds out whether this node can run an intake.
    fn probe_intake(&self, kind: IntakeKind) -> Result<OpenIntake, SystemError> {
        let families = self.config.families;
        let redirects = || Redirects::new(&self.config);
        match kind {
            IntakeKind::Nftables => redirects().probe(Rules::Nftables),
            IntakeKind::Iptables => redirects().probe(Rules::Iptables),
            IntakeKind::Addresses => {
                addresses::probe()?;
                Ok(Box::new(move || Ok(Box::new(Addresses::open(families)?))))
            }
            IntakeKind::Loopback => {
                let table = self.config.table.clone();
                Ok(Box::new(move || Ok(Box::new(Loopback::new(families, table)))))
            }
        }
    }

    fn choose_configured(&self, kind: IntakeKind) -> Result<OpenIntake, ProxierError> {
        let open = self.probe_intake(kind).map_err(|source| {
            ProxierError::lacking(Mode::USERSPACE, IntakeUnusable { kind, source })
        })?;
        tracing::info!(intake = %kind, "userspace mode has the intake that is configured");
        Ok(open)
    }

    fn choose_best(&self) -> Result<OpenIntake, ProxierError> {
        let is_allowed =
            |kind: &IntakeKind| *kind != IntakeKind::Loopback || self.config.may_use_loopback;
        let mut passed_over = Vec::new();
        for kind in IntakeKind::ALL.into_iter().filter(is_allowed) {
            let open = match self.probe_intake(kind) {
                Ok(open) => open,
                Err(why) => {
                    passed_over.push(format!("{kind}: {}", ErrorChain(&*why)));
                    continue;
                }
            };
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
            return Ok(open);
        }
        Err(ProxierError::lacking(Mode::USERSPACE, passed_over.join("; ")))
    }
}

/// Why the configured intake cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the intake {kind} cannot be used")]
struct IntakeUnusable {
    kind: IntakeKind,
    source: SystemError,
}

impl Backend for UserspaceBackend {
    fn profile(&self) -> Profile {
        PROFILE
    }

    /// Chooses the intake, which may run programs. The choice is logged with its reason.
    fn probe(&self) -> Result<Probed, ProxierError> {
        let open_intake = match self.config.intake {
            Some(kind) => self.choose_configured(kind)?,
            None => self.choose_best()?,
        };
        let config = self.config.forwarder.clone();
        Ok(Probed::new(self.config.families, move || {
            let intake = open_intake()?;
            let forwarder = Forwarder::start(config).map_err(|error| {
                ProxierError::backend(Mode::USERSPACE, "cannot start the proxy", error)
            })?;
            Ok(Box::new(UserspaceProxier::new(forwarder, intake)))
        }))
    }

    /// Removes the tables, the chains and the addresses of every intake, and the chains of kube-proxy's own
    /// userspace mode.
    fn clean_up(&self, _keep: Option<Mode>) -> Result<(), ProxierError> {
        let rules = Redirects::new(&self.config).clean_up();
        rules.and(addresses::clean_up())
    }
}
