//! The removal of a table of this mode.

use std::error::Error;

use switchyard_core::model::IpFamily;
use switchyard_kernel::nftables::{
    Elements, Family, Table, Transaction, Transport, netlink::NetlinkTransport,
};

/// Removes the table of this name and family, if there is one.
pub(super) fn remove(name: &str, family: IpFamily) -> Result<(), Box<dyn Error + Send + Sync>> {
    let table = Table::new(Family::from(family), name);
    let mut transport = NetlinkTransport::open()?;
    if transport.read(&table, Elements::Omit)?.is_some() {
        let mut transaction = Transaction::new();
        transaction.delete_table(&table);
        transport.commit(&transaction)?;
    }
    Ok(())
}
