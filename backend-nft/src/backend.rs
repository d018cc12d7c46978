//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::proxier::{Backend, Mode, Probed, Profile, ProxierError};
use switchyard_netlink::sysctl::routes_localnet;
use switchyard_nft_ruleset::{
    Elements, Family, Transaction, Transport, TransportError, TransportKind,
};

use crate::{
    NftConfig, NftProxier,
    layout::{names::KUBE_PROXY, table},
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
        PROFILE
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
}

/// Deletes the tables of both families, except for what [`table::guard_loopback`] adds, which stays
/// while the kernel routes loopback addresses.
pub(crate) fn delete_tables(
    config: &NftConfig,
    transport: &mut dyn Transport,
) -> Result<(), ProxierError> {
    let delete = |family| -> Result<(), TransportError> {
        let table = config.table(family);
        if let Some(dump) = transport.read(&table, Elements::Omit)? {
            let mut transaction = Transaction::new();
            transaction.delete_table(&table);
            if family == Family::Ip && routes_localnet() && table::guards_loopback(&dump) {
                table::guard_loopback(config, &mut transaction);
            }
            transport.commit(&transaction)?;
        }
        Ok(())
    };
    Family::ALL
        .into_iter()
        .try_for_each(delete)
        .map_err(|error| ProxierError::backend(Mode::NFTABLES, "cannot delete the tables", error))
}
