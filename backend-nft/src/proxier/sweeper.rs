//! The removal of clients that are remembered at endpoints which left their pool.
//!
//! The kernel takes time in proportion to the square of their number to show them. So maps are read
//! by threads of their own, one of which is for large maps: a sync never waits for clients. No rule
//! adds a client at an endpoint that is not in the set of the pool's endpoints, so that a sweep
//! comes to an end whatever traffic there is.

mod endpoints;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    ops::ControlFlow,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use switchyard_core::error::ErrorChain;
use switchyard_kernel::nftables::{
    ElementData, ElementDump, Family, Key, SetDef, SetName, Table, Transaction, Transport,
    TransportError, TransportKind, Value,
};

use self::endpoints::Endpoints;

/// The most clients that the thread for small maps reads of a map: 0.2 s.
const MOST_OF_SMALL: usize = 65_536;
/// The most clients that are collected before they are removed.
const MOST_COLLECTED: usize = 65_536;
/// The clients that one transaction removes.
const PORTION: usize = 512;
/// The wait before a map is read again. A packet on its way may have selected an endpoint just
/// before the endpoint left, and add its client just after; a reading may leave clients out.
const AGAIN: Duration = Duration::from_millis(10);
/// The wait after a failure.
const RETRY: Duration = Duration::from_millis(200);
/// The longest wait: each wait is twice the one before.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A map of clients whose pool changes, and the endpoints at which clients stay remembered.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(crate) map: Arc<SetDef>,
    pub(crate) endpoints: HashSet<Value>,
    /// Whether endpoints left, so that their clients are to be removed.
    pub(crate) is_due: bool,
}

/// The threads that sweep. They start with the first sweep, in the network namespace of the thread
/// that asks for it, and end when the sweeper is dropped.
pub(crate) struct Sweeper {
    kind: TransportKind,
    /// The transports of the threads, until these start.
    transports: Vec<Box<dyn Transport>>,
    threads: Vec<JoinHandle<()>>,
    /// The endpoints at which clients were kept for a sync that has not succeeded yet.
    kept: HashMap<MapKey, HashSet<Value>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    lanes: Mutex<Lanes>,
    changed: Condvar,
    stops: AtomicBool,
}

type MapKey = (Family, SetName);

#[derive(Default)]
struct Lanes {
    /// The jobs, at most one of a map.
    jobs: HashMap<MapKey, Job>,
    /// The maps whose jobs wait, by the time at which they are due.
    waiting: [BTreeSet<(Instant, MapKey)>; 2],
    /// The number of the newest job.
    newest: u64,
}

/// The place of the lane for small maps, and for large ones, in [`Lanes`].
const SMALL: usize = 0;
const LARGE: usize = 1;

#[derive(Clone)]
struct Job {
    number: u64,
    table: Table,
    map: Arc<SetDef>,
    /// Those of an earlier job of the map, if there was one.
    endpoints: Arc<Endpoints>,
    place: Place,
    /// The wait before the next attempt.
    wait: Duration,
    /// Whether the map was read once.
    is_read: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In a lane, until it is due.
    Waiting(usize, Instant),
    /// With a thread, which took the job of this number. A newer one waits until the attempt is
    /// over.
    Running(u64),
}

enum Outcome {
    Done,
    /// The map has to be read again.
    Again,
    TooLarge,
}

impl Sweeper {
    /// Creates a sweeper that uses this kind of transport. Touches no kernel.
    pub(crate) fn new(kind: TransportKind) -> Self {
        let (transports, threads) = (Vec::new(), Vec::new());
        Self { kind, transports, threads, kept: HashMap::new(), shared: Arc::default() }
    }

    /// Creates a sweeper that never sweeps: its thread has ended.
    #[cfg(test)]
    pub(crate) fn without_threads() -> Self {
        let mut sweeper = Self::new(TransportKind::Netlink);
        sweeper.threads.push(thread::spawn(|| ()));
        sweeper
    }

    /// Opens the transports of the threads, and returns the netlink ports from which the threads
    /// commit, in the network namespace of this thread.
    ///
    /// # Errors
    /// If a transport cannot be opened.
    pub(crate) fn open(&mut self) -> Result<Vec<u32>, TransportError> {
        while self.threads.is_empty() && self.transports.len() < 2 {
            self.transports.push(self.kind.open()?);
        }
        Ok(self.transports.iter().filter_map(|transport| transport.port()).collect())
    }

    /// Keeps clients at these endpoints as well, whatever sweep is under way: to be called before
    /// the endpoints come.
    pub(crate) fn keep(&mut self, sweeps: &[(Table, Sweep)]) {
        for (table, Sweep { map, endpoints, .. }) in sweeps {
            let key = (table.family, map.name.clone());
            if let Some(known) = self.shared.endpoints(&key)
                && let Some(known) = &mut *known.lock()
            {
                known.extend(endpoints);
                self.kept.entry(key).or_default().extend(endpoints);
            }
        }
    }

    /// Sweeps the maps that are due from now on. What is under way keeps clients at these endpoints
    /// alone.
    pub(crate) fn sweep(&mut self, sweeps: Vec<(Table, Sweep)>) {
        let mut jobs = Vec::new();
        for (table, Sweep { map, endpoints, mut is_due }) in sweeps {
            let key = (table.family, map.name.clone());
            // Endpoints were kept for a sync that failed.
            is_due |= self.kept.remove(&key).is_some_and(|kept| !kept.is_subset(&endpoints));
            let endpoints = match self.shared.endpoints(&key) {
                Some(known) => {
                    *known.lock() = Some(endpoints);
                    known
                }
                None if is_due => Arc::new(Endpoints::new(endpoints)),
                None => continue,
            };
            if is_due {
                let place = Place::Waiting(SMALL, Instant::now());
                let (number, wait, is_read) = (0, AGAIN, false);
                jobs.push((key, Job { number, table, map, endpoints, place, wait, is_read }));
            }
        }
        let mut lanes = self.shared.lock();
        jobs.into_iter().for_each(|(key, job)| lanes.put(key, job));
        let is_idle = lanes.jobs.is_empty();
        drop(lanes);
        if is_idle {
            return;
        }
        self.shared.changed.notify_all();
        // What cannot be started waits for the next sync.
        if let Err(error) = self.start() {
            tracing::error!(
                err = %ErrorChain(&*error),
                "Cannot start the affinity sweeper; clients of removed endpoints stay remembered"
            );
        }
    }

    /// Calls all sweeps off. No client is removed after.
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        let mut lanes = self.shared.lock();
        lanes.waiting = Default::default();
        let jobs = mem::take(&mut lanes.jobs);
        drop(lanes);
        jobs.into_values().for_each(|job| *job.endpoints.lock() = None);
    }

    fn start(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        if !self.threads.is_empty() {
            return Ok(());
        }
        self.open()?;
        for (lane, mut transport) in mem::take(&mut self.transports).into_iter().enumerate() {
            let shared = self.shared.clone();
            let thread = thread::Builder::new().name("affinity".to_owned());
            match thread.spawn(move || shared.run(lane, transport.as_mut())) {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    // One lane alone would leave maps in the other.
                    self.end();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        // A thread has seen the flag, or waits, once this lock is held.
        drop(self.shared.lock());
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was printed by then.
            let _ = thread.join();
        }
        self.shared.stops.store(false, Ordering::Relaxed);
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        locked(&self.lanes)
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// The endpoints of the job of a map.
    fn endpoints(&self, key: &MapKey) -> Option<Arc<Endpoints>> {
        self.lock().jobs.get(key).map(|job| job.endpoints.clone())
    }

    /// Does the jobs of a lane until the sweeper is dropped.
    fn run(&self, lane: usize, transport: &mut dyn Transport) {
        while let Some((key, job)) = self.next(lane) {
            // A thread that ended would leave its lane without one.
            let attempt = AssertUnwindSafe(|| self.attempt(&job, lane, transport));
            let outcome = match panic::catch_unwind(attempt) {
                Ok(Ok(outcome)) => Some(outcome),
                Ok(Err(error)) => {
                    tracing::warn!(
                        map = job.map.name.as_str(),
                        err = %ErrorChain(&error),
                        "Failed to delete affinity entries of removed endpoints; retrying"
                    );
                    None
                }
                // The panic was printed by then.
                Err(_) => None,
            };
            self.lock().end(key, &job, lane, outcome);
            self.changed.notify_all();
        }
    }

    /// Waits for the next job that is due; `None` when the sweeper is dropped.
    fn next(&self, lane: usize) -> Option<(MapKey, Job)> {
        let mut lanes = self.lock();
        loop {
            if self.stops() {
                return None;
            }
            let next = lanes.waiting[lane].first();
            let wait = next.map(|(due, _)| due.saturating_duration_since(Instant::now()));
            lanes = match wait {
                None => self.changed.wait(lanes).unwrap_or_else(PoisonError::into_inner),
                Some(wait) if !wait.is_zero() => {
                    let waited = self.changed.wait_timeout(lanes, wait);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => match lanes.take(lane) {
                    Some(taken) => return Some(taken),
                    None => lanes,
                },
            };
        }
    }

    /// Reads a map once, and removes the clients at endpoints that left.
    fn attempt(
        &self,
        job: &Job,
        lane: usize,
        transport: &mut dyn Transport,
    ) -> Result<Outcome, TransportError> {
        let Job { table, map, .. } = job;
        let at = |client: &ElementDump| match client.element.data {
            ElementData::Value(at) => Some(at),
            ElementData::None | ElementData::Verdict(_) => None,
        };
        let Some(known) = job.endpoints.lock_for_removal().clone() else {
            return Ok(Outcome::Done);
        };
        let mut read = 0;
        let mut gone: Vec<(Key, Value)> = Vec::new();
        let most = if lane == SMALL { MOST_OF_SMALL } else { usize::MAX };
        let is_there = transport.scan_elements(table, map, &mut |client| {
            read += 1;
            gone.extend(
                at(&client).filter(|at| !known.contains(at)).map(|at| (client.element.key, at)),
            );
            match self.stops() || read >= most || gone.len() >= MOST_COLLECTED {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        if !is_there {
            return Ok(Outcome::Done);
        }
        for portion in gone.chunks(PORTION) {
            // An endpoint may have come back since the map was read.
            let endpoints = job.endpoints.lock_for_removal();
            let Some(endpoints) = &*endpoints else { return Ok(Outcome::Done) };
            let portion = portion.iter().filter(|(_, at)| !endpoints.contains(at));
            let portion: Vec<Key> = portion.map(|(key, _)| *key).collect();
            self.forget(transport, job, portion)?;
        }
        Ok(match (read >= most, gone.is_empty() && job.is_read) {
            (true, _) => Outcome::TooLarge,
            (false, true) => Outcome::Done,
            (false, false) => Outcome::Again,
        })
    }

    /// Removes clients. Some may have timed out since they were read.
    fn forget(
        &self,
        transport: &mut dyn Transport,
        job: &Job,
        mut clients: Vec<Key>,
    ) -> Result<(), TransportError> {
        while !self.stops() && !clients.is_empty() {
            let mut transaction = Transaction::new();
            transaction.delete_elements(&job.table, &job.map, clients.clone());
            let error = match transport.commit(&transaction) {
                Ok(_) => break,
                Err(error) if error.is_missing() => error,
                Err(error) => return Err(error),
            };
            let missing: HashSet<Key> = error
                .refusals()
                .filter_map(|refusal| refusal.element.as_deref().copied())
                .collect();
            let before = clients.len();
            clients.retain(|client| !missing.contains(client));
            // The map itself may be missing, which the next reading shows.
            if clients.len() == before {
                break;
            }
        }
        Ok(())
    }
}

impl Lanes {
    /// Puts a job in the place of one of the same map.
    fn put(&mut self, key: MapKey, mut job: Job) {
        self.newest += 1;
        job.number = self.newest;
        match self.jobs.get(&key).map(|before| before.place) {
            Some(Place::Waiting(lane, due)) => {
                self.waiting[lane].remove(&(due, key.clone()));
            }
            Some(running @ Place::Running(_)) => job.place = running,
            None => {}
        }
        if let Place::Waiting(lane, due) = job.place {
            self.waiting[lane].insert((due, key.clone()));
        }
        self.jobs.insert(key, job);
    }

    /// Takes the next job of a lane.
    fn take(&mut self, lane: usize) -> Option<(MapKey, Job)> {
        let (_, key) = self.waiting[lane].pop_first()?;
        let job = self.jobs.get_mut(&key)?;
        job.place = Place::Running(job.number);
        Some((key, job.clone()))
    }

    /// Notes the outcome of an attempt at a job that was taken; `None` after a failure.
    fn end(&mut self, key: MapKey, taken: &Job, lane: usize, outcome: Option<Outcome>) {
        let job = self.jobs.get_mut(&key);
        // All may have been called off, and another thread be at a new job.
        let Some(job) = job.filter(|job| job.place == Place::Running(taken.number)) else { return };
        let now = Instant::now();
        let (to, due) = match outcome {
            _ if job.number != taken.number => (SMALL, now),
            Some(Outcome::Done) => {
                self.jobs.remove(&key);
                return;
            }
            Some(Outcome::TooLarge) => {
                job.is_read = true;
                (LARGE, now)
            }
            again => {
                job.is_read |= again.is_some();
                let wait = if again.is_some() { job.wait } else { job.wait.max(RETRY) };
                job.wait = (wait * 2).min(LONGEST_WAIT);
                (lane, now + wait)
            }
        };
        job.place = Place::Waiting(to, due);
        self.waiting[to].insert((due, key));
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Jobs and endpoints are whole after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
