//! The open backend: makes the kernel hold a resolved state.
//!
//! The order of a sync keeps every moment safe: entries of sets and rules for what comes, then virtual
//! servers with their real servers, then addresses; and for what goes, the other way round. A packet to
//! an address that the node takes for its own always finds its virtual server. Rules that replace those of
//! iptables mode come after the addresses: until then, the old ones translate.
//!
//! - [`full`]: a sync of everything.
//! - [`incremental`]: a sync of changes alone.
//! - [`servers`] and [`commands`]: the changes of virtual servers.
//! - [`draining`]: real servers that are there for the connections that they have.
//! - [`drift`]: what other programs have changed.
//! - [`counted`]: what several Service ports need at once.

pub(crate) mod commands;
pub(crate) mod counted;
pub(crate) mod draining;
pub(crate) mod drift;
pub(crate) mod full;
pub(crate) mod incremental;
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
    error::Chain,
    model::{IpFamily, PerFamily},
    proxier::{Abilities, Mode, Proxier, ProxierError, Skipped, SyncReport},
    state::{ResolvedServicePort, State},
    transition::Transition,
};
use switchyard_interfaces::{DeviceError, DummyDevice, KernelVersion};
use switchyard_ipvs_netlink::{Ipvs, Refusal, Timeouts};
use switchyard_netlink::Error;

use self::{
    commands::{Commands, Named, Step},
    counted::Counted,
    draining::Draining,
    drift::Expected,
    full::{Wanted, bound_entry, delete_unwanted, held_servers, ports_of},
    incremental::Difference,
    servers::ServerChanges,
};
use crate::{
    IpvsConfig,
    filter::{Compared, Done, FamilyEntry, Filter, FilterError, RuleInputs},
    kernel_settings::{self, KernelSettingError},
    layout::{Context, entries::Need, exceptions::Exceptions},
    leftovers,
    scheduler::{self, Scheduler},
};

/// The device that holds the addresses of Services, by kube-proxy's name. Its addresses are no addresses of
/// the node that could serve node ports.
pub const DEVICE: &str = "kube-ipvs0";

/// Why a sync failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    /// A parameter of the kernel.
    #[error(transparent)]
    Setting(#[from] KernelSettingError),
    /// The device with the addresses.
    #[error("the addresses of Services")]
    Device(#[from] DeviceError),
    /// Sets and rules.
    #[error(transparent)]
    Filter(#[from] FilterError),
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
#[derive(Debug)]
pub(crate) struct IpvsProxier {
    config: IpvsConfig,
    families: PerFamily<bool>,
    scheduler: Scheduler,
    /// The schedulers that the kernel does not have.
    missing: Vec<Scheduler>,
    ipvs: Ipvs,
    device: DummyDevice,
    filter: Filter,
    /// What the kernel holds, beyond what core remembers; empty until a sync has compared everything.
    held: Held,
    draining: Draining,
    /// Whether the kernel is known to hold what was synced last.
    is_sure: bool,
}

/// What the kernel holds, beyond what core remembers.
#[derive(Debug, Default)]
struct Held {
    needs: Counted<Need>,
    /// The addresses of `kube-ipvs0`.
    bound: BTreeSet<IpAddr>,
    /// The addresses of all other devices, when they were last read.
    elsewhere: BTreeSet<IpAddr>,
}

impl IpvsProxier {
    pub(crate) fn new(
        config: IpvsConfig,
        families: PerFamily<bool>,
        scheduler: Scheduler,
        ipvs: Ipvs,
        filter: Filter,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            families,
            scheduler,
            missing: Vec::new(),
            ipvs,
            device: DummyDevice::open(DEVICE)?,
            filter,
            held: Held::default(),
            draining: Draining::new(config.drain_limit),
            is_sure: false,
            config,
        })
    }

    fn sync_changes(&mut self, change: &Transition<'_>) -> Result<SyncReport, SyncError> {
        let mut report = SyncReport::default();
        self.program(change, &mut report)?;
        self.look_at_draining(&mut report)?;
        report.revisit_after = self.draining.wait(Instant::now());
        report.skipped = self.skipped(change.after());
        Ok(report)
    }

    /// Programs what differs. Where the kernel lacks a scheduler, takes another.
    fn program(
        &mut self,
        change: &Transition<'_>,
        report: &mut SyncReport,
    ) -> Result<(), SyncError> {
        if self.is_sure && !change.compare() && !change.node_changed() {
            match self.sync_difference(change, report) {
                Ok(()) => return Ok(()),
                // Another program has changed what the changes rely on; or the kernel has a problem,
                // which the comparison will show.
                Err(error) => tracing::warn!(
                    err = %Chain(&error),
                    "Comparing everything, as a change was refused"
                ),
            }
        }
        loop {
            match self.sync_full(change, report) {
                Err(SyncError::NoScheduler(scheduler))
                    if scheduler != Scheduler::RoundRobin && !self.missing.contains(&scheduler) =>
                {
                    tracing::error!(
                        scheduler = scheduler.as_str(),
                        module = scheduler.module(),
                        "The kernel has no such scheduler, as the module is missing; rr is used instead"
                    );
                    self.missing.push(scheduler);
                }
                result => return result,
            }
        }
    }

    fn sync_full(
        &mut self,
        change: &Transition<'_>,
        report: &mut SyncReport,
    ) -> Result<(), SyncError> {
        let state = change.after();
        let was_sure = mem::take(&mut self.is_sure);
        self.set_kernel()?;
        let elsewhere = self.device.others()?;
        let Self { families, scheduler, .. } = *self;
        let missing = self.missing.clone();
        let context = Context { node: &state.node, scheduler, missing: &missing };
        let wanted = Wanted::new(state, &context, &families, &elsewhere);
        // A change of the node's settings may change anything.
        let known = change.before().filter(|_| was_sure && !change.node_changed());
        let expected = known.map(|before| Expected {
            difference: Difference::new(before, change, &context, &families, &elsewhere),
            moved: elsewhere.symmetric_difference(&self.held.elsewhere).copied().collect(),
            draining: self.draining.all(),
        });

        let made = self.device.ensure()?;
        report.added += usize::from(made);
        let bound = self.device.addresses()?;
        let inputs: Vec<RuleInputs<'_>> = IpFamily::ALL
            .into_iter()
            .filter(|family| *families.get(*family))
            .map(|family| self.rule_inputs(state, family, wanted.exceptions.get(family)))
            .collect();
        let compared = self.filter.compare(&wanted.entries, &inputs)?;

        let held =
            self.ipvs.virtual_servers().map_err(failed_to("list the virtual servers of IPVS"))?;
        let held = held_servers(held, &families);
        let mut changes = ServerChanges::new(&mut self.draining, Instant::now());
        for (selector, server) in &wanted.servers {
            match held.get(selector) {
                None => {
                    changes.draining.forget(selector);
                    changes.add(*selector, server);
                }
                Some(held) => {
                    let reals = self.ipvs.real_servers(selector);
                    let reals = reals.map_err(failed_to("list the real servers of IPVS"))?;
                    changes.compare(held, &reals, server);
                }
            }
        }
        delete_unwanted(&mut changes, &held, &wanted.servers, &self.config.excluded);
        let ServerChanges { serve, retire, .. } = changes;

        let of_family = |ip: &&IpAddr| *families.get(IpFamily::of(ip));
        let bind: Vec<IpAddr> = wanted.bound.difference(&bound).copied().collect();
        let unbind: Vec<IpAddr> =
            bound.difference(&wanted.bound).filter(of_family).copied().collect();
        if let Some(expected) = expected {
            report.drift = expected.drift(&compared, [&serve, &retire], [&bind, &unbind]);
        }
        let Compared { late, stale, done, .. } = compared;
        add_done(report, done);
        self.commit(report, &serve)?;
        if !was_sure {
            // kube-proxy's addresses of IPv6 can become the source of masqueraded packets.
            let known: Vec<IpAddr> =
                wanted.bound.intersection(&bound).filter(|ip| ip.is_ipv6()).copied().collect();
            self.device.change(&known, &[])?;
        }
        self.change_addresses(report, &bind, &unbind)?;
        let mut done = Done::default();
        self.filter.finish(&late, &mut done)?;
        self.commit(report, &retire)?;
        self.filter.commit(&mut done, &[], &stale)?;
        add_done(report, done);

        self.held = Held { needs: wanted.needs, bound: wanted.bound, elsewhere };
        self.is_sure = true;
        Ok(())
    }

    fn sync_difference(
        &mut self,
        change: &Transition<'_>,
        report: &mut SyncReport,
    ) -> Result<(), SyncError> {
        let Some(before) = change.before() else { return Ok(()) };
        // A failure leaves something half done, which only a comparison finds.
        self.is_sure = false;
        let state = change.after();
        let Self { families, scheduler, .. } = *self;
        let missing = self.missing.clone();
        let context = Context { node: &state.node, scheduler, missing: &missing };
        let difference = Difference::new(before, change, &context, &families, &self.held.elsewhere);

        let (come, gone) = self.held.needs.apply(&difference.needs);
        let (bind, unbind) = self.plan_addresses(&come, &gone)?;
        let entry = |need: &Need| match *need {
            Need::Entry(family, set, entry) => Some((family, set, entry)),
            Need::Address { .. } => None,
        };
        let add: Vec<FamilyEntry> = come.iter().filter_map(entry).collect();
        let delete: Vec<FamilyEntry> = gone.iter().filter_map(entry).collect();
        let add = [add, bind.iter().map(|ip| bound_entry(*ip)).collect()].concat();
        let delete = [delete, unbind.iter().map(|ip| bound_entry(*ip)).collect()].concat();

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

        let mut done = Done::default();
        self.filter.commit(&mut done, &add, &[])?;
        self.commit(report, &serve)?;
        for family in IpFamily::ALL.into_iter().filter(|f| *difference.exceptions.get(*f)) {
            let exceptions = Exceptions::of_ports(ports_of(state, family), &self.held.elsewhere);
            let inputs = self.rule_inputs(state, family, &exceptions);
            self.filter.write_exceptions(&inputs, &mut done)?;
        }
        self.change_addresses(report, &bind, &unbind)?;
        self.commit(report, &retire)?;
        self.filter.commit(&mut done, &[], &delete)?;
        add_done(report, done);
        self.is_sure = true;
        Ok(())
    }

    /// Returns the addresses to bind and those to unbind, when these needs have come and gone.
    fn plan_addresses(
        &mut self,
        come: &[Need],
        gone: &[Need],
    ) -> Result<(Vec<IpAddr>, Vec<IpAddr>), DeviceError> {
        let mut touched = BTreeSet::new();
        let mut asks_for_others = false;
        for need in come {
            if let Need::Address { ip, may_be_elsewhere } = need {
                touched.insert(*ip);
                asks_for_others |= may_be_elsewhere;
            }
        }
        touched.extend(gone.iter().filter_map(|need| match need {
            Need::Address { ip, .. } => Some(*ip),
            Need::Entry(..) => None,
        }));
        if asks_for_others {
            self.held.elsewhere = self.device.others()?;
        }
        let Held { needs, bound, elsewhere } = &mut self.held;
        let (mut bind, mut unbind) = (Vec::new(), Vec::new());
        for ip in touched {
            let needs = |may_be_elsewhere| needs.contains(&Need::Address { ip, may_be_elsewhere });
            let is_wanted = needs(false) || (needs(true) && !elsewhere.contains(&ip));
            if is_wanted && bound.insert(ip) {
                bind.push(ip);
            } else if !is_wanted && bound.remove(&ip) {
                unbind.push(ip);
            }
        }
        Ok((bind, unbind))
    }

    fn change_addresses(
        &mut self,
        report: &mut SyncReport,
        bind: &[IpAddr],
        unbind: &[IpAddr],
    ) -> Result<(), DeviceError> {
        if bind.is_empty() && unbind.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        self.device.change(bind, unbind)?;
        report.commit += start.elapsed();
        report.added += bind.len();
        report.removed += unbind.len();
        report.messages += bind.len() + unbind.len();
        Ok(())
    }

    /// Sends commands to IPVS. All of them are tried.
    fn commit(&mut self, report: &mut SyncReport, commands: &Commands) -> Result<(), SyncError> {
        if commands.is_empty() {
            return Ok(());
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
        let refused = commands.refused(refusals);
        for (step, refusal) in &refused {
            if let Some(scheduler) = step.missing_scheduler(refusal) {
                return Err(SyncError::NoScheduler(scheduler));
            }
        }
        let count = refused.len();
        match refused.into_iter().next() {
            Some((step, refusal)) => Err(SyncError::Refused { step, refusal, count }),
            None => Ok(()),
        }
    }

    /// Deletes real servers whose last connections have ended.
    fn look_at_draining(&mut self, report: &mut SyncReport) -> Result<(), SyncError> {
        let now = Instant::now();
        let mut commands = Commands::default();
        for selector in self.draining.due(now) {
            let found = self
                .ipvs
                .real_servers(&selector)
                .map_err(failed_to("list the real servers of IPVS"))?;
            let look = self.draining.look(&selector, &found, now);
            for address in look.over {
                tracing::debug!(server = %Named(&selector), real = %address, "Drained");
                commands.delete_real(selector, address);
            }
            if look.is_last {
                commands.delete_server(selector);
            }
        }
        self.commit(report, &commands)
    }

    /// Sets what IPVS needs of the kernel.
    fn set_kernel(&mut self) -> Result<(), SyncError> {
        let root = Path::new(kernel_settings::PROC_SYS);
        kernel_settings::apply(root, self.config.strict_arp, KernelVersion::running())?;
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
            tracing::error!(err = %Chain(&error), "The timeouts of IPVS cannot be set");
        }
        Ok(())
    }

    fn rule_inputs<'a>(
        &self,
        state: &'a State,
        family: IpFamily,
        exceptions: &'a Exceptions,
    ) -> RuleInputs<'a> {
        RuleInputs { family, mark: 1 << self.config.masquerade_bit, node: &state.node, exceptions }
    }

    /// Returns the Service ports that ask for a scheduler that the kernel does not have. Those that ask
    /// for nothing are the node's problem, and reported once.
    fn skipped(&self, state: &State) -> Vec<Skipped> {
        if self.missing.is_empty() {
            return Vec::new();
        }
        let context =
            Context { node: &state.node, scheduler: self.scheduler, missing: &self.missing };
        let skipped = |port: &ResolvedServicePort| {
            let (used, asked) = context.scheduler(port);
            let asked = asked.filter(|asked| asked.spread() != self.scheduler.spread())?;
            let reason = format!(
                "the kernel has no scheduler `{asked}` (the module {} is missing); connections are \
                 spread by `{used}` instead",
                asked.module()
            );
            Some(Skipped { port: port.id.clone(), reason })
        };
        let mut all: Vec<Skipped> =
            state.service_ports.values().filter_map(|port| skipped(port)).collect();
        all.sort_by(|a, b| a.port.cmp(&b.port));
        all
    }
}

fn failed_to(action: &'static str) -> impl Fn(Error) -> SyncError {
    move |error| SyncError::Ipvs(action, error)
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

fn add_done(report: &mut SyncReport, done: Done) {
    report.added += done.added;
    report.removed += done.removed;
    report.messages += done.messages;
    report.bytes += done.bytes;
    report.commit += done.commit;
    report.waited += done.waited;
}

#[async_trait]
impl Proxier for IpvsProxier {
    fn mode(&self) -> Mode {
        Mode::IPVS
    }

    fn abilities(&self) -> Abilities {
        scheduler::abilities(self.scheduler)
    }

    /// Blocks for as long as the kernel and the programs of iptables take. IPVS has no transactions: after
    /// an error, commands after the refused one have been done, too.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        self.sync_changes(change)
            .map_err(|error| ProxierError::backend(Mode::IPVS, "cannot program Services", error))
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.is_sure = false;
        self.draining = Draining::new(self.config.drain_limit);
        leftovers::remove_all()
    }
}
