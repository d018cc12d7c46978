//! The open backend: makes the kernel hold a resolved state.
//!
//! The order of a sync keeps every moment safe: rules, then virtual servers with their real
//! servers, then addresses; and for what goes, addresses before virtual servers. A packet to an
//! address that the node takes for its own always finds its virtual server. For Service ports that
//! are not delivered yet, the rules translate by themselves until all is there, so that those of
//! another mode are replaced without a gap, and are synced once more then. Without its rules, a
//! Service port gets no virtual server and no address, and keeps those that it has.
//!
//! - [`full`]: a sync of everything.
//! - [`refused`]: what the kernel refuses, and whom that concerns.
//! - [`incremental`]: what a transition changes.
//! - [`servers`] and [`commands`]: the changes of virtual servers.
//! - [`draining`]: real servers that are there for the connections that they have.
//! - [`schedulers`]: schedulers that virtual servers have, and are to have.
//! - [`kernel`]: the kernel.
//! - [`monitor`]: notices that other programs change rules or addresses.
//! - [`drift`]: what other programs have changed.

pub(crate) mod commands;
pub(crate) mod draining;
pub(crate) mod drift;
pub(crate) mod full;
pub(crate) mod incremental;
pub(crate) mod kernel;
mod monitor;
pub(crate) mod refused;
pub(crate) mod schedulers;
pub(crate) mod servers;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::{PerFamily, ServicePortId},
    proxier::{DegradedPort, Mode, Monitor, Profile, Proxier, ProxierError, SyncReport},
    state::{ResolvedServicePort, State},
    transition::Transition,
};
use switchyard_netlink::Error;
use switchyard_netlink::ipvs::{Refusal, Selector, Timeouts};
use switchyard_netlink::route::{Bound, DeviceError};

use self::{
    commands::{Action, Commands, Named, Step},
    draining::Draining,
    incremental::Difference,
    kernel::Kernel,
    monitor::DeviceMonitor,
    refused::Refused,
    schedulers::Schedulers,
    servers::ServerChanges,
};
use crate::{
    config::IpvsConfig,
    kernel_settings::KernelSettingError,
    layout::{Context, addresses, servers as layout},
    rules::{Delivery, Rules},
    scheduler::{self, Scheduler},
};

/// The time after which it is tried again to remove what could not be removed.
const RETRY: Duration = Duration::from_secs(30);
/// The same of rules of other kinds, which may take seconds: the system's lock is waited for, and
/// sets that another program's rules use.
const REMOVAL_RETRY: Duration = Duration::from_secs(60);

/// Why a sync failed.
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
}

fn others(count: usize) -> String {
    match count {
        0 | 1 => String::new(),
        count => format!(", and {} other commands were refused", count - 1),
    }
}

/// The backend, in the network namespace of the thread that opened it.
pub(crate) struct IpvsProxier {
    config: IpvsConfig,
    families: PerFamily<bool>,
    scheduler: Scheduler,
    /// The schedulers that were asked for, and whether the kernel has them.
    tried: HashMap<Scheduler, bool>,
    kernel: Box<dyn Kernel>,
    rules: Rules,
    /// The families of which IPVS delivers everything.
    delivered: PerFamily<bool>,
    /// The time when rules are removed that ipvs mode had before, or that it does not use; `None`
    /// if nothing is left of them.
    removal_due: Option<Instant>,
    /// The reason that they could not be removed, as it was logged.
    unremoved: BTreeSet<String>,
    /// The contents of the kernel, beyond what core remembers; empty until a sync has compared
    /// everything.
    held: Held,
    /// The addresses of `kube-ipvs0`.
    bound: Bound,
    draining: Draining,
    schedulers: Schedulers,
    /// Whether the kernel is known to hold what was synced last.
    is_sure: bool,
    /// The families that the last sync programmed.
    programmed: PerFamily<bool>,
    /// Whether the kernel's parameters were once what they should be.
    is_prepared: bool,
    /// Whether addresses of IPv6 from before this proxy are deprecated.
    is_deprecated: bool,
    /// The parameters that cannot be set, as they were warned about.
    unset: BTreeSet<String>,
    /// Objects that could not be removed, as it was warned about.
    left: BTreeSet<String>,
    /// The Service ports that are served otherwise than asked, as they were reported.
    degraded: BTreeMap<ServicePortId, String>,
    /// The work done in a sync of which a part was refused.
    unreported: SyncReport,
}

/// The contents of the kernel, beyond what core remembers.
#[derive(Debug, Default)]
struct Held {
    /// The addresses that are not bound although Services have them, when they were last read:
    /// those of other devices, and those that the configuration names.
    elsewhere: BTreeSet<IpAddr>,
    /// [`Context::claimed`]
    claimed: BTreeSet<Selector>,
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
            scheduler,
            tried: HashMap::new(),
            kernel,
            rules,
            delivered: PerFamily::default(),
            removal_due: Some(Instant::now()),
            unremoved: BTreeSet::new(),
            held: Held::default(),
            bound: Bound::default(),
            draining: Draining::new(config.drain_limit),
            schedulers: Schedulers::default(),
            is_sure: false,
            programmed: PerFamily::default(),
            is_prepared: false,
            is_deprecated: false,
            unset: BTreeSet::new(),
            left: BTreeSet::new(),
            degraded: BTreeMap::new(),
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
        // A failure leaves something half done, which only a comparison finds.
        let was_sure = mem::take(&mut self.is_sure);
        let is_known = was_sure
            && self.programmed == families
            && !change.is_resync()
            && !change.node_changed()
            && !is_contested(change)
            && !self.asks_for_untried(change)
            && !self.have_addresses_moved(change).map_err(failed)?;
        let (bound, elsewhere) = self.addresses(is_known).map_err(failed)?;
        let never_bound = self.config.never_bound.clone();
        let delivery = Delivery {
            families: self.delivered,
            bound: &bound,
            elsewhere: &elsewhere,
            never_bound: &never_bound,
        };
        let rules = self.rules.sync(change, !is_known, delivery, report).await;
        // Service ports that are refused are left out at once.
        if let Err(error) = rules.as_ref()
            && error.refused_parts().is_some_and(|parts| !parts.ports.is_empty())
        {
            return rules;
        }
        let is_known = is_known && rules.is_ok();
        self.schedulers.begin();
        let mut refused =
            self.program(change, &families, is_known, was_sure, report).map_err(failed)?;
        self.look_at_draining(&families, report, &mut refused).map_err(failed)?;
        let left = mem::take(&mut refused.leftovers);
        report.cleanup_failed |= !left.is_empty();
        let is_complete = left.is_empty() && refused.is_empty();
        warn_of_new(&mut self.left, left, "A part of a sync was refused, which is tried again");
        let refused = refused.into_error(&families);
        if let Some((_, parts)) = &refused {
            // What the rules translate for a family that comes back is served until then.
            let is_whole = |family| parts.families.get(family).is_some();
            self.delivered = PerFamily::from_fn(|f| *self.delivered.get(f) && !is_whole(f));
        }
        let refused = refused.map(|(error, parts)| failed(error).of_parts(parts));
        rules.and(refused.map_or(Ok(()), Err))?;
        let delivered = PerFamily::from_fn(|f| *self.delivered.get(f) || *families.get(f));
        if mem::replace(&mut self.delivered, delivered) != delivered {
            let delivery = Delivery { families: delivered, ..delivery };
            self.rules.deliver(change, delivery, report).await?;
        }
        let retry = report.cleanup_failed.then_some(RETRY);
        // Rules of before would go on to refuse what they do not know. Neither a family that is
        // left out nor what could not be removed keeps them.
        let removal = self.remove_other_rules(report);
        self.is_sure = is_complete;
        self.programmed = families;
        let draining = self.draining.wait(&families, Instant::now());
        let waits = [report.requeue_after, draining, self.schedulers.wait(), retry, removal];
        report.requeue_after = waits.into_iter().flatten().min();
        report.degraded.extend(self.newly_degraded(change, is_known));
        Ok(())
    }

    /// Whether an address that a changed Service port names came to another device of the node, or
    /// left it, which concerns all Service ports with the address.
    fn have_addresses_moved(&mut self, change: &Transition<'_>) -> Result<bool, SyncError> {
        let after = change.ports().filter_map(|port| port.after);
        let external: BTreeSet<IpAddr> = after.flat_map(|p| addresses::external(p)).collect();
        if external.is_empty() {
            return Ok(false);
        }
        let (now, then) = (self.elsewhere()?, &self.held.elsewhere);
        Ok(external.iter().any(|ip| now.contains(ip) != then.contains(ip)))
    }

    /// Returns the addresses that are not to be bound although Services have them.
    fn elsewhere(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        let mut elsewhere = self.kernel.other_addresses()?;
        elsewhere.extend(&self.config.never_bound);
        Ok(elsewhere)
    }

    /// Returns the addresses of the device, and those that are not to be bound.
    fn addresses(
        &mut self,
        is_known: bool,
    ) -> Result<(BTreeSet<IpAddr>, BTreeSet<IpAddr>), SyncError> {
        if is_known {
            return Ok((BTreeSet::new(), self.held.elsewhere.clone()));
        }
        self.kernel.ensure_device()?;
        Ok((self.kernel.addresses()?, self.elsewhere()?))
    }

    /// Removes the rules of other kinds, once all traffic is masqueraded by those in use. Returns
    /// the time until another attempt, which may wait for locks and sets for seconds.
    fn remove_other_rules(&mut self, report: &mut SyncReport) -> Option<Duration> {
        let due = self.removal_due?;
        let now = Instant::now();
        if due <= now {
            let removed = self.kernel.remove_other_rules(self.rules.mode());
            if matches!(removed, Ok(true)) && self.rules.mode() != Mode::IPTABLES {
                report.warnings.push(
                    "the rules of ipvs mode are those of nftables now, in place of kube-proxy's of \
                     iptables: what other rules of the host drop, they cannot accept"
                        .to_owned(),
                );
            }
            let failure = removed.err();
            self.removal_due = failure.is_some().then_some(now + REMOVAL_RETRY);
            let failure = failure.map(|error| ErrorChain(&error).to_string());
            warn_of_new(
                &mut self.unremoved,
                failure.into_iter().collect(),
                "Failed to remove rules that ipvs mode does not use; retrying",
            );
        }
        report.cleanup_failed |= self.removal_due.is_some();
        self.removal_due.map(|due| due.saturating_duration_since(now))
    }

    /// Programs virtual servers and addresses, and returns what was refused.
    fn program(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        is_known: bool,
        was_sure: bool,
        report: &mut SyncReport,
    ) -> Result<Refused, SyncError> {
        if !is_known {
            return self.sync_full(change, families, was_sure, report);
        }
        match self.sync_difference(change, families, report) {
            Ok(()) => Ok(Refused::default()),
            // Another program has changed what the changes rely on; or the kernel has a problem,
            // which the comparison will show.
            Err(error) => {
                tracing::warn!(err = %ErrorChain(&error), "Change rejected; resyncing");
                self.sync_full(change, families, false, report)
            }
        }
    }

    fn sync_difference(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        report: &mut SyncReport,
    ) -> Result<(), SyncError> {
        let Some(before) = change.before() else { return Ok(()) };
        let state = change.after();
        let (missing, claimed) = (self.missing(), self.held.claimed.clone());
        let (scheduler, never_bound) = (self.scheduler, self.config.never_bound.clone());
        let (missing, claimed, never_bound) = (&missing, &claimed, &never_bound);
        let context = Context { node: &state.node, scheduler, missing, claimed, never_bound };
        let difference = Difference::new(before, change, &context, families);
        let (bind, unbind) = self.plan_addresses(change, &difference.addresses);

        let mut changes =
            ServerChanges::new(&mut self.draining, &mut self.schedulers, Instant::now());
        for (selector, sides) in &difference.servers {
            match sides {
                (None, Some(after)) => changes.add(*selector, after),
                (Some(before), None) => {
                    if before.pool.is_some() || changes.draining.has(selector) {
                        changes.delete(*selector);
                    }
                }
                (Some(before), Some(after)) => changes.change(*selector, before, after),
                (None, None) => {}
            }
        }
        let ServerChanges { mut serve, retire, .. } = changes;
        self.schedulers.catch_up(&mut serve);
        self.commit_all(report, &serve)?;
        if let Some(error) = self.change_addresses(report, &bind, &unbind)?.into_iter().next() {
            return Err(error.into());
        }
        self.commit_all(report, &retire)
    }

    /// Returns which of these addresses to bind and which to unbind.
    fn plan_addresses(
        &mut self,
        change: &Transition<'_>,
        touched: &BTreeSet<IpAddr>,
    ) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let elsewhere = &self.held.elsewhere;
        let mut bound = self.bound.lock();
        let all = &change.after().service_ports;
        let has = |port: &ResolvedServicePort, ip| {
            addresses::of_port(port, elsewhere).any(|other| other == ip)
        };
        let (mut bind, mut unbind) = (Vec::new(), Vec::new());
        for &ip in touched {
            let is_wanted = change.ports().filter_map(|port| port.after).any(|port| has(port, ip))
                || all.values().any(|port| has(port, ip));
            if is_wanted && bound.insert(ip) {
                bind.push(ip);
            } else if !is_wanted && bound.remove(&ip) {
                unbind.push(ip);
            }
        }
        (bind, unbind)
    }

    /// Changes the addresses of the device, and returns those that the kernel refused.
    fn change_addresses(
        &mut self,
        report: &mut SyncReport,
        bind: &[IpAddr],
        unbind: &[IpAddr],
    ) -> Result<Vec<DeviceError>, DeviceError> {
        if bind.is_empty() && unbind.is_empty() {
            return Ok(Vec::new());
        }
        let start = Instant::now();
        let refused = self.kernel.change_addresses(bind, unbind)?;
        report.commit += start.elapsed();
        report.added += bind.len();
        report.removed += unbind.len();
        report.messages += bind.len() + unbind.len();
        Ok(refused)
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

    /// Deletes real servers of these families whose last connections have ended.
    fn look_at_draining(
        &mut self,
        families: &PerFamily<bool>,
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> Result<(), SyncError> {
        let now = Instant::now();
        let mut commands = Commands::default();
        for selector in self.draining.due(families, now) {
            let found = match self.kernel.real_servers(&selector) {
                Ok(found) => found,
                Err(error) => {
                    refused.leftover(&SyncError::Ipvs("list the real servers of IPVS", error));
                    self.draining.postpone(&selector, now);
                    continue;
                }
            };
            let look = self.draining.look(&selector, &found, now);
            for address in look.over {
                tracing::debug!(server = %Named(&selector), real = %address, "Drained");
                commands.push(selector, Action::DeleteReal(address));
            }
            if look.is_last {
                commands.push(selector, Action::DeleteServer);
            }
        }
        for (step, refusal) in self.commit(report, &commands)? {
            refused.command(None, step, refusal);
        }
        Ok(())
    }

    /// Sets the kernel's parameters for IPVS, and adds to the report those that cannot be set.
    fn set_parameters(&mut self, report: &mut SyncReport) -> Result<(), KernelSettingError> {
        let unset = self.kernel.set_parameters(self.config.strict_arp);
        // A node that was prepared serves on when another program changes a parameter.
        let unset = match self.is_prepared {
            true => unset.all(),
            false => unset.optional()?,
        };
        self.is_prepared = true;
        let texts = unset.iter().map(|error| ErrorChain(error).to_string()).collect();
        let known = mem::replace(&mut self.unset, texts);
        report.warnings.extend(self.unset.difference(&known).cloned());
        Ok(())
    }

    /// Sets what IPVS needs of the kernel.
    fn set_kernel(&mut self, report: &mut SyncReport) -> Result<(), SyncError> {
        self.set_parameters(report)?;
        let wanted = self.config.timeouts;
        let wanted = Timeouts {
            tcp: seconds(wanted.tcp),
            tcp_fin: seconds(wanted.tcp_fin),
            udp: seconds(wanted.udp),
        };
        let differs = |wanted: u32, held: u32| wanted != 0 && wanted != held;
        let result = self.kernel.timeouts().and_then(|held| {
            if differs(wanted.tcp, held.tcp)
                || differs(wanted.tcp_fin, held.tcp_fin)
                || differs(wanted.udp, held.udp)
            {
                return self.kernel.set_timeouts(wanted);
            }
            Ok(())
        });
        // Connections work with other timeouts, too.
        if let Err(error) = result {
            tracing::error!(err = %ErrorChain(&error), "Failed to set the IPVS timeouts");
        }
        Ok(())
    }

    /// Whether a changed Service port asks for a scheduler that was not tried yet.
    fn asks_for_untried(&self, change: &Transition<'_>) -> bool {
        let mut after = change.ports().filter_map(|port| port.after);
        after.any(|port| !self.tried.contains_key(&Scheduler::choose(self.scheduler, port)))
    }

    /// Tries the schedulers that Service ports ask for and that the kernel is not known to have.
    /// Returns whether there are some that it had not when they were tried before.
    fn try_schedulers(&mut self, state: &State) -> Result<bool, SyncError> {
        let mut is_there = false;
        let asked =
            state.service_ports.values().map(|port| Scheduler::choose(self.scheduler, port));
        let default = self.scheduler.weighted();
        let mut unknown: BTreeSet<Scheduler> = asked.chain([default]).collect();
        let missing: Vec<_> =
            unknown.iter().filter(|s| self.tried.get(s) != Some(&true)).copied().collect();
        unknown.extend(missing.iter().flat_map(|scheduler| scheduler.instead()));
        for scheduler in unknown {
            let known = self.tried.get(&scheduler).copied();
            if known == Some(true) {
                continue;
            }
            let has = self.kernel.has_scheduler(scheduler);
            let has = has.map_err(failed_to("try a scheduler of IPVS"))?;
            self.tried.insert(scheduler, has);
            let (scheduler, module) = (scheduler.as_str(), scheduler.module());
            match (known, has) {
                (Some(false), true) => {
                    is_there = true;
                    tracing::info!(scheduler, "The kernel has the scheduler now")
                }
                (None, false) => tracing::error!(
                    scheduler,
                    module,
                    "The kernel has no such scheduler, as the module is missing; another one is used instead"
                ),
                _ => {}
            }
        }
        Ok(is_there)
    }

    /// The schedulers that the kernel does not have.
    fn missing(&self) -> Vec<Scheduler> {
        let missing = self.tried.iter().filter(|(_, has)| !**has);
        missing.map(|(scheduler, _)| *scheduler).collect()
    }

    /// Returns the Service ports that are served otherwise than they ask, and that were not
    /// reported yet: those that ask for a scheduler that the kernel does not have, and those with
    /// an address that is never bound. That the default is missing is the node's problem.
    fn newly_degraded(&mut self, change: &Transition<'_>, is_known: bool) -> Vec<DegradedPort> {
        let known = self.degraded.clone();
        match is_known {
            true => change.ports().for_each(|port| drop(self.degraded.remove(port.id))),
            false => self.degraded.clear(),
        }
        let (missing, state) = (self.missing(), change.after());
        let (node, scheduler, claimed) = (&state.node, self.scheduler, &self.held.claimed);
        let never_bound = &self.config.never_bound;
        let context = Context { node, scheduler, missing: &missing, claimed, never_bound };
        let mut new = Vec::new();
        for port in state.service_ports.values() {
            if is_known && !change.has_port(&port.id) {
                continue;
            }
            let Some(reason) = self.why_degraded(port, &context) else { continue };
            if known.get(&port.id) != Some(&reason) {
                new.push(DegradedPort { port: port.id.clone(), reason: reason.clone() });
            }
            self.degraded.insert(port.id.clone(), reason);
        }
        new.sort_by(|a, b| a.port.cmp(&b.port));
        new
    }

    fn why_degraded(&self, port: &ResolvedServicePort, context: &Context<'_>) -> Option<String> {
        let never_bound = &self.config.never_bound;
        if let Some(ip) = addresses::external(port).find(|ip| never_bound.contains(ip)) {
            return Some(format!(
                "{ip} is an address of the API server, and does not become one of this node"
            ));
        }
        let (used, asked) = context.scheduler(port);
        let asked = asked.filter(|asked| asked.lb_algorithm() != self.scheduler.lb_algorithm())?;
        Some(format!(
            "the kernel has no scheduler `{asked}` (the module {} is missing); connections are spread by \
             `{used}` instead",
            asked.module()
        ))
    }
}

/// Warns of problems that are not known, which are known then.
fn warn_of_new(known: &mut BTreeSet<String>, problems: BTreeSet<String>, message: &str) {
    for problem in problems.difference(known) {
        tracing::warn!(err = problem, "{message}");
    }
    *known = problems;
}

fn failed(error: SyncError) -> ProxierError {
    ProxierError::backend(Mode::IPVS, "cannot program Services", error)
}

/// Whether a transition concerns an address of a Service port at which node ports are served, too.
fn is_contested(change: &Transition<'_>) -> bool {
    let node = &change.after().node;
    let mut is_claimed = false;
    for port in change.ports().flat_map(|port| port.before.into_iter().chain(port.after)) {
        layout::claimed(port, node, |_| is_claimed = true);
    }
    is_claimed
}

fn failed_to(action: &'static str) -> impl Fn(Error) -> SyncError {
    move |error| SyncError::Ipvs(action, error)
}

/// Returns whole seconds. Less than one is not none.
fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u32::MAX)
}

#[async_trait]
impl Proxier for IpvsProxier {
    fn profile(&self) -> Profile {
        Profile { capabilities: scheduler::capabilities(self.scheduler), ..PROFILE }
    }

    /// Sets the kernel's parameters for IPVS.
    fn prepare(&mut self, _node: &NodeConfig) -> Result<(), ProxierError> {
        self.set_parameters(&mut SyncReport::default()).map_err(|error| {
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

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.is_sure = false;
        self.delivered = PerFamily::default();
        self.bound.lock().clear();
        self.draining = Draining::new(self.config.drain_limit);
        let rules = self.rules.clean_up().await;
        rules.and(self.kernel.remove_all())
    }

    /// A monitor of rules and addresses: IPVS does not announce changes.
    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        Some(Box::new(DeviceMonitor::new(self.rules.monitor(), self.bound.clone())))
    }
}
