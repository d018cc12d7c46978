//! The removal of all that nftables mode has programmed.

use switchyard_core::proxier::{Mode, ProxierError};
use switchyard_kernel::{
    nftables::{Elements, Family, Table, TableDump, Transaction, Transport, TransportError},
    sysctl::routes_localnet,
};

use crate::{
    NftConfig,
    layout::{
        names::{KUBE_PROXY, LOOPBACK},
        table,
    },
};

/// Deletes the tables of both families. Unless another proxy cares for them, what
/// [`table::guard_loopback`] adds stays while the kernel routes loopback addresses, in a table of
/// its own: to other programs, chains in the table of nftables mode mean that this mode serves.
pub(crate) fn delete_tables(
    config: &NftConfig,
    transport: &mut dyn Transport,
) -> Result<(), ProxierError> {
    let delete = |family| -> Result<(), TransportError> {
        let table = config.table(family);
        let dump = transport.read(&table, Elements::Omit)?;
        let mut transaction = Transaction::new();
        if dump.is_some() {
            transaction.delete_table(&table);
        }
        if family == Family::Ip && !config.is_beside {
            let guard = Table::new(family, LOOPBACK);
            let there = transport.read(&guard, Elements::Omit)?;
            let in_mode = match Table::new(family, KUBE_PROXY) {
                of_mode if of_mode == table => None,
                of_mode => transport.read(&of_mode, Elements::Omit).unwrap_or_default(),
            };
            let guards = |dump: &&TableDump| table::guards_loopback(dump);
            let is_guarded = in_mode.iter().chain(&there).filter(guards).any(|dump| !dump.dormant);
            let is_needed =
                routes_localnet() && dump.iter().chain(&there).any(table::guards_loopback);
            if there.is_some() && !(is_needed && is_guarded) {
                transaction.delete_table(&guard);
            }
            if is_needed && !is_guarded {
                table::guard_loopback(&guard, &mut transaction);
            }
        }
        if transaction.is_empty() {
            return Ok(());
        }
        transport.commit(&transaction).map(drop)
    };
    // An error in one family keeps nothing of the other.
    let [v4, v6] = Family::ALL.map(delete);
    v4.and(v6)
        .map_err(|error| ProxierError::backend(Mode::NFTABLES, "cannot delete the tables", error))
}
