//! The backend as one value: probed, opened, and cleaned up after.

use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    proxier::{Backend, Mode, Proxier, ProxierError, Support, Unusable},
};
use switchyard_interfaces::{SysctlError, can_route_localnet, route_localnet, routes_localnet};

use crate::{
    NftConfig, NftProxier,
    layout::fixed,
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

    fn serves_localhost(&self, node: &NodeConfig) -> bool {
        node.serves_localhost() && self.config.families.v4
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
                Err(Unusable::Backend(ErrorChain(&error).to_string()))
            }
            Err(error) => Err(Unusable::Node(ErrorChain(&error).to_string())),
        }
    }

    fn open(&self) -> Result<Box<dyn Proxier>, ProxierError> {
        Ok(Box::new(NftProxier::open(self.config.clone())?))
    }

    /// Deletes both tables, by netlink whichever transport is configured: no program is needed. As long as
    /// the kernel routes loopback addresses, the rules that keep other hosts from them stay.
    fn clean_up(&self) -> Result<(), ProxierError> {
        delete_tables(&self.config, open_netlink()?.as_mut())
    }

    fn is_prepared(&self, node: &NodeConfig) -> Result<(), ProxierError> {
        match self.serves_localhost(node) {
            true => can_route_localnet().map_err(not_routed),
            false => Ok(()),
        }
    }

    /// Keeps other hosts from loopback addresses, and then has the kernel route these, if node ports are to
    /// be served on them. The rules are replaced by those of the first sync.
    fn prepare(&self, node: &NodeConfig) -> Result<(), ProxierError> {
        if !self.serves_localhost(node) {
            return Ok(());
        }
        let mut transaction = Transaction::new();
        fixed::guard_loopback(&self.config, &mut transaction);
        open_netlink()?.commit(&transaction).map_err(|error| {
            ProxierError::backend(Mode::NFTABLES, "cannot guard loopback addresses", error)
        })?;
        route_localnet().map_err(not_routed)
    }

    fn conflicts_with(&self) -> &'static [Mode] {
        &[Mode::IPTABLES, Mode::IPVS]
    }
}

fn open_netlink() -> Result<Box<dyn Transport>, ProxierError> {
    TransportKind::Netlink.open().map_err(|error| {
        ProxierError::backend(Mode::NFTABLES, "cannot open the netlink transport", error)
    })
}

fn not_routed(error: SysctlError) -> ProxierError {
    ProxierError::backend(Mode::NFTABLES, "cannot have loopback addresses routed", error)
}

/// Deletes the tables of both families, except for what [`fixed::guard_loopback`] adds, which stays while
/// the kernel routes loopback addresses.
pub(crate) fn delete_tables(
    config: &NftConfig,
    transport: &mut dyn Transport,
) -> Result<(), ProxierError> {
    let delete = |family| -> Result<(), TransportError> {
        let table = config.table(family);
        if let Some(dump) = transport.read(&table, Elements::Omit)? {
            let mut transaction = Transaction::new();
            transaction.delete_table(&table);
            if family == Family::Ip && routes_localnet() && fixed::guards_loopback(&dump) {
                fixed::guard_loopback(config, &mut transaction);
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
