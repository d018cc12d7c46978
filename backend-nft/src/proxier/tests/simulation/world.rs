//! The model of the kernel with what happens to those who use it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use switchyard_core::{
    model::ServiceName,
    objects::{Event, Kind, ObjectKey},
    proxier::{Profile, Proxier, ProxierError, SyncReport},
    testing::simulation::{Happenings, lock},
    transition::Transition,
};
use switchyard_kernel::{
    netlink::Error,
    nftables::{
        ChainBase, CommitStats, Elements, Family, Refusal, Table, Transaction, Transport,
        TransportError,
        testing::{InterceptingTransport, Kernel},
    },
};
use tokio::time::{Instant, sleep};

use super::super::super::{NftProxier, last_synced::LastSynced};
use crate::layout::names::KUBE_PROXY;

/// A fault that a commit meets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Fault {
    /// An operation is refused for this reason; without a number, the commit as a whole is.
    Refused(Option<usize>, i32),
    /// The commit takes effect, and the answer is lost.
    #[default]
    Lost,
    /// Another program changes the tables just before.
    Overtaken(usize),
    /// The process ends, and the commit has taken effect or not.
    Crash(bool),
}

/// The kernel with what happens to its transports.
#[derive(Default)]
pub(super) struct World {
    pub(super) kernel: Kernel,
    pub(super) happened: Happenings<Fault>,
    pub(super) unreadable: bool,
    /// The damage of other programs during the next reading of a table.
    pub(super) changing: Option<usize>,
    /// The commits of this process since its sync began.
    pub(super) commits: usize,
    pub(super) reads: usize,
    /// Whether the API server was restored from a backup, and nothing was listed since.
    pub(super) is_restored: bool,
    /// The Services that were removed and are still served, since when, and whether a list was
    /// being synced then.
    pub(super) removals: HashMap<ServiceName, (Instant, bool)>,
    /// The Services of the state that was synced last.
    pub(super) served: BTreeSet<ServiceName>,
    /// Whether the last sync was of a part of a list.
    pub(super) is_in_list: bool,
    /// The time that a sync takes.
    pub(super) sync_takes: Duration,
    /// The numbers of what the backend remembers after its last sync.
    pub(super) remembered: [usize; 5],
}

/// The backend of one process, whose syncs take simulated time.
pub(super) struct Slow(pub(super) NftProxier, pub(super) Arc<Mutex<World>>);

#[async_trait]
impl Proxier for Slow {
    fn profile(&self) -> Profile {
        self.0.profile()
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let takes = lock(&self.1).sync_takes;
        sleep(takes).await;
        let result = self.0.sync(change).await;
        lock(&self.1).remembered =
            self.0.last.as_ref().map(LastSynced::entries).unwrap_or_default();
        result
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.0.clean_up().await
    }
}

impl World {
    /// Records an event of the source, which may remove objects: a Service is removed, or back.
    pub(super) fn note_told(&mut self, event: &Event, removes: bool) {
        if let Event::Replace { .. } = event {
            if removes {
                self.happened.seen.insert("a list lacked what was known");
            }
            if std::mem::take(&mut self.is_restored) {
                self.happened.seen.insert("a list was older than what came before");
            }
        }
        let service = |key: &ObjectKey| ServiceName::new(&key.namespace, &key.name);
        match event {
            Event::Delete(key)
                if key.kind == Kind::Service && self.served.contains(&service(key)) =>
            {
                self.removals.insert(service(key), (Instant::now(), self.is_in_list));
            }
            Event::Apply(object) if object.key().kind == Kind::Service => {
                self.removals.remove(&service(&object.key()));
            }
            Event::Replace { kind: Kind::Service, objects, .. } => {
                for object in objects {
                    self.removals.remove(&service(&object.key()));
                }
            }
            _ => {}
        }
    }

    /// Changes a table as another program may do: deletes the table, empties a chain, or takes an
    /// element from a set.
    pub(super) fn damage(&mut self, number: usize) {
        let family = Family::ALL[number % 2];
        let table = Table::new(family, KUBE_PROXY);
        let Some(dump) = self.kernel.ruleset().read(&table, Elements::Include, 0) else { return };
        let mut transaction = Transaction::new();
        match number / 2 % 8 {
            0 => transaction.delete_table(&table),
            1 => {
                let chains: Vec<_> = dump.chains.keys().cloned().collect();
                // A layout of before may have none.
                let Some(chain) = chains.get(number / 16 % chains.len().max(1)) else { return };
                transaction.flush_chain(&table, chain.clone());
            }
            _ => {
                let sets = dump.sets.values().filter_map(|set| {
                    let definition = Arc::new(set.definition.clone().ok()?);
                    Some((definition, set.elements.as_ref()?.first()?.element.key))
                });
                let sets: Vec<_> = sets.collect();
                let Some((set, key)) = sets.get(number / 16 % sets.len().max(1)) else { return };
                transaction.delete_elements(&table, set, vec![*key]);
            }
        }
        self.kernel.commit_of_other(&transaction).expect("what is there can be deleted");
        // What others do, packets may suffer from.
        self.kernel.take_history();
        self.happened.is_damaged = true;
    }
}

impl World {
    /// Programs a table as another version or kube-proxy would have it, while no process of ours
    /// runs: with sets of the same names and other types, with chains at other priorities, or with
    /// chains and sets of its own beside ours.
    pub(super) fn take_over(&mut self, number: usize) {
        let table = Table::new(Family::ALL[number % 2], KUBE_PROXY);
        let Some(dump) = self.kernel.ruleset().read(&table, Elements::Include, 0) else { return };
        let definitions = dump.sets.values().filter_map(|set| set.definition.clone().ok());
        let mut transaction = Transaction::new();
        let what = match number / 2 % 3 {
            0 => {
                transaction.delete_table(&table);
                transaction.add_table(&table);
                for mut definition in definitions {
                    definition.key.truncate(1);
                    definition.interval = false;
                    transaction.add_set(&table, Arc::new(definition));
                }
                "a version with sets of other types came before"
            }
            1 => {
                transaction.delete_table(&table);
                transaction.add_table(&table);
                for chain in dump.chains.into_values() {
                    if let ChainBase::Base(mut base) = chain.base {
                        base.priority += 1;
                        transaction.add_base_chain(&table, base);
                    }
                }
                "a version with chains at other priorities came before"
            }
            _ => {
                for mut definition in definitions {
                    definition.name = format!("{}-of-before", definition.name).into();
                    transaction.add_set(&table, Arc::new(definition));
                }
                for name in ["mark-for-masquerade", "service-2QRHZV4L-ns/a/tcp/http"] {
                    transaction.add_chain(&table, name);
                }
                "a program with chains and sets of its own came before"
            }
        };
        self.kernel.commit_of_other(&transaction).expect("the kernel takes another layout");
        self.kernel.take_history();
        self.happened.is_damaged = true;
        self.happened.seen.insert(what);
    }
}

/// The world of the process of this number, which lives.
fn alive(world: &Mutex<World>, process: usize) -> Result<MutexGuard<'_, World>, TransportError> {
    let world = lock(world);
    match world.happened.process == process && !world.happened.has_crashed {
        true => Ok(world),
        false => Err(Error::NoAnswer.into()),
    }
}

pub(super) fn transport(world: &Arc<Mutex<World>>, process: usize) -> InterceptingTransport {
    let (kernel, at_read, world) = (lock(world).kernel.clone(), world.clone(), world.clone());
    let commits = move |kernel: &mut dyn Transport, transaction: &Transaction| {
        alive(&world, process)?.commit(kernel, transaction)
    };
    InterceptingTransport::committing(Box::new(kernel), commits).reading(move |table, set| {
        let mut world = alive(&at_read, process)?;
        if set.is_some() {
            return Ok(());
        }
        world.reads += 1;
        if std::mem::take(&mut world.unreadable) {
            world.happened.has_met_faults = true;
            world.happened.seen.insert("a read was interrupted");
            return Err(Error::Interrupted.into());
        }
        if let Some(number) = world.changing.take() {
            let read = world.kernel.ruleset().read(table, Elements::Include, 0);
            world.damage(number);
            world.happened.is_unreported = true;
            world.happened.seen.insert("a table changed while it was read");
            return Err(TransportError::Changing(read.map(Box::new)));
        }
        Ok(())
    })
}

impl World {
    fn commit(
        &mut self,
        kernel: &mut dyn Transport,
        transaction: &Transaction,
    ) -> Result<CommitStats, TransportError> {
        if transaction.is_empty() {
            return Ok(CommitStats::default());
        }
        let fault = self.happened.next_fault();
        let crash = |world: &mut World, what| {
            world.happened.has_crashed = true;
            world.happened.seen.insert(what);
            if world.commits > 0 {
                world.happened.seen.insert("a process ended between two commits of a sync");
            }
            Err(Error::NoAnswer.into())
        };
        match fault {
            Some(Fault::Refused(operation, errno)) => {
                let operations = transaction.operations();
                let operation = operation.map_or(usize::MAX, |n| n % operations.len());
                let subject = operations.get(operation).map(|operation| operation.subject());
                let subject = subject.unwrap_or_else(|| "commit the transaction".to_owned());
                let reason = std::io::Error::from_raw_os_error(errno).to_string();
                let errno = Some(errno);
                let refusal = Refusal { operation, element: None, subject, errno, reason };
                return Err(TransportError::Refused(refusal, Vec::new()));
            }
            Some(Fault::Crash(false)) => {
                return crash(self, "a process ended before a commit");
            }
            Some(Fault::Overtaken(number)) => {
                self.damage(number);
                self.happened.is_unreported = true;
            }
            Some(Fault::Lost | Fault::Crash(true)) | None => {}
        }
        let result = kernel.commit(transaction);
        if matches!(result, Err(TransportError::Conflict)) {
            self.happened.seen.insert("a commit conflicted");
        }
        if let Err(error) = &result
            && !self.happened.is_damaged
            && !self.happened.has_met_faults
        {
            panic!("the kernel refuses what no fault explains: {error}\n{transaction}");
        }
        self.commits += 1;
        if self.commits == 3 {
            self.happened.seen.insert("a sync had three transactions");
        }
        match fault {
            Some(Fault::Lost) => {
                self.happened.seen.insert("an answer was lost");
                Err(Error::NoAnswer.into())
            }
            Some(Fault::Crash(true)) => crash(self, "a process ended after a commit"),
            _ => result,
        }
    }
}
