//! The open backend: makes the kernel hold a resolved state.
//!
//! The order of a sync keeps every moment safe: rules, then virtual servers with their real
//! servers, then addresses; and for what goes, addresses, then virtual servers, then rules. For
//! Service ports that are not delivered yet, the rules translate by themselves until all is there
//! and packets come to the addresses, so that those of another mode are replaced without a gap, and
//! are synced once more then. Without its rules, a Service port gets no virtual server and no
//! address, and keeps those that it has.

mod addresses;
mod checkup;
pub(crate) mod commands;
mod degraded;
mod departure;
pub(crate) mod draining;
pub(crate) mod drift;
pub(crate) mod full;
pub(crate) mod incremental;
pub(crate) mod kernel;
mod leaving;
mod monitor;
pub(crate) mod refused;
mod removal;
mod rescheduling;
pub(crate) mod schedulers;
pub(crate) mod servers;
mod settings;
#[cfg(test)]
mod tests;
mod tried;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::RandomState,
    mem,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::{PerFamily, ServiceName},
    proxier::{Drift, Mode, Monitor, Profile, Proxier, ProxierError, SyncReport},
    state::{NodeState, ResolvedServicePort, State},
    transition::Transition,
};
use switchyard_kernel::{
    ipvs::{Refusal, Selector},
    netlink::Error,
    route::{DeviceError, SharedAddresses},
};

use self::{
    addresses::{Addresses, Unrouted},
    checkup::Checkup,
    commands::{Commands, Step},
    degraded::Degraded,
    draining::Draining,
    incremental::Difference,
    kernel::Kernel,
    monitor::DeviceMonitor,
    refused::Refused,
    removal::Removal,
    schedulers::Schedulers,
    tried::Tried,
};
use crate::{
    config::IpvsConfig,
    kernel_settings::KernelSettingError,
    layout::{Context, servers as layout},
    rules::Rules,
    scheduler::{self, Scheduler},
};

/// The time after which it is tried again to remove what could not be removed.
const RETRY: Duration = Duration::from_secs(30);

/// The most problems of one kind that are logged at once.
const MOST_WARNINGS: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    /// A parameter of the kernel.
    #[error(transparent)]
    Setting(#[from] KernelSettingError),
    /// The device with the addresses.
    #[error("the addresses of Services")]
    Device(#[from] DeviceError),
    /// IPVS cannot be reached, or refused to list.
    #[error("cannot {0}")]
    Ipvs(&'static str, #[source] Error),
    /// IPVS refused commands; all others were done.
    #[error("cannot {step}: {refusal}{}", others(*.count))]
    Refused { step: Step, refusal: Refusal, count: usize },
    /// The kernel has no scheduler of this name.
    #[error("the kernel has no scheduler {0} (the module ip_vs_{0} is missing)")]
    NoScheduler(String),
    /// The kernel has made no route for addresses of the device.
    #[error("the kernel does not take packets to {first} for the node's yet{}", more(*.count))]
    Unrouted { first: IpAddr, count: usize },
}

fn others(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        count => format!(", and {} other commands were refused", count - 1),
    }
}

fn more(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        count => format!(", nor those to {} other addresses", count - 1),
    }
}

/// The backend, in the network namespace of the thread that opened it.
pub(crate) struct IpvsProxier {
    config: IpvsConfig,
    families: PerFamily<bool>,
    basis: Basis,
    kernel: Box<dyn Kernel>,
    rules: Rules,
    /// The families of which IPVS delivers everything.
    delivered: PerFamily<bool>,
    removal: Removal,
    /// The contents of the kernel, beyond what core remembers; empty until a sync has compared
    /// everything.
    held: Held,
    /// The addresses of `kube-ipvs0`.
    bound: SharedAddresses,
    unrouted: Unrouted,
    draining: Draining,
    schedulers: Schedulers,
    /// The hash that decides the order in which real servers are added.
    order: RandomState,
    /// Whether the kernel is known to hold what was synced last.
    is_sure: bool,
    /// The families that the last sync programmed.
    programmed: PerFamily<bool>,
    /// Whether the kernel's parameters were once what they should be.
    is_prepared: bool,
    /// Whether addresses of IPv6 from before this proxy are deprecated.
    is_deprecated: bool,
    /// The parameters and timeouts that cannot be set, as they were warned about.
    unset: BTreeSet<String>,
    /// Objects that could not be removed, as it was warned about.
    left: BTreeSet<String>,
    degraded: Degraded,
    checkup: Checkup,
    /// The time of the next comparison because of `left`, and the last wait for one that was to
    /// follow soon.
    retry: Option<Instant>,
    soon: Option<Duration>,
    /// The work done in a sync of which a part was refused.
    unreported: SyncReport,
}

/// The inputs of the layout besides a state.
#[derive(Debug)]
struct Basis {
    scheduler: Scheduler,
    tried: Tried,
    /// [`Context::claimed`]
    claimed: BTreeSet<Selector>,
    /// [`IpvsConfig::never_bound`], as far as it is known.
    never_bound: BTreeSet<IpAddr>,
}

impl Basis {
    fn context<'a>(&'a self, node: &'a NodeState) -> Context<'a> {
        let Self { scheduler, tried, claimed, never_bound } = self;
        let missing = tried.missing();
        Context { node, scheduler: *scheduler, missing, claimed, never_bound }
    }

    /// Whether a transition changes which Service ports have an address of their own at which node
    /// ports are served, too.
    fn is_contested(&self, change: &Transition<'_>) -> bool {
        let node = &change.after().node;
        let claimed = |port: Option<&Arc<ResolvedServicePort>>| {
            let mut claimed = BTreeSet::new();
            if let Some(port) = port {
                layout::claimed(port, node, &self.never_bound, |at| _ = claimed.insert(at));
            }
            claimed
        };
        change.ports().any(|port| claimed(port.before) != claimed(port.after))
    }
}

/// The contents of the kernel, beyond what core remembers.
#[derive(Debug, Default)]
struct Held {
    /// The addresses that are not bound although Services have them, when they were last read:
    /// those of other devices, and those that the configuration names.
    elsewhere: Arc<BTreeSet<IpAddr>>,
    /// The virtual servers and the addresses about which the kernel refused something.
    refused: (BTreeSet<Selector>, BTreeSet<IpAddr>),
    /// The real servers that the kernel refused, by virtual server.
    refused_reals: BTreeMap<Selector, BTreeSet<SocketAddr>>,
}

/// The work that an attempt to sync has done.
enum Done {
    All,
    /// The changes; but the kernel does not hold what was synced before.
    Differs,
}

/// The backend with the default scheduler.
pub(crate) const PROFILE: Profile =
    Profile { conflicts_with: &[Mode::NFTABLES, Mode::IPTABLES], ..Profile::new(Mode::IPVS) };

impl IpvsProxier {
    pub(crate) fn new(
        config: IpvsConfig,
        families: PerFamily<bool>,
        scheduler: Scheduler,
        kernel: Box<dyn Kernel>,
        rules: Rules,
    ) -> Self {
        Self {
            families,
            basis: Basis {
                scheduler,
                tried: Tried::default(),
                claimed: BTreeSet::new(),
                never_bound: BTreeSet::new(),
            },
            kernel,
            rules,
            delivered: PerFamily::default(),
            removal: Removal::default(),
            held: Held::default(),
            bound: SharedAddresses::default(),
            unrouted: Unrouted::default(),
            draining: Draining::new(config.drain_limit),
            schedulers: Schedulers::default(),
            order: RandomState::new(),
            is_sure: false,
            programmed: PerFamily::default(),
            is_prepared: false,
            is_deprecated: false,
            unset: BTreeSet::new(),
            left: BTreeSet::new(),
            degraded: Degraded::default(),
            checkup: Checkup::default(),
            retry: None,
            soon: None,
            unreported: SyncReport::default(),
            config,
        }
    }

    /// Has the first report warn of a problem of the node.
    pub(crate) fn with_warning(mut self, warning: Option<String>) -> Self {
        self.unreported.warnings.extend(warning);
        self
    }

    async fn sync_changes(
        &mut self,
        change: &Transition<'_>,
        report: &mut SyncReport,
    ) -> Result<(), ProxierError> {
        let families =
            PerFamily::from_fn(|family| *self.families.get(family) && change.programs(family));
        // A failure leaves something half done, which only a comparison finds; and other addresses
        // ask for other contents, which the kernel is not expected to hold yet.
        let is_news = self.learns_never_bound();
        let was_sure = mem::take(&mut self.is_sure) && !is_news;
        let is_known = was_sure
            && self.programmed == families
            && !change.is_resync()
            && !change.node_changed()
            && self.retry.is_none_or(|due| Instant::now() < due)
            && !self.basis.is_contested(change)
            && !self.asks_for_untried(change)
            && !self.have_addresses_moved(change).map_err(failed)?;
        match self.sync_once(change, families, (is_known, was_sure), report).await? {
            Done::All => Ok(()),
            Done::Differs => {
                self.sync_once(change, families, (false, was_sure), report).await.map(drop)
            }
        }
    }

    /// Makes the kernel hold a state: by a difference if it is known to hold what was synced last,
    /// which `was_sure` is before.
    async fn sync_once(
        &mut self,
        change: &Transition<'_>,
        families: PerFamily<bool>,
        (is_known, was_sure): (bool, bool),
        report: &mut SyncReport,
    ) -> Result<Done, ProxierError> {
        let mut seen = self.addresses(is_known).map_err(failed)?;
        let difference = self.take_away(change, &families, is_known, &mut seen, report);
        self.find_leaving(change.after(), &families);
        let delivery = seen.delivery(self.delivered, &self.basis.never_bound);
        let rules = self.rules.sync(change, !is_known, delivery, report).await;
        // Service ports that are refused are left out at once.
        if let Err(error) = rules.as_ref()
            && error.refused_parts().is_some_and(|parts| !parts.ports.is_empty())
        {
            return rules.map(|()| Done::All);
        }
        let difference = difference.filter(|_| rules.is_ok());
        let read = (!is_known).then_some(&seen);
        let mut refused =
            self.program(change, &families, difference, was_sure, read, report).map_err(failed)?;
        if is_known
            && !refused.is_compared
            && self.check_up(change, &families, report, &mut refused).map_err(failed)?
        {
            return Ok(Done::Differs);
        }
        self.look_at_draining(&families, report, &mut refused).map_err(failed)?;
        self.await_routes(&mut refused).map_err(failed)?;
        let is_compared = refused.is_compared;
        let is_settled = rules.is_ok()
            && !refused.is_error()
            && self.settle(change, &families, &seen, report, &mut refused).await;
        let retry = self.note_leftovers(&mut refused, report);
        let refused = refused.into_error(&families);
        if let Some((_, parts)) = &refused {
            // What the rules translate for a family that comes back is served until then.
            let is_whole = |family| parts.families.get(family).is_some();
            self.delivered = PerFamily::from_fn(|f| *self.delivered.get(f) && !is_whole(f));
        }
        let refused = refused.map(|(error, parts)| failed(error).of_parts(parts));
        rules.and(refused.map_or(Ok(()), Err))?;
        if is_settled
            && let Done::Differs = self.change_schedulers(change, &families, &seen, report).await?
        {
            return Ok(Done::Differs);
        }
        // Rules of before would go on to refuse what they do not know. Neither a family that is
        // left out nor what could not be removed keeps them.
        let removal = self.remove_other_rules(report);
        // What is left is known.
        self.is_sure = true;
        self.programmed = families;
        let now = Instant::now();
        let draining = self.draining.wait(&families, now);
        let schedulers = self.schedulers.wait(&families, now).filter(|_| is_settled);
        let checkup = (!self.checkup.is_over()).then_some(Duration::ZERO);
        let waits = [report.requeue_after, draining, schedulers, retry, removal, checkup];
        report.requeue_after = waits.into_iter().flatten().min();
        let context = self.basis.context(&change.after().node);
        report.degraded.extend(self.degraded.update(change, &context, is_compared));
        Ok(Done::All)
    }

    /// Programs virtual servers and addresses, by a difference if that is all that changes, and
    /// returns what was refused.
    fn program(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        difference: Option<Difference>,
        was_sure: bool,
        seen: Option<&Addresses>,
        report: &mut SyncReport,
    ) -> Result<Refused, SyncError> {
        if let Some(difference) = difference {
            match self.sync_difference(difference, report) {
                Ok(refused) => return Ok(refused),
                // Another program has changed what the changes rely on; or the kernel has a
                // problem, which the comparison will show.
                Err(error) => {
                    tracing::warn!(err = %ErrorChain(&error), "Change rejected; resyncing");
                }
            }
        }
        let read;
        let seen = match seen {
            Some(seen) => seen,
            None => {
                read = self.addresses(false)?;
                &read
            }
        };
        self.sync_full(change, families, was_sure, seen, report)
    }

    /// Sends commands to IPVS, all of which are tried, and returns those that the kernel refused.
    fn commit(
        &mut self,
        report: &mut SyncReport,
        commands: &Commands,
    ) -> Result<Vec<(Step, Refusal)>, SyncError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let start = Instant::now();
        let committed = self.kernel.commit(commands);
        report.commit += start.elapsed();
        let (refusals, bytes) = committed.map_err(failed_to("send commands to IPVS"))?;
        let (added, removed) = commands.counts();
        report.added += added;
        report.removed += removed;
        report.messages += commands.steps().len();
        report.bytes += bytes;
        Ok(commands.refused(refusals))
    }

    /// Sends commands to IPVS. One that is refused is an error.
    fn commit_all(
        &mut self,
        report: &mut SyncReport,
        commands: &Commands,
    ) -> Result<(), SyncError> {
        let refused = self.commit(report, commands)?;
        let count = refused.len();
        match refused.into_iter().next() {
            Some((step, refusal)) => Err(SyncError::Refused { step, refusal, count }),
            None => Ok(()),
        }
    }

    /// Whether a changed Service port asks for a scheduler that was not tried yet.
    fn asks_for_untried(&self, change: &Transition<'_>) -> bool {
        let mut after = change.ports().filter_map(|port| port.after);
        after.any(|port| !self.basis.tried.knows(Scheduler::choose(self.basis.scheduler, port)))
    }
}

/// Warns of problems that are not known, which are known then.
fn warn_of_new(known: &mut BTreeSet<String>, problems: BTreeSet<String>, message: &str) {
    let new: Vec<_> = problems.difference(known).collect();
    for problem in new.iter().take(MOST_WARNINGS) {
        tracing::warn!(err = problem, "{message}");
    }
    if let Some(others @ 1..) = new.len().checked_sub(MOST_WARNINGS) {
        tracing::warn!(others, "{message}");
    }
    *known = problems;
}

fn failed(error: SyncError) -> ProxierError {
    ProxierError::backend(Mode::IPVS, "cannot program Services", error)
}

fn failed_to(action: &'static str) -> impl Fn(Error) -> SyncError {
    move |error| SyncError::Ipvs(action, error)
}

#[async_trait]
impl Proxier for IpvsProxier {
    fn profile(&self) -> Profile {
        Profile { capabilities: scheduler::capabilities(self.basis.scheduler), ..PROFILE }
    }

    /// Sets the kernel's parameters for IPVS.
    fn prepare(&mut self, _node: &NodeConfig) -> Result<(), ProxierError> {
        self.set_parameters().map(drop).map_err(|error| {
            ProxierError::backend(Mode::IPVS, "cannot prepare the kernel for IPVS", error)
        })
    }

    /// Blocks for as long as the kernel and the rules beneath take. IPVS has no transactions: with
    /// an error of [parts](ProxierError::of_parts) about virtual servers and addresses, everything
    /// else has been done.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let mut report = mem::take(&mut self.unreported);
        match self.sync_changes(change, &mut report).await {
            Ok(()) => Ok(report),
            Err(error) => {
                // The next sync says what is left, and counts rules.
                (report.requeue_after, report.cleanup_failed) = (None, false);
                report.rules.clear();
                self.unreported = report;
                Err(error)
            }
        }
    }

    fn compare(
        &mut self,
        state: &State,
        service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        self.find_drift(state, service)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.is_sure = false;
        self.delivered = PerFamily::default();
        self.bound.lock().clear();
        self.unrouted = Unrouted::default();
        self.draining = Draining::new(self.config.drain_limit);
        let rules = self.rules.clean_up().await;
        rules.and(self.kernel.remove_all(&self.config.excluded))
    }

    /// A monitor of rules and addresses: IPVS does not announce changes.
    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        Some(Box::new(DeviceMonitor::new(self.rules.monitor(), self.bound.clone())))
    }
}
