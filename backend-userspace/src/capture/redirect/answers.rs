//! The answers of endpoints to clients that the proxy's connections come from.
//!
//! Such a connection has the address of a client (`IP_TRANSPARENT`), and the endpoint, which is a pod
//! of this node, sends its answers there. Before they are routed, a rule of nftables marks what is
//! for such a socket of this node, and a rule of the routing policy has what is marked delivered
//! here (`Documentation/networking/tproxy.rst` of the kernel). Both are the same for all Services.

use std::{error::Error, fs};

use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, PerFamily},
    proxier::ProxierError,
};
use switchyard_kernel::{
    nftables::{
        BaseChain, ChainKind, Elements, Family, Hook, Rule, Statement, Table, Transaction,
        Transport, Verdict,
        netlink::{Listener, NetlinkTransport},
    },
    route::{DeliveryAnnouncements, LocalDelivery},
};

use super::table;
use crate::capture::failed;

/// The table, in each family.
const TABLE: &str = "switchyard-answers";

/// The chain, before the destination is translated back (-100).
const CHAIN: (&str, Hook, i32) = ("prerouting", Hook::Prerouting, -150);

/// The part of the mark that is compared: Kubernetes and its network plugins use single bits of
/// it, and more bits of the other half.
const MASK: u32 = 0xffff;

/// The number of the routing table, and the place of the rule: before those of network plugins, as
/// far as these follow the kernel's own (0) at once.
const ROUTING: (u8, u32) = (183, 83);

/// The rules of both families.
pub(super) struct Answers {
    delivery: LocalDelivery,
    /// `None` until it can be opened.
    transport: Option<NetlinkTransport>,
    /// The results that were logged last.
    known: PerFamily<Option<bool>>,
}

impl Answers {
    pub(super) fn new(mark: u32) -> Self {
        let transport = NetlinkTransport::open().ok();
        Self { delivery: delivery(mark), transport, known: PerFamily::default() }
    }

    /// Makes listeners to what is announced of the table, where nftables can be reached, and of the
    /// rule of the routing policy and its route. The kernel does not wake the listener for what the
    /// rules beneath commit from these ports: a large commit would take its whole buffer, and look
    /// like lost changes of another program.
    pub(super) fn announcements(
        &self,
        beneath: &[u32],
    ) -> (Option<Listener>, DeliveryAnnouncements) {
        let own = self.transport.iter().filter_map(Transport::port);
        let own: Vec<u32> = own.chain(beneath.iter().copied()).collect();
        let tables = IpFamily::ALL.map(|family| Table::new(Family::from(family), TABLE));
        let table = Listener::open(&own, tables.into()).ok();
        (table, DeliveryAnnouncements::new(&self.delivery))
    }

    /// Adds what is missing. Returns the families in which answers reach the proxy; others are
    /// logged once, with the reason.
    pub(super) fn ensure(&mut self, families: PerFamily<bool>) -> PerFamily<bool> {
        PerFamily::from_fn(|family| {
            if !families.get(family) {
                return false;
            }
            let result = ensure(&mut self.transport, &self.delivery, family);
            let known = self.known.get_mut(family).replace(result.is_ok());
            match &result {
                Err(error) if known != Some(false) => {
                    let err = ErrorChain(&**error);
                    tracing::warn!(%family, %err, "Local endpoints will see the address of this node instead of clients'");
                }
                Ok(()) if known == Some(false) => {
                    tracing::info!(%family, "Local endpoints see the addresses of clients again");
                }
                _ => {}
            }
            result.is_ok()
        })
    }
}

fn delivery(mark: u32) -> LocalDelivery {
    let (table, priority) = ROUTING;
    LocalDelivery { mark, mask: MASK, table, priority }
}

fn ensure(
    transport: &mut Option<NetlinkTransport>,
    delivery: &LocalDelivery,
    family: IpFamily,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    // One that is set for a pod's device alone counts for this pod, and is not looked for.
    let setting = "/proc/sys/net/ipv4/conf/all/src_valid_mark";
    if family == IpFamily::V4 && fs::read_to_string(setting).is_ok_and(|value| value.trim() != "0")
    {
        // The way back to an endpoint would be that of its answers, which leads nowhere.
        return Err("net.ipv4.conf.all.src_valid_mark is set".into());
    }
    let transport = match transport {
        Some(transport) => transport,
        None => transport.insert(NetlinkTransport::open()?),
    };
    let table = Table::new(Family::from(family), TABLE);
    // What other programs have marked for their own transparent sockets is theirs.
    let rules = [
        Rule::new([Statement::MarkSet(MASK), Statement::Verdict(Verdict::Accept)]),
        Rule::new([Statement::SocketTransparent, Statement::MarkOr(delivery.mark)]),
    ];
    let (name, hook, priority) = CHAIN;
    let held = transport.read(&table, Elements::Omit)?;
    transport.release();
    let chain = held.as_ref().and_then(|held| held.chains.get(name).filter(|_| !held.dormant));
    let is_held = chain.is_some_and(|chain| {
        let fingerprints = rules.iter().map(|rule| Some(rule.fingerprint(table.family)));
        chain.rules.iter().map(|rule| rule.fingerprint).eq(fingerprints)
    });
    if !is_held {
        let mut transaction = Transaction::new();
        if held.is_some() {
            transaction.delete_table(&table);
        }
        transaction.add_table_with_comment(&table, "answers to clients of the userspace proxy");
        let kind = ChainKind::Filter;
        transaction.add_base_chain(&table, BaseChain { name: name.into(), kind, hook, priority });
        for rule in rules {
            transaction.add_rule(&table, name, rule);
        }
        transport.commit(&transaction)?;
    }
    delivery.ensure(family)?;
    Ok(())
}

/// Removes the rules of both families.
pub(super) fn clean_up() -> Result<(), ProxierError> {
    let failed = failed("cannot remove the rules for answers to clients");
    let all = IpFamily::ALL.map(|family| remove(family).map_err(&failed));
    all.into_iter().collect()
}

fn remove(family: IpFamily) -> Result<(), Box<dyn Error + Send + Sync>> {
    // By any mark.
    let routing = delivery(0).remove(family);
    table::remove(TABLE, family)?;
    Ok(routing?)
}
