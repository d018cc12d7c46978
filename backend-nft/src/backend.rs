//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::{
    config::NodeConfig,
    error::Chain,
    proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable},
};
use switchyard_interfaces::route_localnet;

use crate::{
    NftConfig, NftProxier,
    probe::{ProbeError, probe},
    ruleset::{Elements, Family, Transaction, Transport, TransportError, TransportKind},
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
    fn mode(&self) -> Mode {
        Mode::NFTABLES
    }

    fn probe(&self) -> Result<Support, Unusable> {
        let NftConfig { transport, families, any_kernel, .. } = self.config;
        match probe(transport, &families, any_kernel) {
            Ok(()) => Ok(Support::new(families)),
            Err(error @ ProbeError::NothingRefused) => {
                Err(Unusable::Backend(Chain(&error).to_string()))
            }
            Err(error) => Err(Unusable::Node(Chain(&error).to_string())),
        }
    }

    fn open(&self) -> Result<Box<dyn Proxier>, ProxierError> {
        Ok(Box::new(NftProxier::open(self.config.clone())?))
    }

    /// Deletes both tables, by netlink whichever transport is configured: no program is needed.
    fn clean_up(&self) -> Result<(), ProxierError> {
        let mut transport = TransportKind::Netlink.open().map_err(|error| {
            ProxierError::backend(Mode::NFTABLES, "cannot open the netlink transport", error)
        })?;
        delete_tables(&self.config, transport.as_mut())
    }

    /// Has the kernel route loopback addresses, if node ports are to be served on them.
    fn prepare(&self, node: &NodeConfig) -> Result<(), ProxierError> {
        if !node.serves_localhost() || !self.config.families.v4 {
            return Ok(());
        }
        route_localnet().map_err(|error| {
            ProxierError::backend(Mode::NFTABLES, "cannot have loopback addresses routed", error)
        })
    }

    fn conflicts_with(&self) -> &'static [Mode] {
        &[Mode::IPTABLES, Mode::IPVS]
    }
}

/// Deletes the tables of both families.
pub(crate) fn delete_tables(
    config: &NftConfig,
    transport: &mut dyn Transport,
) -> Result<(), ProxierError> {
    let delete = |family| -> Result<(), TransportError> {
        let table = config.table(family);
        if transport.read(&table, Elements::Omit)?.is_some() {
            let mut transaction = Transaction::new();
            transaction.delete_table(&table);
            transport.commit(&transaction)?;
        }
        Ok(())
    };
    Family::ALL
        .into_iter()
        .try_for_each(delete)
        .map_err(|error| ProxierError::backend(Mode::NFTABLES, "cannot delete the tables", error))
}
