//! The removal of all that nftables mode has programmed.

use switchyard_core::proxier::{Mode, ProxierError};
use switchyard_netlink::sysctl::routes_localnet;
use switchyard_nft_ruleset::{Elements, Family, Transaction, Transport, TransportError};

use crate::{NftConfig, layout::table};

/// Deletes the tables of both families, except for what [`table::guard_loopback`] adds, which stays
/// while the kernel routes loopback addresses, unless another proxy cares for them.
pub(crate) fn delete_tables(
    config: &NftConfig,
    transport: &mut dyn Transport,
) -> Result<(), ProxierError> {
    let delete = |family| -> Result<(), TransportError> {
        let table = config.table(family);
        if let Some(dump) = transport.read(&table, Elements::Omit)? {
            let mut transaction = Transaction::new();
            transaction.delete_table(&table);
            let guards = family == Family::Ip && !config.is_beside;
            if guards && routes_localnet() && table::guards_loopback(&dump) {
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
