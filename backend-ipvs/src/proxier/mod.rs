//! The open backend: makes the kernel hold a resolved state.
//!
//! The order of a sync keeps every moment safe: rules, then virtual servers with their real
//! servers, then addresses; and for what goes, addresses before virtual servers. A packet to an
//! address that the node takes for its own always finds its virtual server. Where nothing is
//! delivered yet, the rules translate by themselves until all is there, so that those of another
//! mode are replaced without a gap, and are synced once more then.
//!
//! - [`full`]: a sync of everything.
//! - [`refused`]: what the kernel refuses, and whom that concerns.
//! - [`incremental`]: what a transition changes.
//! - [`servers`] and [`commands`]: the changes of virtual servers.
//! - [`draining`]: real servers that are there for the connections that they have.
//! - [`drift`]: what other programs have changed.

pub(crate) mod commands;
pub(crate) mod draining;
pub(crate) mod drift;
pub(crate) mod full;
pub(crate) mod incremental;
pub(crate) mod refused;
pub(crate) mod servers;

use std::{
    collections::BTreeSet,
    mem,
    net::IpAddr,
    path::Path,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::{IpFamily, PerFamily},
    proxier::{DegradedPort, Mode, Monitor, Profile, Proxier, ProxierError, SyncReport},
    state::{ResolvedServicePort, State},
    transition::Transition,
};
use switchyard_netlink::Error;
use switchyard_netlink::ipvs::{Ipvs, Refusal, Selector, Timeouts};
use switchyard_netlink::kernel::KernelVersion;
use switchyard_netlink::route::{DeviceError, DummyDevice};

use self::{
    commands::{Commands, Named, Step},
    draining::Draining,
    incremental::Difference,
    refused::Refused,
    servers::ServerChanges,
};
use crate::{
    config::{DEVICE, IpvsConfig},
    kernel_settings::{self, KernelSettingError},
    layout::{Context, addresses, servers as layout},
    leftovers,
    rules::{Delivery, Rules},
    scheduler::{self, Scheduler},
};

/// The time after which it is tried again to remove what could not be removed.
const RETRY: Duration = Duration::from_secs(30);
const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

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
    #[error("the kernel has no scheduler {0} (the module {module} is missing)", module = .0.module())]
    NoScheduler(Scheduler),
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
    /// The schedulers that the kernel does not have.
    missing: Vec<Scheduler>,
    ipvs: Ipvs,
    device: DummyDevice,
    rules: Rules,
    /// Whether nothing is left of the rules that ipvs mode had before, or that it does not use.
    is_alone: bool,
    /// The contents of the kernel, beyond what core remembers; empty until a sync has compared
    /// everything.
    held: Held,
    draining: Draining,
    /// Whether the kernel is known to hold what was synced last.
    is_sure: bool,
    /// The families that the last sync programmed.
    programmed: PerFamily<bool>,
    /// Whether the kernel's parameters were once what they should be.
    is_prepared: bool,
    /// The parameters that cannot be set, as they were warned about.
    unset: BTreeSet<String>,
    /// Objects that could not be removed, as it was warned about.
    left: BTreeSet<String>,
    /// The work done in a sync of which a part was refused.
    unreported: SyncReport,
}

/// The contents of the kernel, beyond what core remembers.
#[derive(Debug, Default)]
struct Held {
    /// The addresses of `kube-ipvs0`.
    bound: BTreeSet<IpAddr>,
    /// The addresses of all other devices, when they were last read.
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
        ipvs: Ipvs,
        rules: Rules,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            families,
            scheduler,
            missing: Vec::new(),
            ipvs,
            device: DummyDevice::open(DEVICE)?,
            rules,
            is_alone: false,
            held: Held::default(),
            draining: Draining::new(config.drain_limit),
            is_sure: false,
            programmed: PerFamily::default(),
            is_prepared: false,
            unset: BTreeSet::new(),
            left: BTreeSet::new(),
            unreported: SyncReport::default(),
            config,
        })
    }

    async fn sync_changes(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let families =
            PerFamily::from_fn(|family| *self.families.get(family) && change.programs(family));
        let mut report = mem::take(&mut self.unreported);
        // A failure leaves something half done, which only a comparison finds.
        let was_sure = mem::take(&mut self.is_sure);
        let is_known = was_sure
            && self.programmed == families
            && !change.is_resync()
            && !change.node_changed()
            && !is_contested(change)
            && !self.have_addresses_moved(change).map_err(failed)?;
        let (delivered, elsewhere) = self.delivered(is_known).map_err(failed)?;
        let delivery = Delivery { families: delivered, elsewhere: &elsewhere };
        let rules = self.rules.sync(change, !is_known, delivery, &mut report).await;
        if let Err(error) = rules {
            self.unreported = report;
            return Err(error);
        }
        let mut refused =
            self.program(change, &families, is_known, was_sure, &mut report).map_err(failed)?;
        self.look_at_draining(&families, &mut report, &mut refused).map_err(failed)?;
        let left = mem::take(&mut refused.leftovers);
        report.cleanup_failed |= !left.is_empty();
        let is_complete = left.is_empty() && refused.is_empty();
        warn_of_new(&mut self.left, left, "A part of a sync was refused, which is tried again");
        if let Some((error, parts)) = refused.into_error(&families) {
            self.unreported = report;
            return Err(failed(error).of_parts(parts));
        }
        if delivered != BOTH {
            let delivery = Delivery { families: BOTH, elsewhere: &elsewhere };
            if let Err(error) = self.rules.deliver(change, delivery, &mut report).await {
                self.unreported = report;
                return Err(error);
            }
        }
        // Rules of before would go on to refuse what they do not know. Neither a family that is
        // left out nor what could not be removed keeps them.
        self.remove_other_rules();
        self.is_sure = is_complete;
        self.programmed = families;
        let retry = report.cleanup_failed.then_some(RETRY);
        let draining = self.draining.wait(&families, Instant::now());
        report.requeue_after = report.requeue_after.into_iter().chain(draining).chain(retry).min();
        report.degraded.extend(self.skipped(change.after()));
        Ok(report)
    }

    /// Whether an address that a changed Service port names came to another device of the node, or
    /// left it, which concerns all Service ports with the address.
    fn have_addresses_moved(&mut self, change: &Transition<'_>) -> Result<bool, SyncError> {
        let mut after = change.ports().filter_map(|port| port.after);
        let may_move = after.any(|port| addresses::may_be_elsewhere(port));
        Ok(may_move && self.device.others()? != self.held.elsewhere)
    }

    /// Returns the families of which something is delivered already, and the addresses of all
    /// devices but that of Services.
    fn delivered(
        &mut self,
        is_known: bool,
    ) -> Result<(PerFamily<bool>, BTreeSet<IpAddr>), SyncError> {
        if is_known {
            return Ok((BOTH, self.held.elsewhere.clone()));
        }
        self.device.ensure()?;
        let bound = self.device.addresses()?;
        let is_delivered = |family| bound.iter().any(|ip| IpFamily::of(ip) == family);
        Ok((PerFamily::from_fn(is_delivered), self.device.others()?))
    }

    /// Removes the rules of other kinds, once all traffic is masqueraded by those in use.
    fn remove_other_rules(&mut self) {
        if self.is_alone {
            return;
        }
        match leftovers::remove_other_rules(self.rules.mode()) {
            Ok(()) => self.is_alone = true,
            Err(error) => tracing::warn!(
                err = %ErrorChain(&error),
                "Failed to remove rules that ipvs mode does not use; retrying"
            ),
        }
    }

    /// Programs virtual servers and addresses, and returns what was refused. Where the kernel lacks
    /// a scheduler, takes another.
    fn program(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        is_known: bool,
        mut was_sure: bool,
        report: &mut SyncReport,
    ) -> Result<Refused, SyncError> {
        if is_known {
            match self.sync_difference(change, families, report) {
                Ok(()) => return Ok(Refused::default()),
                // Another program has changed what the changes rely on; or the kernel has a
                // problem, which the comparison will show.
                Err(error) => tracing::warn!(
                    err = %ErrorChain(&error),
                    "Change rejected; resyncing"
                ),
            }
            was_sure = false;
        }
        loop {
            let refused = self.sync_full(change, families, was_sure, report)?;
            if refused.missing.is_empty() {
                return Ok(refused);
            }
            for scheduler in refused.missing {
                tracing::error!(
                    scheduler = scheduler.as_str(),
                    module = scheduler.module(),
                    "The kernel has no such scheduler, as the module is missing; rr is used instead"
                );
                self.missing.push(scheduler);
            }
            was_sure = false;
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
        let (missing, claimed) = (self.missing.clone(), self.held.claimed.clone());
        let scheduler = self.scheduler;
        let context =
            Context { node: &state.node, scheduler, missing: &missing, claimed: &claimed };
        let difference = Difference::new(before, change, &context, families);
        let (bind, unbind) = self.plan_addresses(change, &difference.addresses);

        let mut changes = ServerChanges::new(&mut self.draining, Instant::now());
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
        let ServerChanges { serve, retire, .. } = changes;
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
        let Held { bound, elsewhere, .. } = &mut self.held;
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
        let refused = self.device.change_each(bind, unbind)?;
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
        let refusals = self.ipvs.commit(&commands.batch);
        report.commit += start.elapsed();
        let refusals = refusals.map_err(failed_to("send commands to IPVS"))?;
        let (added, removed) = commands.counts();
        report.added += added;
        report.removed += removed;
        report.messages += commands.batch.len();
        report.bytes += commands.batch.bytes();
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
            let found = match self.ipvs.real_servers(&selector) {
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
                commands.delete_real(selector, address);
            }
            if look.is_last {
                commands.delete_server(selector);
            }
        }
        for (step, refusal) in self.commit(report, &commands)? {
            refused.command(None, step, refusal, &self.missing);
        }
        Ok(())
    }

    /// Sets the kernel's parameters for IPVS.
    fn set_parameters(&mut self) -> Result<(), KernelSettingError> {
        let root = Path::new(kernel_settings::PROC_SYS);
        let unset = kernel_settings::apply(root, self.config.strict_arp, KernelVersion::running());
        // A node that was prepared serves on when another program changes a parameter.
        let unset = match self.is_prepared {
            true => unset.all(),
            false => unset.optional()?,
        };
        self.is_prepared = true;
        let texts = unset.iter().map(|error| ErrorChain(error).to_string()).collect();
        warn_of_new(&mut self.unset, texts, "A parameter of the kernel is not what IPVS needs");
        Ok(())
    }

    /// Sets what IPVS needs of the kernel.
    fn set_kernel(&mut self) -> Result<(), SyncError> {
        self.set_parameters()?;
        let wanted = self.config.timeouts;
        let wanted = Timeouts {
            tcp: seconds(wanted.tcp),
            tcp_fin: seconds(wanted.tcp_fin),
            udp: seconds(wanted.udp),
        };
        let differs = |wanted: u32, held: u32| wanted != 0 && wanted != held;
        let result = self.ipvs.timeouts().and_then(|held| {
            if differs(wanted.tcp, held.tcp)
                || differs(wanted.tcp_fin, held.tcp_fin)
                || differs(wanted.udp, held.udp)
            {
                return self.ipvs.set_timeouts(wanted);
            }
            Ok(())
        });
        // Connections work with other timeouts, too.
        if let Err(error) = result {
            tracing::error!(err = %ErrorChain(&error), "Failed to set the IPVS timeouts");
        }
        Ok(())
    }

    /// Returns the Service ports that ask for a scheduler that the kernel does not have. Those that
    /// ask for nothing are the node's problem, and reported once.
    fn skipped(&self, state: &State) -> Vec<DegradedPort> {
        if self.missing.is_empty() {
            return Vec::new();
        }
        let Self { scheduler, missing, held, .. } = self;
        let (scheduler, claimed) = (*scheduler, &held.claimed);
        let context = Context { node: &state.node, scheduler, missing, claimed };
        let skipped = |port: &ResolvedServicePort| {
            let (used, asked) = context.scheduler(port);
            let asked =
                asked.filter(|asked| asked.lb_algorithm() != self.scheduler.lb_algorithm())?;
            let reason = format!(
                "the kernel has no scheduler `{asked}` (the module {} is missing); connections are \
                 spread by `{used}` instead",
                asked.module()
            );
            Some(DegradedPort { port: port.id.clone(), reason })
        };
        let mut all: Vec<DegradedPort> =
            state.service_ports.values().filter_map(|port| skipped(port)).collect();
        all.sort_by(|a, b| a.port.cmp(&b.port));
        all
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

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

#[async_trait]
impl Proxier for IpvsProxier {
    fn profile(&self) -> Profile {
        Profile { capabilities: scheduler::capabilities(self.scheduler), ..PROFILE }
    }

    /// Sets the kernel's parameters for IPVS.
    fn prepare(&mut self, _node: &NodeConfig) -> Result<(), ProxierError> {
        self.set_parameters().map_err(|error| {
            ProxierError::backend(Mode::IPVS, "cannot prepare the kernel for IPVS", error)
        })
    }

    /// Blocks for as long as the kernel and the rules beneath take. IPVS has no transactions: with
    /// an error of [parts](ProxierError::of_parts) about virtual servers and addresses, everything
    /// else has been done.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        self.sync_changes(change).await
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.is_sure = false;
        self.draining = Draining::new(self.config.drain_limit);
        let rules = self.rules.clean_up().await;
        rules.and(leftovers::remove_all())
    }

    /// The monitor of the rules: IPVS does not announce changes.
    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        self.rules.monitor()
    }
}
