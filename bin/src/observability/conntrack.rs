//! The kernel's table of connections: how full the table is, and which Services fill it.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    net::SocketAddr,
    panic::resume_unwind,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use switchyard::conntrack::{StuckLimit, Usage, UsageReader};
use switchyard_core::{
    error::ErrorChain,
    model::{Protocol, ServiceName},
    runner::{EngineEvent, Observer},
    state::ResolvedServicePort,
    transition::Transition,
};
use switchyard_kernel::netlink::Error;
use tokio::{
    task,
    time::{MissedTickBehavior, interval},
};

/// The least time between two questions to the kernel.
const FRESH: Duration = Duration::from_secs(1);
/// The least time between two walks over the table.
const LEAST_PERIOD: Duration = Duration::from_secs(10);
/// The most destinations that are counted one by one, whatever clients connect to.
const MOST_COUNTED: usize = 1 << 16;
/// The share of the limit, in percent, at which the table is nearly full.
pub const NEARLY_FULL: u64 = 80;
/// The number of Services that are named.
pub const LARGEST: usize = 10;

/// The use of the kernel's table, asked for at most once a second, however many ask.
#[derive(Debug, Default)]
pub struct TableUsage {
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
pub(super) struct Last {
    reader: Option<UsageReader>,
    read: Option<Instant>,
    usage: Option<Usage>,
}

impl TableUsage {
    /// Returns the use of the table. `None` if the kernel cannot be asked, as without
    /// CAP_NET_ADMIN.
    pub fn get(&self) -> Option<Usage> {
        let mut last = self.lock();
        if last.read.is_none_or(|read| read.elapsed() >= FRESH) {
            last.usage = last.ask().map_or_else(
                |error| {
                    tracing::debug!(err = %ErrorChain(&error), "Failed to read conntrack's statistics");
                    None
                },
                Some,
            );
            // Those who waited for a slow answer take it.
            last.read = Some(Instant::now());
        }
        last.usage
    }

    /// Waits while the kernel is asked, and has others wait.
    pub(super) fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Last {
    fn ask(&mut self) -> Result<Usage, Error> {
        match &mut self.reader {
            Some(reader) => reader.read(),
            none => none.insert(UsageReader::open()?).read(),
        }
    }
}

/// The Service of each address where Services are served, for counts of the table's entries. Node
/// ports, whose addresses other programs share, are left out.
#[derive(Debug, Default)]
pub struct Destinations {
    services: Mutex<HashMap<(Protocol, SocketAddr), ServiceName>>,
}

/// The entries of the table, by what they lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares<T> {
    /// The destinations of most entries, such as Services, in descending order; at most [`LARGEST`].
    pub largest: Vec<(T, u64)>,
    /// The entries that lead to others of the kind.
    pub others: u64,
    /// The entries that lead to nothing of the kind.
    pub elsewhere: u64,
    /// The connections to all of the kind that are [stuck](StuckLimit::is_stuck); `None` if the
    /// node's settings do not show that.
    pub stuck: Option<u64>,
}

/// Counts the entries of the table of this thread's namespace, by what `name` makes of their
/// original destinations.
///
/// # Errors
/// If the kernel cannot be asked.
pub fn count<T: Clone + Hash + Ord>(
    name: impl Fn(Protocol, SocketAddr) -> Option<T>,
) -> Result<Shares<T>, Error> {
    let mut counts: HashMap<T, u64> = HashMap::new();
    let (mut others, mut elsewhere, mut stuck) = (0, 0, 0);
    let limit = StuckLimit::read();
    UsageReader::open()?.flows(|flow| {
        let Some(named) = name(flow.protocol, flow.destination) else { return elsewhere += 1 };
        stuck += u64::from(limit.is_some_and(|limit| limit.is_stuck(flow)));
        let is_full = counts.len() >= MOST_COUNTED;
        match counts.entry(named) {
            Entry::Occupied(mut count) => *count.get_mut() += 1,
            Entry::Vacant(_) if is_full => others += 1,
            Entry::Vacant(none) => {
                none.insert(1);
            }
        }
    })?;
    let mut largest: Vec<(T, u64)> = counts.into_iter().collect();
    largest.sort_by(|(a, most), (b, other)| other.cmp(most).then_with(|| a.cmp(b)));
    let rest = largest.split_off(largest.len().min(LARGEST));
    others += rest.into_iter().map(|(_, count)| count).sum::<u64>();
    Ok(Shares { largest, others, elsewhere, stuck: limit.map(|_| stuck) })
}

impl Destinations {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Protocol, SocketAddr), ServiceName>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the addresses of these Service ports.
    pub fn of<'a>(ports: impl IntoIterator<Item = &'a ResolvedServicePort>) -> Self {
        Self { services: Mutex::new(ports.into_iter().flat_map(named_addresses).collect()) }
    }

    fn synced(&self, change: &Transition<'_>) {
        if change.is_resync() {
            let all = Self::of(change.after().service_ports.values().map(|port| &**port));
            std::mem::swap(&mut *self.lock(), &mut *all.lock());
            return;
        }
        // An address may go from one Service to another, in any order.
        let mut services = self.lock();
        for at in change.ports().filter_map(|port| port.before).flat_map(|port| addresses(port)) {
            services.remove(&at);
        }
        for port in change.ports().filter_map(|port| port.after) {
            services.extend(named_addresses(port));
        }
    }

    /// Counts the entries of the table of this thread's namespace by Service.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn count(&self) -> Result<Shares<ServiceName>, Error> {
        // A sync must not wait for the walk.
        let services = self.lock().clone();
        count(|protocol, at| services.get(&(protocol, at)).cloned())
    }
}

/// Counts once a period, and hands the counts to `publish`, `None` if they failed. Ends only by a
/// panic of `count`, which panics here as well.
pub async fn count_for_ever<T: Send + 'static>(
    period: Duration,
    count: impl Fn() -> Result<T, Error> + Clone + Send + 'static,
    publish: impl Fn(Option<T>),
) {
    let mut ticks = interval(period.max(LEAST_PERIOD));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match task::spawn_blocking(count.clone()).await {
            Ok(Ok(shares)) => publish(Some(shares)),
            Ok(Err(error)) => {
                tracing::warn!(
                    err = %ErrorChain(&error),
                    "Failed to count the entries of connection tracking"
                );
                publish(None);
            }
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime ends.
                Err(_) => return,
            },
        }
    }
}

fn addresses(port: &ResolvedServicePort) -> impl Iterator<Item = (Protocol, SocketAddr)> {
    let protocol = port.id.name.protocol;
    port.frontends
        .iter()
        .filter_map(move |front| Some((protocol, SocketAddr::new(front.at.ip()?, front.port))))
}

fn named_addresses(
    port: &ResolvedServicePort,
) -> impl Iterator<Item = ((Protocol, SocketAddr), ServiceName)> {
    addresses(port).map(|at| (at, port.id.name.service.clone()))
}

impl Observer for Destinations {
    fn on_event(&self, event: &EngineEvent<'_>) {
        if let EngineEvent::Synced(outcome) = event {
            self.synced(&outcome.change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_count_that_panics_is_a_task_that_panics() {
        let count = || -> Result<(), Error> { panic!("as a defect") };
        let counting = tokio::spawn(count_for_ever(Duration::ZERO, count, |_| {}));
        assert!(counting.await.unwrap_err().is_panic());
    }
}
