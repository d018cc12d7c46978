//! The removal of all that nftables mode has programmed.

use switchyard_core::proxier::{Mode, ProxierError};
use switchyard_kernel::{
    nftables::{Elements, Family, Table, Transaction, Transport, TransportError},
    sysctl::routes_localnet,
};

use crate::{
    NftConfig,
    layout::{names::KUBE_PROXY, table},
};

/// Deletes the tables of both families. Unless another proxy cares for them, what
/// [`table::guard_loopback`] adds stays while the kernel routes loopback addresses, in the table of
/// nftables mode, whatever these tables are called.
pub(crate) fn delete_tables(
    config: &NftConfig,
    transport: &mut dyn Transport,
) -> Result<(), ProxierError> {
    let delete = |family| -> Result<(), TransportError> {
        let table = config.table(family);
        let Some(dump) = transport.read(&table, Elements::Omit)? else { return Ok(()) };
        let mut transaction = Transaction::new();
        transaction.delete_table(&table);
        let guards = family == Family::Ip && !config.is_beside;
        if guards && routes_localnet() && table::guards_loopback(&dump) {
            let of_mode = Table::new(family, KUBE_PROXY);
            let there = match of_mode == table {
                true => None,
                // To guard twice does no harm.
                false => transport.read(&of_mode, Elements::Omit).unwrap_or_default(),
            };
            // A dormant one guards nothing, and the rest of the table is not to be woken.
            let is_dormant = there.as_ref().is_some_and(|dump| dump.dormant);
            if is_dormant {
                transaction.delete_table(&of_mode);
            }
            if is_dormant || !there.is_some_and(|dump| table::guards_loopback(&dump)) {
                table::guard_loopback(&of_mode, &mut transaction);
            }
        }
        transport.commit(&transaction).map(drop)
    };
    // An error in one family keeps nothing of the other.
    let [v4, v6] = Family::ALL.map(delete);
    v4.and(v6)
        .map_err(|error| ProxierError::backend(Mode::NFTABLES, "cannot delete the tables", error))
}
