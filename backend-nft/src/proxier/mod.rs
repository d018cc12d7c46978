//! The backend: a [`Proxier`] on a [`Transport`].
//!
//! A sync has one [`plan`]. It trusts that the kernel holds what was synced last ([`last_synced`])
//! where that is known, and otherwise compares what it reads: at the start, after a failure, and on
//! request. The plan makes [`changes`], which become transactions for both families, in [`parts`].
//! [`drift`] reports what other programs had changed; where that is known beforehand, [`mend`]
//! repairs it, and nothing is read.

mod changes;
mod clients;
mod compare;
mod drift;
mod known;
mod last_synced;
mod mend;
mod objects;
mod parts;
mod plan;
mod refused;
mod sweeper;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::{LbAlgorithm, PerFamily, ServiceName},
    proxier::{self, Capabilities, Drift, Mode, Profile, Proxier, ProxierError, SyncReport},
    state::State,
    transition::Transition,
};
use switchyard_kernel::{
    netlink::Membership,
    nftables::{
        Elements, Family, Table, TableDump, Transaction, Transport, TransportError,
        netlink::{Listener, Touched},
    },
};

use self::{
    changes::Changes,
    last_synced::LastSynced,
    mend::Mending,
    parts::{Part, Parts},
    plan::{Have, plan},
    refused::{Refused, concerns_elements},
    sweeper::{Sweep, Sweeper},
};
use crate::{
    clean_up::delete_tables,
    layout::{
        NftConfig,
        slots::{MOST_HASHED, Selection},
        table,
    },
    monitor::Monitor,
    probe::has_hashes,
};

/// The number of times that a full sync is tried if other programs change our tables at the same
/// time. The last attempt changes them whatever the others do, and is not trusted by the next sync.
const ATTEMPTS: usize = 5;
/// The time after which an attempt that is not trusted is followed by another sync.
const DOUBTED_FOR: Duration = Duration::from_secs(1);
/// The age at which an unused chain is deleted. Kernels before 6.2 keep references from elements of
/// maps for a moment after a commit, and refuse to delete the chains that the elements led to;
/// upstream waits as long.
const STALE_FOR: Duration = Duration::from_secs(1);
/// The longest that it may become, as each refusal to delete unused chains doubles it.
const LONGEST_STALE_FOR: Duration = Duration::from_secs(3600);

/// The number of elements that an object of a list may change; most change fewer.
const ELEMENTS_OF_OBJECT: usize = 4;

/// The backend on a kernel that has hashes.
pub const PROFILE: Profile = Profile {
    conflicts_with: &[Mode::IPTABLES, Mode::IPVS],
    capabilities: Capabilities::KUBE_PROXY
        .with(LbAlgorithm::RoundRobin)
        .with_at_most(LbAlgorithm::SourceHash, MOST_HASHED)
        .with_at_most(LbAlgorithm::Maglev, MOST_HASHED)
        .with_slots(|lb_algorithm, pool| Selection::of(lb_algorithm, pool).slots as usize)
        .with_endpoints_at_each_address()
        .with_weights(),
    guards_loopback: true,
    ..Profile::new(Mode::NFTABLES)
};

/// Programs Services with nftables. See the [crate's documentation](crate).
pub struct NftProxier {
    config: NftConfig,
    transport: Box<dyn Transport>,
    sweeper: Sweeper,
    /// The netlink ports from which this backend commits; none if its commits have no fixed ports.
    own_ports: Vec<u32>,
    /// The membership of the monitor in the group that the kernel notifies.
    listener: Mutex<Weak<Membership>>,
    /// The contents of the kernel besides the state that was synced; `None` if unknown.
    last: Option<LastSynced>,
    /// Changes by other programs that are known before a comparison.
    mending: Mending,
    /// The families whose clients were swept since endpoints left, though `last` is unknown.
    swept: PerFamily<bool>,
    /// The age at which unused chains are deleted.
    stale_for: Duration,
    /// Whether the kernel can select slots by a hash.
    hashes: bool,
    /// The most changes of elements that are committed at once.
    undivided: usize,
}

impl NftProxier {
    /// Opens the backend with the configured transport, in the network namespace of this thread.
    /// Programs nothing yet.
    ///
    /// # Errors
    /// If the transport cannot be opened.
    pub fn open(config: NftConfig) -> Result<Self, ProxierError> {
        let transport = config
            .transport
            .open()
            .map_err(|error| Self::error("cannot open the transport", error))?;
        // A kernel without hashes serves all Services that do not ask for them.
        Ok(Self { hashes: has_hashes(&config.families), ..Self::new(config, transport) })
    }

    /// Creates a backend that programs through `transport`, for a kernel with hashes. Programs
    /// nothing yet.
    pub fn new(config: NftConfig, transport: Box<dyn Transport>) -> Self {
        let mut sweeper = Sweeper::new(config.transport);
        let mut transport = transport;
        let mut own_ports = Vec::new();
        if let Some(port) = transport.port() {
            // The transports that cannot be opened now are opened when they are needed; what they
            // commit is then taken for another program's.
            let ports = sweeper.open().unwrap_or_default();
            ports.iter().for_each(|&port| transport.disregard(port));
            own_ports = ports;
            own_ports.push(port);
        }
        // A program that is run for each transaction reads the whole tables each time.
        let undivided = if own_ports.is_empty() { usize::MAX } else { parts::UNDIVIDED };
        Self {
            config,
            transport,
            sweeper,
            own_ports,
            listener: Mutex::default(),
            last: None,
            mending: Mending::default(),
            swept: PerFamily::default(),
            stale_for: STALE_FOR,
            hashes: true,
            undivided,
        }
    }

    /// The most changes of elements that are committed at once: all, if rules of chains that stay
    /// are replaced, as elements and the rules that they lead to belong together.
    fn undivided(&self, changes: &PerFamily<Changes>) -> usize {
        match changes.v4.replaces_rules() || changes.v6.replaces_rules() {
            true => usize::MAX,
            false => self.undivided,
        }
    }

    fn sync_changes(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let config = self.config.programmed(change);
        let compares = change.is_resync() && !(change.is_repair() && self.mend(&config, change));
        let last = self.last.as_ref().filter(|last| last.families == config.families);
        let (Some(last), Some(before), false) = (last, change.before(), compares) else {
            return self.sync_full(&config, change);
        };
        let have = Have::Synced { last, before, change: *change };
        let (mut changes, update) = plan(&config, change.after(), have);
        let sweeps = self.take_sweeps(&mut changes);
        let undivided = self.undivided(&changes);
        let (parts, mut report) = Parts::new(&config, changes, change.after(), undivided);
        self.sweeper.keep(&sweeps);
        match self.commit(parts, None, None, &mut report) {
            // Perhaps another program has changed what the changes rely on, which a comparison
            // shows.
            Err(refused) if refused.error.contradicts_kernel() => {
                tracing::debug!(
                    err = %ErrorChain(&refused.error),
                    "Change rejected; resyncing"
                );
                return self.sync_full(&config, change);
            }
            Err(refused) => return Err(refused.named(&config, change)),
            Ok(()) => {}
        }
        if let Some(last) = &mut self.last {
            last.update(update);
        }
        self.sweeper.sweep(sweeps);
        Ok(self.mending.reported_with(report))
    }

    fn sync_full(
        &mut self,
        config: &NftConfig,
        change: &Transition<'_>,
    ) -> Result<SyncReport, ProxierError> {
        self.mend(config, change);
        let mut attempt = 1;
        let result = loop {
            let expected = attempt < ATTEMPTS;
            match self.try_sync_full(config, change, attempt) {
                // What is missing was removed since it was read, if the transport knows no
                // generations.
                Err(refused)
                    if expected
                        && (refused.error.is_conflict()
                            || !self.has_generations() && refused.error.is_missing()) =>
                {
                    attempt += 1;
                }
                // Another program has changed what was read: no Service port is to blame.
                Err(refused)
                    if !expected
                        && self.has_generations()
                        && refused.error.contradicts_kernel() =>
                {
                    break Err(refused.of_tables(config));
                }
                result => break result.map_err(|refused| refused.named(config, change)),
            }
        };
        self.transport.release();
        if result.is_err() {
            // What was noted was taken, and may not be repaired.
            self.mending.noted.add(Touched::anything());
        }
        result
    }

    /// Reads what the kernel holds, and changes what differs. At the last attempt, or if other
    /// programs change our tables all the time, they may do so between the reading and the commit:
    /// the next sync reads again. The kernel makes no notifications of a first attempt that changes
    /// much, of which any commit of another program makes a second one, unless there is drift to
    /// report: that would be lost.
    fn try_sync_full(
        &mut self,
        config: &NftConfig,
        change: &Transition<'_>,
        attempt: usize,
    ) -> Result<SyncReport, Refused> {
        let expected = attempt < ATTEMPTS;
        let (dumps, is_torn) = self.read(config)?;
        let is_whole = expected && !is_torn;
        for dump in [&dumps.v4, &dumps.v6].into_iter().flatten().filter(|dump| dump.dormant) {
            self.wake(&dump.table).map_err(|error| {
                let has_other = config.families().count() > 1;
                let unusable = has_other.then_some(dump.table.family.into());
                Refused { unusable, ..error.into() }
            })?;
        }
        let have = Have::Read { dumps: &dumps, last: self.last.as_ref(), swept: self.swept };
        let (mut changes, update) = plan(config, change.after(), have);
        let drift = self.last.as_ref().zip(change.before()).map(|(last, before)| {
            let have = Have::Synced { last, before, change: *change };
            let (expected, _) = plan(config, change.after(), have);
            drift::find(&changes, &expected, last)
        });
        let sweeps = self.take_sweeps(&mut changes);
        let undivided = self.undivided(&changes);
        let is_first = attempt == 1 && self.last.is_none();
        let is_large = changes.v4.elements() + changes.v6.elements() > parts::UNDIVIDED;
        let unheard_by = self.listener().upgrade().filter(|_| is_first && is_large);
        let (parts, mut report) = Parts::new(config, changes, change.after(), undivided);
        report.drift = drift.unwrap_or_default();
        let generation = |dump: &Option<TableDump>| dump.as_ref().and_then(|d| d.generation);
        let generation = generation(&dumps.v4).or(generation(&dumps.v6)).filter(|_| is_whole);
        drop(dumps);
        self.sweeper.keep(&sweeps);
        self.commit(parts, generation, unheard_by.as_deref(), &mut report).map_err(|refused| {
            match is_torn {
                true if expected && refused.error.contradicts_kernel() => {
                    TransportError::Conflict.into()
                }
                _ => refused,
            }
        })?;
        self.last = is_whole.then(|| LastSynced::new(config.families, update));
        self.mending.compared_at = generation;
        self.swept = PerFamily::default();
        self.delete_unused_chains();
        self.sweeper.sweep(sweeps);
        Ok(self.mending.reported_with(report))
    }

    /// Reads the tables, and returns whether one of them changed all the time in the meantime. If
    /// that fails in one family alone, the error names the family.
    fn read(
        &mut self,
        config: &NftConfig,
    ) -> Result<(PerFamily<Option<TableDump>>, bool), Refused> {
        let mut dumps = PerFamily::default();
        let mut is_torn = false;
        for family in config.families() {
            let table = config.table(family);
            let dump = dumps.get_mut(family.into());
            match self.transport.read(&table, Elements::Include) {
                Ok(read) => *dump = read,
                Err(TransportError::Changing(torn)) => {
                    is_torn = true;
                    *dump = torn.map(|torn| *torn);
                }
                Err(error) => {
                    // What changes in one table must not concern the record of the other one.
                    self.transport.release();
                    let is_alone =
                        config.families().filter(|other| *other != family).any(|other| {
                            self.transport.read(&config.table(other), Elements::Omit).is_ok()
                        });
                    let unusable = is_alone.then_some(family.into());
                    return Err(Refused { unusable, ..error.into() });
                }
            }
            if let Some(dump) = dump {
                clients::read_upstream(self.transport.as_mut(), &table, dump);
            }
        }
        Ok((dumps, is_torn))
    }

    fn wake(&mut self, table: &Table) -> Result<(), TransportError> {
        let mut transaction = Transaction::new();
        transaction.wake_table(table);
        self.transport.commit(&transaction).map(drop)
    }

    /// Whether the kernel refuses a commit if another program has changed a table since it was
    /// read.
    fn has_generations(&self) -> bool {
        self.transport.port().is_some()
    }

    /// Takes the sweeps out of the changes of both families.
    fn take_sweeps(&self, changes: &mut PerFamily<Changes>) -> Vec<(Table, Sweep)> {
        let of_family = |family: Family| {
            let sweeps = std::mem::take(&mut changes.get_mut(family.into()).sweeps);
            let table = self.config.table(family);
            sweeps.into_iter().map(move |sweep| (table.clone(), sweep))
        };
        self.config.families().flat_map(of_family).collect()
    }

    /// Commits the parts, one after the other. If elements of some frontends are refused, those of
    /// others are committed nevertheless, and all that is refused is known at once.
    fn commit(
        &mut self,
        mut parts: Parts,
        generation: Option<u32>,
        unheard_by: Option<&Membership>,
        report: &mut SyncReport,
    ) -> Result<(), Refused> {
        let mut refused: Option<Refused> = None;
        let mut has_switched = false;
        while let Some((part, mut transaction)) = parts.next() {
            if part != Part::Elements && refused.is_some() {
                break;
            }
            if let Some(generation) = generation {
                transaction.expect_generation(generation);
            }
            // Rendered only if this level is enabled.
            tracing::trace!(target: "switchyard_nft::v9", rules = %transaction, "Committing");
            let committed = match unheard_by {
                Some(listener) => self.transport.commit_unheard(&transaction, listener),
                None => self.transport.commit(&transaction),
            };
            let stats = match committed {
                Ok(stats) => stats,
                Err(error) => {
                    let is_last = part != Part::Elements || !concerns_elements(&error);
                    let known = refused.take().map(Box::new);
                    refused =
                        Some(Refused { transaction: transaction.into(), known, ..error.into() });
                    if is_last {
                        break;
                    }
                    continue;
                }
            };
            parts.committed(part, &transaction, stats.commit);
            has_switched |= part != Part::Preparation;
            report.commit += stats.commit;
            report.bytes += stats.bytes;
            report.messages += stats.operations;
            if stats.overtaken {
                self.last = None;
                self.swept = PerFamily::default();
                return Err(TransportError::Conflict.into());
            }
        }
        let Some(refused) = refused else { return Ok(()) };
        let is_refused =
            matches!(refused.error, TransportError::Refused(..) | TransportError::Conflict);
        // A part of the sync was done, or may have been done.
        if report.messages > 0 || !is_refused {
            let swept = self.last.take().map_or(self.swept, |last| last.families);
            // The preparation adds alone, so that no endpoint has left.
            let no_endpoint_left = is_refused && !has_switched;
            self.swept = if no_endpoint_left { swept } else { PerFamily::default() };
        }
        Err(refused)
    }

    /// Deletes the chains that a full sync found unused, perhaps another program's, if the kernel
    /// accepts that at once. If not, the chains wait until they are stale.
    fn delete_unused_chains(&mut self) {
        if let Err(error) = self.delete_chains(|_| true) {
            tracing::debug!(err = %ErrorChain(&error), "Deferring the deletion of unused chains");
        }
    }

    /// Deletes chains that have been unused for a while. Returns false if that fails. Unused chains
    /// do no harm, so that a failure is no reason to repeat the sync.
    fn delete_stale_chains(&mut self) -> bool {
        let (now, age) = (now(), self.stale_for);
        let result = self.delete_chains(|since| now.saturating_duration_since(since) >= age);
        if let Err(error) = &result {
            tracing::warn!(
                err = %ErrorChain(error),
                "Failed to delete unused chains; the next sync is a full one"
            );
            self.swept = self.last.take().map(|last| last.families).unwrap_or_default();
            // Another program's rules may lead there, and a full sync reads everything.
            self.stale_for = (2 * self.stale_for).min(LONGEST_STALE_FOR);
        }
        result.is_ok()
    }

    /// Deletes the stale chains that are due: by and by, for the sake of other programs and of the
    /// kernel's memory, as [`parts`] are. Returns the first error, after trying the others.
    fn delete_chains(&mut self, is_due: impl Fn(Instant) -> bool) -> Result<(), TransportError> {
        let Some(last) = &mut self.last else { return Ok(()) };
        let mut due = Vec::new();
        for family in self.config.families() {
            let stale = last.tables.get(family.into()).stale_chains.iter();
            let of_family = stale.filter(|(_, since)| is_due(**since));
            due.extend(of_family.map(|(chain, _)| (family, chain.clone())));
        }
        let mut result = Ok(());
        for some in due.chunks((self.undivided / 4).max(1)) {
            let mut transaction = Transaction::new();
            for (family, chain) in some {
                transaction.delete_chain(&self.config.table(*family), chain.clone());
            }
            match self.transport.commit(&transaction) {
                Ok(_) => some.iter().for_each(|(family, chain)| {
                    last.tables.get_mut((*family).into()).stale_chains.remove(chain);
                }),
                Err(error) => result = result.and(Err(error)),
            }
        }
        if result.is_ok() && !due.is_empty() {
            self.stale_for = STALE_FOR;
        }
        result
    }

    fn listener(&self) -> MutexGuard<'_, Weak<Membership>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(message: &str, error: TransportError) -> ProxierError {
        ProxierError::backend(Mode::NFTABLES, message, error)
    }
}

#[async_trait]
impl Proxier for NftProxier {
    fn profile(&self) -> Profile {
        let capabilities = match self.hashes {
            true => PROFILE.capabilities,
            false => PROFILE
                .capabilities
                .with_at_most(LbAlgorithm::SourceHash, 0)
                .with_at_most(LbAlgorithm::Maglev, 0),
        };
        Profile {
            capabilities,
            guards_loopback: self.config.families.v4,
            is_beside: self.config.is_beside,
            most_listed: (self.undivided / ELEMENTS_OF_OBJECT).max(1),
            ..PROFILE
        }
    }

    /// Keeps other hosts from loopback addresses if node ports are to be served on them. The rules
    /// are replaced by those of the first sync.
    fn prepare(&mut self, node: &NodeConfig) -> Result<(), ProxierError> {
        if !self.config.families.v4 || !node.serves_localhost() {
            return Ok(());
        }
        let table = self.config.table(Family::Ip);
        let mut transaction = Transaction::new();
        table::guard_loopback(&table, &mut transaction);
        let held = self.transport.read(&table, Elements::Omit);
        self.transport.release();
        let is_awake = held.is_ok_and(|held| held.is_none_or(|held| !held.dormant));
        let woken = if is_awake { Ok(()) } else { self.wake(&table) };
        let result = woken.and_then(|()| self.transport.commit(&transaction));
        result.map(drop).map_err(|error| Self::error("cannot guard loopback addresses", error))
    }

    /// Blocks for as long as the kernel takes to commit.
    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        // A resync finds unused chains, and whether they are still there.
        let cleanup_failed = !change.is_resync() && !self.delete_stale_chains();
        let mut report = self.sync_changes(change)?;
        report.cleanup_failed = cleanup_failed;
        report.requeue_after = match &self.last {
            Some(last) => {
                let stale = last.stale_since().map(|since| since + self.stale_for);
                let due = last.earlier_until().into_iter().chain(stale).min();
                due.map(|due| due.saturating_duration_since(now()))
            }
            None => Some(DOUBTED_FOR),
        };
        Ok(report)
    }

    fn compare(
        &mut self,
        state: &State,
        service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        self.find_drift(state, service)
            .map_err(|error| Self::error("cannot read the tables", error))
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.last = None;
        self.sweeper.clear();
        delete_tables(&self.config, self.transport.as_mut())
    }

    fn monitor(&self) -> Option<Box<dyn proxier::Monitor>> {
        // Commits of other programs look like those of a program that this backend runs.
        if self.own_ports.is_empty() {
            return None;
        }
        match Listener::open(
            &self.own_ports,
            self.config.families().map(|family| self.config.table(family)).collect(),
        ) {
            Ok(listener) => {
                *self.listener() = Arc::downgrade(&listener.membership());
                Some(Box::new(Monitor { listener, noted: self.mending.noted.clone() }))
            }
            Err(error) => {
                tracing::warn!(
                    err = %ErrorChain(&error),
                    "Changes by other programs are noticed only by the periodic full sync"
                );
                None
            }
        }
    }
}

#[cfg(not(test))]
fn now() -> Instant {
    Instant::now()
}

/// The time by the clock of the runtime, which tests can stop.
#[cfg(test)]
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns the transaction that makes a kernel without the tables hold `state`, always in the same
/// order.
pub fn render(config: &NftConfig, state: &State) -> Transaction {
    let swept = PerFamily { v4: true, v6: true };
    let have = Have::Read { dumps: &PerFamily::default(), last: None, swept };
    let (changes, _) = plan(config, state, have);
    let (mut parts, _) = Parts::new(config, changes, state, usize::MAX);
    parts.next().map(|(_, transaction)| transaction).unwrap_or_default()
}
