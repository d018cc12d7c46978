//! The removal of clients that are remembered at endpoints which left their pool.
//!
//! Packets add clients to maps, as many and as fast as the traffic brings them, and the kernel takes time
//! in proportion to the square of their number to show them. So maps are read by threads of their own,
//! after the commit that removed the endpoints: a sync never waits for clients. Large maps have a thread
//! apart, so that they do not hold up the others. No rule adds a client at an endpoint that is not in
//! the set of the pool's endpoints, so that a sweep comes to an end whatever traffic there is.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    ops::ControlFlow,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use switchyard_core::error::Chain;

use crate::ruleset::{
    ElementData, ElementDump, Family, Key, SetDef, SetName, Table, Transaction, Transport,
    TransportError, TransportKind, Value,
};

/// The most clients that the thread for small maps reads of a map: 0.2 s.
const MOST_OF_SMALL: usize = 65_536;
/// The most clients that are collected before they are removed.
const MOST_COLLECTED: usize = 65_536;
/// The clients that one transaction removes.
const PORTION: usize = 512;
/// The wait before a map is read again. A packet on its way may have drawn an endpoint just before the
/// endpoint left, and add its client just after; a reading may leave clients out.
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

/// The threads that sweep. They start with the first sweep, in the network namespace of the thread that
/// asks for it, and end when the sweeper is dropped.
pub(crate) struct Sweeper {
    kind: TransportKind,
    /// The transports of the threads, until these start.
    transports: Vec<Box<dyn Transport>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    lanes: Mutex<Lanes>,
    changed: Condvar,
    stops: AtomicBool,
}

type MapKey = (Family, SetName);
/// The sweeps that wait for a thread, at most one of a map.
type Lane = BTreeMap<MapKey, Job>;
/// The endpoints at which clients stay remembered. A thread holds the lock while it removes clients.
type Endpoints = Arc<Mutex<HashSet<Value>>>;

#[derive(Default)]
struct Lanes {
    waiting: [Lane; 2],
    /// The sweeps that the threads are at.
    running: [Option<(MapKey, Endpoints)>; 2],
}

/// The place of the lane for small maps, and for large ones, in [`Lanes`].
const SMALL: usize = 0;
const LARGE: usize = 1;

struct Job {
    table: Table,
    map: Arc<SetDef>,
    endpoints: Endpoints,
    due: Instant,
    /// The wait before the next attempt.
    wait: Duration,
    /// Whether the map was read once.
    is_read: bool,
}

/// The result of an attempt.
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
        Self { kind, transports, threads, shared: Arc::default() }
    }

    /// Opens the transports of the threads, and returns the netlink ports from which the threads commit,
    /// in the network namespace of this thread.
    ///
    /// # Errors
    /// If a transport cannot be opened.
    pub(crate) fn open(&mut self) -> Result<Vec<u32>, TransportError> {
        while self.threads.is_empty() && self.transports.len() < 2 {
            self.transports.push(self.kind.open()?);
        }
        Ok(self.transports.iter().filter_map(|transport| transport.port()).collect())
    }

    /// Keeps clients at these endpoints as well, whatever sweep is under way: to be called before the
    /// endpoints come.
    pub(crate) fn keep(&self, sweeps: &[(Table, Sweep)]) {
        let lanes = self.shared.lock();
        for (table, Sweep { map, endpoints, .. }) in sweeps {
            let key = (table.family, map.name.clone());
            let waiting = lanes.waiting.iter().filter_map(|lane| lane.get(&key));
            let running = lanes.running.iter().flatten().filter(|(running, _)| *running == key);
            let known = waiting.map(|job| &job.endpoints).chain(running.map(|(_, known)| known));
            known.for_each(|known| locked(known).extend(endpoints));
        }
    }

    /// Sweeps the maps that are due from now on. A sweep takes the place of one of the same map that waits.
    pub(crate) fn sweep(&mut self, mut sweeps: Vec<(Table, Sweep)>) {
        sweeps.retain(|(_, sweep)| sweep.is_due);
        if sweeps.is_empty() {
            return;
        }
        if let Err(error) = self.start() {
            tracing::error!(
                err = %Chain(&*error),
                "Clients of removed endpoints are remembered until they time out"
            );
            return;
        }
        let mut lanes = self.shared.lock();
        for (table, Sweep { map, endpoints, .. }) in sweeps {
            let key = (table.family, map.name.clone());
            let endpoints = Arc::new(Mutex::new(endpoints));
            let (due, wait, is_read) = (Instant::now(), AGAIN, false);
            lanes.waiting[LARGE].remove(&key);
            lanes.waiting[SMALL].insert(key, Job { table, map, endpoints, due, wait, is_read });
        }
        drop(lanes);
        self.shared.changed.notify_all();
    }

    /// Drops all sweeps that wait.
    pub(crate) fn clear(&mut self) {
        self.shared.lock().waiting = Default::default();
    }

    fn start(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        if !self.threads.is_empty() {
            return Ok(());
        }
        self.open()?;
        for (lane, mut transport) in mem::take(&mut self.transports).into_iter().enumerate() {
            let shared = self.shared.clone();
            let thread = thread::Builder::new().name("affinity".to_owned());
            self.threads.push(thread.spawn(move || shared.run(lane, transport.as_mut()))?);
        }
        Ok(())
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        // A thread has seen the flag, or waits, once this lock is held.
        drop(self.shared.lock());
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic was printed by then.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        locked(&self.lanes)
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// Does the jobs of a lane until the sweeper is dropped.
    fn run(&self, lane: usize, transport: &mut dyn Transport) {
        while let Some((key, mut job)) = self.next(lane) {
            let attempt = self.attempt(&job, lane, transport);
            self.lock().running[lane] = None;
            let to = match attempt {
                Ok(Outcome::Done) => continue,
                Ok(Outcome::Again) => lane,
                Ok(Outcome::TooLarge) => LARGE,
                Err(error) => {
                    tracing::warn!(
                        map = job.map.name.as_str(),
                        err = %Chain(&error),
                        "Cannot forget clients of removed endpoints; trying again"
                    );
                    job.wait = job.wait.max(RETRY);
                    lane
                }
            };
            job.is_read = true;
            if to == lane {
                job.due = Instant::now() + job.wait;
                job.wait = (job.wait * 2).min(LONGEST_WAIT);
            }
            let mut lanes = self.lock();
            // A sweep that was asked for meanwhile knows the present endpoints.
            if !lanes.waiting.iter().any(|lane| lane.contains_key(&key)) {
                lanes.waiting[to].insert(key, job);
            }
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
            let next = lanes.waiting[lane].iter().min_by_key(|(_, job)| job.due);
            let next = next.map(|(key, job)| (key.clone(), job.due));
            lanes = match next {
                None => self.changed.wait(lanes).unwrap_or_else(PoisonError::into_inner),
                Some((key, due)) => match due.checked_duration_since(Instant::now()) {
                    Some(wait) if !wait.is_zero() => {
                        let waited = self.changed.wait_timeout(lanes, wait);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                    _ => {
                        let job = lanes.waiting[lane].remove(&key)?;
                        lanes.running[lane] = Some((key.clone(), job.endpoints.clone()));
                        return Some((key, job));
                    }
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
        let known = locked(&job.endpoints).clone();
        let mut read = 0;
        let mut gone: Vec<(Key, Value)> = Vec::new();
        let most = if lane == SMALL { MOST_OF_SMALL } else { usize::MAX };
        transport.scan_elements(table, map, &mut |client| {
            read += 1;
            gone.extend(
                at(&client).filter(|at| !known.contains(at)).map(|at| (client.element.key, at)),
            );
            match self.stops() || read >= most || gone.len() >= MOST_COLLECTED {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        for portion in gone.chunks(PORTION) {
            if self.stops() {
                break;
            }
            // An endpoint may have come back since the map was read.
            let endpoints = locked(&job.endpoints);
            let portion = portion.iter().filter(|(_, at)| !endpoints.contains(at));
            let portion: Vec<Key> = portion.map(|(key, _)| *key).collect();
            forget(transport, table, map, &portion)?;
        }
        Ok(match (read >= most, gone.is_empty() && job.is_read) {
            (true, _) => Outcome::TooLarge,
            (false, true) => Outcome::Done,
            (false, false) => Outcome::Again,
        })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Jobs and endpoints are whole after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes clients. Some may have timed out since they were read.
fn forget(
    transport: &mut dyn Transport,
    table: &Table,
    map: &Arc<SetDef>,
    clients: &[Key],
) -> Result<(), TransportError> {
    let mut transaction = Transaction::new();
    transaction.delete_elements(table, map, clients.to_vec());
    match transport.commit(&transaction) {
        Err(error) if error.is_missing() => match clients.split_at(clients.len() / 2) {
            ([], _) => Ok(()),
            (first, second) => {
                forget(transport, table, map, first)?;
                forget(transport, table, map, second)
            }
        },
        result => result.map(drop),
    }
}
