//! Removal of conntrack entries that contradict the resolved state.
//!
//! A UDP or SCTP flow goes where its conntrack entry says for as long as packets come, whatever
//! the ruleset says meanwhile. So when an endpoint goes, or a frontend goes or comes, entries that
//! send flows elsewhere than the ruleset would have to go too. TCP connections end themselves and
//! are never touched.
//!
//! [`Reconciler::synced`] compares a synced state with the one before and notes which frontends may
//! have stale flows; it touches no kernel. A thread of the [`Reconciler`] asks the kernel for the
//! flows to those frontends and deletes the stale ones, again and again until it succeeds:
//!
//! | original destination                        | stale                                            |
//! |---------------------------------------------|--------------------------------------------------|
//! | a frontend of a Service port                | unless an endpoint answers that still serves it  |
//! | a frontend that was a Service port's before | if an endpoint of that Service port answers      |
//!
//! An endpoint that terminates or that topology leaves out keeps its flows while it serves. The
//! first row includes flows that nobody redirected, begun before the frontend was there. A node
//! port is the port on the node's own addresses, as they are when the kernel is asked; the same
//! port number on other hosts is nobody's. At the first sync all frontends are looked at, by the
//! first row; what happened to flows of Services that were deleted before cannot be known.
//!
//! Only zone 0 is looked at, which is where Services are unless somebody assigns zones in `raw`
//! chains. The iptables, IPVS and nftables backends need this crate; under the userspace backend
//! the proxy answers instead of endpoints, so that every flow would look stale.
//!
//! What comes while the worker is busy is not lost: before it deletes, it asks whether a newer sync
//! has a say, and leaves such flows to the next round. Only a flow to a new endpoint that begins
//! between the commit of a ruleset and [`Reconciler::synced`], while the worker is at that very
//! frontend, may have to begin again.
//!
//! # Cost
//!
//! The kernel walks its whole table for every question, and copies only what the question is
//! about: a port, or all of UDP when many Services changed. Answers are read through one buffer of
//! 64 KiB, and deletions go out while they are read, so memory does not grow with the table.

mod addresses;
mod flow;
mod job;
mod ledger;
mod queue;
mod table;
#[cfg(test)]
mod testing;
mod worker;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use proxy_core::{
    model::{IpFamily, Protocol, ServicePortId},
    state::{Delta, State},
};

use self::{ledger::Ledger, queue::Queue, table::Table};

/// Why entries cannot be removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no socket to the kernel.
    #[error("cannot reach the kernel's connection tracking: {0}")]
    Open(#[source] netlink::Error),
    /// The worker could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// What one attempt did in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The family.
    pub family: IpFamily,
    /// How long it took.
    pub duration: Duration,
    /// Entries that the kernel showed.
    pub scanned: usize,
    /// Entries that were deleted.
    pub deleted: usize,
    /// Whether it is done; if not, it will be repeated.
    pub complete: bool,
}

/// Removes stale entries, in the network namespace in which it was started, until it is dropped.
#[derive(Debug)]
pub struct Reconciler {
    ledger: Mutex<Ledger>,
    queue: Arc<Queue>,
    worker: Option<JoinHandle<()>>,
}

impl Reconciler {
    /// Starts the worker, for the calling thread's network namespace. `report` is called on the
    /// worker's thread after every attempt.
    pub fn start(report: impl FnMut(Report) + Send + 'static) -> Result<Self, Error> {
        let queue = Arc::new(Queue::default());
        let mut table = Table::open().map_err(Error::Open)?;
        let theirs = Arc::clone(&queue);
        let body = move || {
            worker::run(
                &theirs,
                |group, jobs, tally| table.sweep(group, jobs, &theirs, tally),
                report,
            );
        };
        let worker =
            thread::Builder::new().name("conntrack".into()).spawn(body).map_err(Error::Thread)?;
        Ok(Self { ledger: Mutex::default(), queue, worker: Some(worker) })
    }

    /// To be called after each successful sync, with what was synced. Never waits for the kernel;
    /// takes microseconds for each UDP or SCTP port in the delta, and for each in the state the
    /// first time.
    pub fn synced(&self, state: &State, delta: &Delta) {
        let mut ledger = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.synced(state, delta, &self.queue);
    }

    /// Waits until everything known to be stale is gone, or this time is over; says which.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        self.queue.wait_idle(timeout)
    }
}

impl Drop for Reconciler {
    fn drop(&mut self) {
        self.queue.stop();
        if let Some(worker) = self.worker.take() {
            // A panic of the worker was reported when it happened.
            let _ = worker.join();
        }
    }
}

/// Families and protocols that are looked at apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) family: IpFamily,
    pub(crate) protocol: Protocol,
}

impl Group {
    pub(crate) const COUNT: usize = 4;

    /// All groups, those of a family together.
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self { family: IpFamily::V4, protocol: Protocol::Udp },
        Self { family: IpFamily::V4, protocol: Protocol::Sctp },
        Self { family: IpFamily::V6, protocol: Protocol::Udp },
        Self { family: IpFamily::V6, protocol: Protocol::Sctp },
    ];

    /// The group of a Service port; `None` for TCP, which has none.
    pub(crate) fn of(id: &ServicePortId) -> Option<Self> {
        let group = Self { family: id.family, protocol: id.name.protocol };
        (group.protocol != Protocol::Tcp).then_some(group)
    }

    /// The group's place in [`Group::ALL`].
    pub(crate) fn index(self) -> usize {
        let first = match self.family {
            IpFamily::V4 => 0,
            IpFamily::V6 => 2,
        };
        first + usize::from(self.protocol == Protocol::Sctp)
    }
}
