//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::{
    error::ErrorChain,
    proxier::{Backend, Mode, Probed, Profile, ProxierError},
};
use switchyard_forwarder::Forwarder;

use crate::{
    CaptureMode, UserspaceConfig,
    capture::{
        OpenCapture, SystemError,
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

impl UserspaceBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: UserspaceConfig) -> Self {
        Self { config }
    }

    /// Finds out whether this node can run a capture mode.
    fn probe_capture(&self, kind: CaptureMode) -> Result<OpenCapture, SystemError> {
        let families = self.config.families;
        let redirects = || Redirects::new(&self.config);
        match kind {
            CaptureMode::Nftables => redirects().probe(Rules::Nftables),
            CaptureMode::Iptables => redirects().probe(Rules::Iptables),
            CaptureMode::Addresses => {
                addresses::probe()?;
                Ok(Box::new(move || Ok(Box::new(Addresses::open(families)?))))
            }
            CaptureMode::Loopback => {
                let table = self.config.table.clone();
                Ok(Box::new(move || Ok(Box::new(Loopback::new(families, table)))))
            }
        }
    }

    fn choose_configured(&self, kind: CaptureMode) -> Result<OpenCapture, ProxierError> {
        let open = self.probe_capture(kind).map_err(|source| {
            ProxierError::lacking(Mode::USERSPACE, CaptureUnusable { kind, source })
        })?;
        tracing::info!(capture = %kind, "Using the configured capture mode");
        Ok(open)
    }

    fn choose_best(&self) -> Result<OpenCapture, ProxierError> {
        let is_allowed =
            |kind: &CaptureMode| *kind != CaptureMode::Loopback || self.config.may_use_loopback;
        let mut passed_over = Vec::new();
        for kind in CaptureMode::ALL.into_iter().filter(is_allowed) {
            let open = match self.probe_capture(kind) {
                Ok(open) => open,
                Err(why) => {
                    passed_over.push(format!("{kind}: {}", ErrorChain(&*why)));
                    continue;
                }
            };
            let why = passed_over.join("; ");
            if kind == CaptureMode::Loopback {
                tracing::warn!(
                    capture = %kind,
                    others = why.as_str(),
                    "userspace mode serves clients on this machine alone, at loopback addresses"
                );
            } else {
                tracing::info!(
                    capture = %kind,
                    passed_over = why.as_str(),
                    "Chose the best capture mode of this node"
                );
            }
            return Ok(open);
        }
        Err(ProxierError::lacking(Mode::USERSPACE, passed_over.join("; ")))
    }
}

/// Why the configured capture mode cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the capture mode {kind} cannot be used")]
struct CaptureUnusable {
    kind: CaptureMode,
    source: SystemError,
}

impl Backend for UserspaceBackend {
    fn profile(&self) -> Profile {
        PROFILE
    }

    /// Chooses the capture mode, which may run programs. The choice is logged with its reason.
    fn probe(&self) -> Result<Probed, ProxierError> {
        let open_capture = match self.config.capture {
            Some(kind) => self.choose_configured(kind)?,
            None => self.choose_best()?,
        };
        let config = self.config.forwarder.clone();
        Ok(Probed::new(self.config.families, move || {
            let capture = open_capture()?;
            let forwarder = Forwarder::start(config).map_err(|error| {
                ProxierError::backend(Mode::USERSPACE, "cannot start the proxy", error)
            })?;
            Ok(Box::new(UserspaceProxier::new(forwarder, capture)))
        }))
    }

    /// Removes the tables, the chains and the addresses of every capture mode, and the chains of
    /// kube-proxy's own userspace mode.
    fn clean_up(&self, _keep: Option<Mode>) -> Result<(), ProxierError> {
        let rules = Redirects::new(&self.config).clean_up();
        rules.and(addresses::clean_up())
    }
}
