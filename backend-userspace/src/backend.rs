//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::{
    error::ErrorChain,
    proxier::{Backend, KernelTable, Mode, Probed, Profile, ProxierError},
};

use crate::{
    CaptureMode, UserspaceConfig,
    capture::{
        OpenCapture, SystemError,
        addresses::{self, Addresses},
        loopback::Loopback,
        redirect::{Redirects, Rules},
    },
    forwarder::Forwarder,
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

    fn choose_configured(
        &self,
        kind: CaptureMode,
    ) -> Result<(CaptureMode, OpenCapture), ProxierError> {
        let open = self.probe_capture(kind).map_err(|source| {
            ProxierError::lacking(Mode::USERSPACE, CaptureUnusable { kind, source })
        })?;
        tracing::info!(capture = %kind, "Using the configured capture mode");
        Ok((kind, open))
    }

    fn choose_best<T>(
        &self,
        probe: impl Fn(CaptureMode) -> Result<T, SystemError>,
    ) -> Result<(CaptureMode, T), ProxierError> {
        let is_allowed =
            |kind: &CaptureMode| *kind != CaptureMode::Loopback || self.config.may_use_loopback;
        let mut passed_over = Vec::new();
        for kind in CaptureMode::ALL.into_iter().filter(is_allowed) {
            if kind == CaptureMode::Addresses && cfg!(target_os = "linux") {
                passed_over.push(format!(
                    "{kind}: not used unless it is named, since the node's servers share addresses \
                     with Services"
                ));
                continue;
            }
            let open = match probe(kind) {
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
            return Ok((kind, open));
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
        let (kind, open_capture) = match self.config.capture {
            Some(kind) => self.choose_configured(kind)?,
            None => self.choose_best(|kind| self.probe_capture(kind))?,
        };
        let mut config = self.config.clone();
        if matches!(kind, CaptureMode::Nftables | CaptureMode::Iptables) {
            config.forwarder.mark = Some(config.mark());
        }
        Ok(Probed::new(self.config.families, move || {
            let capture = open_capture()?;
            let forwarder = Forwarder::start_counting(config.forwarder.clone(), &config.counters)
                .map_err(|error| {
                ProxierError::backend(Mode::USERSPACE, "cannot start the proxy", error)
            })?;
            let keep = match kind {
                CaptureMode::Nftables => Some(Rules::Nftables),
                CaptureMode::Iptables => Some(Rules::Iptables),
                CaptureMode::Addresses => None,
                // Without privileges nothing can be removed, and nothing disturbs.
                CaptureMode::Loopback => {
                    return Ok(Box::new(UserspaceProxier::new(forwarder, capture)));
                }
            };
            let leftovers = move || Redirects::new(&config).clean_up(keep);
            Ok(Box::new(UserspaceProxier::new(forwarder, capture).replacing(leftovers)))
        }))
    }

    /// Removes the tables, the chains and the addresses of every capture mode, and the chains of
    /// kube-proxy's own userspace mode.
    fn clean_up(&self, _keep: Option<Mode>) -> Result<(), ProxierError> {
        let rules = Redirects::new(&self.config).clean_up(None);
        rules.and(addresses::clean_up())
    }

    fn dump(&self, most: usize) -> Vec<KernelTable> {
        Redirects::new(&self.config).dump(most)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_not_taken_unasked() {
        let mut config = UserspaceConfig::default();
        let mut choose = |may_use_loopback| {
            config.may_use_loopback = may_use_loopback;
            let probe = |kind| match kind {
                CaptureMode::Nftables | CaptureMode::Iptables => Err("no packet filter".into()),
                _ => Ok(()),
            };
            UserspaceBackend::new(config.clone()).choose_best(probe).map(|(kind, ())| kind)
        };
        let error = choose(false).unwrap_err();
        assert!(ErrorChain(&error).to_string().contains("addresses: not used unless"), "{error:?}");
        assert_eq!(choose(true).unwrap(), CaptureMode::Loopback);
    }
}
