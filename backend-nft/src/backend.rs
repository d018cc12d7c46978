//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::proxier::{Backend, KernelTable, Mode, Probed, Profile, ProxierError};
use switchyard_kernel::nftables::TransportKind;

use crate::{
    NftConfig, NftProxier,
    clean_up::delete_tables,
    dump,
    layout::names::KUBE_PROXY,
    probe::{ProbeError, probe},
    proxier::PROFILE,
};

/// nftables mode with its configuration.
#[derive(Clone, Debug, Default)]
pub struct NftBackend {
    config: NftConfig,
}

impl NftBackend {
    /// Creates the backend with this configuration.
    pub fn new(config: NftConfig) -> Self {
        Self { config }
    }
}

impl Backend for NftBackend {
    fn profile(&self) -> Profile {
        Profile { is_beside: self.config.is_beside, ..PROFILE }
    }

    fn probe(&self) -> Result<Probed, ProxierError> {
        let NftConfig { transport, families, any_kernel, .. } = self.config;
        probe(transport, &families, any_kernel).map_err(|error| match error {
            ProbeError::NothingRefused => ProxierError::unusable(Mode::NFTABLES, error),
            _ => ProxierError::lacking(Mode::NFTABLES, error),
        })?;
        let config = self.config.clone();
        Ok(Probed::new(families, || Ok(Box::new(NftProxier::open(config)?))))
    }

    /// Deletes both tables, by netlink whichever transport is configured: no program is needed. As
    /// long as the kernel routes loopback addresses, the rules that keep other hosts from them
    /// stay. Leaves the table that ipvs mode may use as long as that mode serves, which removes it
    /// otherwise.
    fn clean_up(&self, keep: Option<Mode>) -> Result<(), ProxierError> {
        if keep == Some(Mode::IPVS) && self.config.table == KUBE_PROXY {
            return Ok(());
        }
        let mut netlink = TransportKind::Netlink.open().map_err(|error| {
            ProxierError::backend(Mode::NFTABLES, "cannot open the netlink transport", error)
        })?;
        delete_tables(&self.config, netlink.as_mut())
    }

    fn dump(&self, most: usize) -> Vec<KernelTable> {
        dump::dump(&self.config, most)
    }
}
