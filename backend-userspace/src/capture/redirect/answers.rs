//! The answers of endpoints to clients that the proxy's connections come from.
//!
//! Such a connection has the address of a client (`IP_TRANSPARENT`), and the endpoint, which is a pod
//! of this node, sends its answers there. Before they are routed, a rule of nftables marks what is
//! for such a socket of this node, and a rule of the routing policy has what is marked delivered
//! here (`Documentation/networking/tproxy.rst` of the kernel). Both are the same for all Services.

use std::{
    error::Error,
    fs,
    future::pending,
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, PerFamily},
    proxier::{ExternalChange, Monitor, ProxierError},
};
use switchyard_kernel::{
    nftables::{
        BaseChain, ChainKind, Elements, Family, Hook, Rule, Statement, Table, Transaction,
        Transport, TransportError, Verdict,
        netlink::{Listener, NetlinkTransport},
    },
    route::{DeliveryAnnouncements, LocalDelivery},
};

use super::table as tables;
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
    known: Arc<Mutex<PerFamily<Option<bool>>>>,
    /// Whether rules of an earlier start may be there.
    has_leftovers: bool,
}

/// The monitor of the rules of both families.
pub(super) struct AnswersMonitor {
    /// `None` where nftables cannot be reached.
    table: Option<(Listener, NetlinkTransport)>,
    delivery: DeliveryAnnouncements,
    mark: u32,
    known: Arc<Mutex<PerFamily<Option<bool>>>>,
}

#[async_trait]
impl Monitor for AnswersMonitor {
    /// Announcements that are lost, as with a large commit of the rules beneath, are no change if
    /// the rules are there.
    async fn externally_changed(&mut self) -> Result<ExternalChange, ProxierError> {
        let Self { table: announced, delivery, mark, known } = self;
        let altered = async {
            let Some((listener, transport)) = announced else { return pending().await };
            loop {
                listener.changed().await?;
                let known = *known.lock().unwrap_or_else(PoisonError::into_inner);
                let mut held = IpFamily::ALL.into_iter().filter(|f| *known.get(*f) == Some(true));
                let mut has_rules = |family| has_rules(transport, &table(family), *mark);
                if !held.all(|family| has_rules(family).is_ok_and(|held| held == Some(true))) {
                    return Ok(());
                }
            }
        };
        let changed = tokio::select! {
            changed = altered => changed,
            is_deleted = delivery.is_deleted() => is_deleted,
        };
        changed.map_err(failed("cannot watch the rules for answers to clients"))?;
        Ok(ExternalChange::Suspected)
    }
}

impl Answers {
    pub(super) fn new(mark: u32) -> Self {
        let transport = NetlinkTransport::open().ok();
        Self { delivery: delivery(mark), transport, known: Arc::default(), has_leftovers: true }
    }

    /// Makes a monitor, which watches the rule of the routing policy and its route, and the table
    /// where nftables can be reached.
    pub(super) fn monitor(&self) -> AnswersMonitor {
        let own: Vec<u32> = self.transport.iter().filter_map(Transport::port).collect();
        let listener = Listener::open(&own, IpFamily::ALL.map(table).into()).ok();
        AnswersMonitor {
            table: listener.zip(NetlinkTransport::open().ok()),
            delivery: DeliveryAnnouncements::new(&self.delivery),
            mark: self.delivery.mark,
            known: Arc::clone(&self.known),
        }
    }

    /// Adds what is missing in these families and, the first time, removes what an earlier start
    /// has left in others. Returns those in which answers reach the proxy; others are logged once,
    /// with the reason.
    pub(super) fn ensure(&mut self, families: PerFamily<bool>) -> PerFamily<bool> {
        let has_leftovers = mem::take(&mut self.has_leftovers);
        PerFamily::from_fn(|family| {
            if !families.get(family) {
                if has_leftovers && let Err(error) = remove(family) {
                    let err = ErrorChain(&*error);
                    tracing::debug!(%family, %err, "Failed to remove unused rules for answers to clients");
                }
                *self.known.lock().unwrap_or_else(PoisonError::into_inner).get_mut(family) = None;
                return false;
            }
            let result = ensure(&mut self.transport, &self.delivery, family);
            let known = self
                .known
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_mut(family)
                .replace(result.is_ok());
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

fn table(family: IpFamily) -> Table {
    Table::new(Family::from(family), TABLE)
}

/// The rules. What other programs have marked for their own transparent sockets is theirs. Such a
/// socket that listens at all addresses is found by its port for packets to any host, which answers
/// to the proxy's connections are not; kernels before 5.11 cannot match such a socket.
fn rules(mark: u32) -> [Rule; 3] {
    let accept = Statement::Verdict(Verdict::Accept);
    [
        Rule::new([Statement::CtReply, Statement::SocketWildcard, accept.clone()]),
        Rule::new([Statement::MarkSet(MASK), accept]),
        Rule::new([Statement::CtReply, Statement::SocketTransparent, Statement::MarkOr(mark)]),
    ]
}

/// Whether a table has the rules, or those of them that older kernels have; `None` if there is no
/// table.
fn has_rules(
    transport: &mut NetlinkTransport,
    table: &Table,
    mark: u32,
) -> Result<Option<bool>, TransportError> {
    let held = transport.read(table, Elements::Omit)?;
    transport.release();
    Ok(held.map(|held| {
        let chain = held.chains.get(CHAIN.0).filter(|_| !held.dormant);
        chain.is_some_and(|chain| {
            let rules = rules(mark).map(|rule| Some(rule.fingerprint(table.family)));
            let held: Vec<_> = chain.rules.iter().map(|rule| rule.fingerprint).collect();
            [&rules[..], &rules[1..]].contains(&&held[..])
        })
    }))
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
    let (table, rules) = (table(family), rules(delivery.mark));
    let (name, hook, priority) = CHAIN;
    let held = has_rules(transport, &table, delivery.mark)?;
    if held != Some(true) {
        let mut commit = |rules: &[Rule]| {
            let mut transaction = Transaction::new();
            if held.is_some() {
                transaction.delete_table(&table);
            }
            transaction.add_table_with_comment(&table, "answers to clients of the userspace proxy");
            let kind = ChainKind::Filter;
            let chain = BaseChain { name: name.into(), kind, hook, priority };
            transaction.add_base_chain(&table, chain);
            for rule in rules {
                transaction.add_rule(&table, name, rule.clone());
            }
            transport.commit(&transaction)
        };
        commit(&rules).or_else(|_| commit(&rules[1..]))?;
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
    tables::remove(TABLE, family)?;
    Ok(routing?)
}

#[cfg(test)]
mod kernel_tests {
    use std::time::Duration;

    use test_netns::{in_namespace, run, run_with};
    use tokio::{runtime::Builder, time::timeout};

    use super::*;

    #[test]
    fn lost_announcements_are_no_change() {
        in_namespace(|| {
            run("ip link set lo up");
            let mut answers = Answers::new(0x1800);
            let both = PerFamily { v4: true, v6: true };
            assert_eq!(answers.ensure(both), both);
            let mut monitor = answers.monitor();
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let mut is_noticed = || {
                let changed = async {
                    timeout(Duration::from_millis(200), monitor.externally_changed()).await
                };
                runtime.block_on(changed).is_ok()
            };
            let rules = "-A many -s 192.0.2.1 -j RETURN\n".repeat(80_000);
            let many = format!("*filter\n:many - [0:0]\n{rules}COMMIT\n");
            run_with("iptables-nft-restore", &many);
            assert!(!is_noticed());
            run("nft delete table ip switchyard-answers");
            assert!(is_noticed());
        });
    }
}
