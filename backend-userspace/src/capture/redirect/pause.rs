//! The pause between the end of this program and the first sync of the next.
//!
//! The rules lead new connections to sockets that are gone, and the node would refuse them. For the
//! time in which a node starts another program, they are dropped instead: clients try again, with
//! TCP after one second and after three.

use std::{
    error::Error,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, Protocol},
    proxier::ProxierError,
};
use switchyard_kernel::nftables::{
    BaseChain, ChainKind, Element, Family, Hook, Key, Rule, Selector, SetDef, Statement, Table,
    Transaction, Transport, Verdict, netlink::NetlinkTransport,
};

use super::table;
use crate::capture::failed;

/// The table, in each family.
const TABLE: &str = "switchyard-pause";

/// The set with the address of the sockets, and the time after which they refuse.
const SET: (&str, Duration) = ("sockets", Duration::from_secs(30));

/// Whether this program has begun its own pause, which none of its syncs ends.
#[derive(Clone, Default)]
pub(super) struct Pause(Arc<Mutex<bool>>);

impl Pause {
    /// Has new connections and datagrams to the addresses of the sockets wait, one of each family.
    /// A refusal of the kernel is logged.
    pub(super) fn begin(&self, addresses: impl Iterator<Item = IpAddr>) {
        let mut has_begun = self.lock();
        *has_begun = true;
        for address in addresses {
            if let Err(error) = add(IpFamily::of(&address), address) {
                let err = ErrorChain(&*error);
                tracing::warn!(%address, %err, "New connections will be refused until the next start");
            }
        }
    }

    /// Ends the pause of the program before this one, if there is one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn end_earlier(&self) -> Result<(), ProxierError> {
        let has_begun = self.lock();
        if *has_begun { Ok(()) } else { end() }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(family: IpFamily, address: IpAddr) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (name, time) = SET;
    let table = Table::new(Family::from(family), TABLE);
    let set = Arc::new(SetDef::set(name, [table.family.address_field()]).with_timeout(time));
    let chain =
        BaseChain { name: "input".into(), kind: ChainKind::Filter, hook: Hook::Input, priority: 0 };
    let rule = |what| {
        let lookup =
            Statement::Lookup { key: vec![Selector::DestinationAddress], set: name.into() };
        Rule::new([lookup, what, Statement::Verdict(Verdict::Drop)])
    };
    table::remove(TABLE, family)?;
    let mut transaction = Transaction::new();
    transaction.add_table_with_comment(&table, "new connections wait for the userspace proxy");
    transaction.add_set(&table, Arc::clone(&set));
    transaction.add_elements(&table, &set, vec![Element::new(Key::new().address(address))]);
    transaction.add_base_chain(&table, chain);
    // Connections that are there already may end well.
    transaction.add_rule(&table, "input", rule(Statement::CtStateNew));
    transaction.add_rule(&table, "input", rule(Statement::Protocol(Protocol::Udp)));
    NetlinkTransport::open()?.commit(&transaction)?;
    Ok(())
}

/// Ends any pause.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn end() -> Result<(), ProxierError> {
    let failed = failed("cannot remove the rules that have connections wait");
    IpFamily::ALL.map(|family| table::remove(TABLE, family).map_err(&failed)).into_iter().collect()
}
