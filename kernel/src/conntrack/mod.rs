//! Removal of conntrack entries that contradict a synced state: a UDP or SCTP flow goes to the
//! address in its entry for as long as packets come, whatever the rules are. TCP is never touched.
//!
//! [`Reconciler::synced`] notes the frontends that may have stale flows: all after the first sync
//! and after [`Reconciler::doubt`]. A thread asks the kernel for their flows, deletes the stale
//! ones, and repeats that until it succeeds. Stale are
//!
//! - flows to a frontend of a Service port, unless an endpoint answers that keeps its flows: one
//!   of the port's pools, or one that [drains];
//! - flows to a frontend that was a Service port's before, if an endpoint of that port answered.
//!
//! A node port is the port on the node's own addresses, as listed when the kernel is asked. Only
//! zone 0 is searched. Under the userspace backend, where the proxy answers, all flows would be
//! stale. The kernel walks its table for each request, and copies the flows of one port, or all of
//! UDP when many Services changed; memory does not grow with the table.
//!
//! Linux before 6.4 deletes no entry of a flow that is in a flowtable, whichever program made that.
//! Such a flow is tried again by itself, after delays of up to 30 s, until it is out of there; all
//! others end at once.
//!
//! [`UsageReader`] reads how full the table is, what the kernel lost because of that, and where the
//! entries lead.
//!
//! [drains]: switchyard_core::state::ResolvedServicePort::draining

#![forbid(unsafe_code)]

mod flow;
mod job;
mod queue;
mod stale_frontends;
mod table;
#[cfg(test)]
mod testing;
mod usage;
mod worker;

use std::{io, sync::Arc, thread, time::Duration};

use switchyard_core::{
    model::{IpFamily, Protocol, ServicePortId},
    runner::{EngineEvent, Observer},
    transition::Transition,
};

pub use self::usage::{StuckLimit, TrackedFlow, Usage, UsageReader};
use self::{queue::Queue, table::Table};

/// Why entries cannot be removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no socket to the kernel.
    #[error("cannot reach the kernel's connection tracking")]
    Open(#[source] crate::netlink::Error),
    /// The worker could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// The result of one attempt in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The family.
    pub family: IpFamily,
    /// The time that the attempt took, without pauses between looks at the table.
    pub duration: Duration,
    /// Entries that the kernel returned.
    pub scanned: usize,
    /// Entries that were deleted.
    pub deleted: usize,
    /// Whether no stale entry is left; if not, there will be another attempt.
    pub complete: bool,
}

/// Removes stale entries, in the network namespace in which it was started, until it is dropped.
/// Dropping it waits for nothing: the worker ends after the request that is under way.
#[derive(Debug)]
pub struct Reconciler {
    queue: Arc<Queue>,
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
        thread::Builder::new().name("conntrack".into()).spawn(body).map_err(Error::Thread)?;
        Ok(Self { queue })
    }

    /// Queues the frontends that may have stale flows. To be called after each successful sync.
    /// Never waits for the kernel; takes microseconds for each UDP or SCTP port in the change.
    pub fn synced(&self, change: &Transition<'_>) {
        stale_frontends::queue_frontends(change, &self.queue);
    }

    /// Has the next [`synced`](Self::synced) queue all frontends of the families that it programs.
    /// To be called when the kernel may not have held what was synced: after a failed sync, and
    /// before `synced` if a comparison has found a difference.
    pub fn doubt(&self) {
        self.queue.lock().doubt();
    }

    /// Waits until all queued frontends are done, or the time is over. Returns whether they are
    /// done.
    pub fn wait_idle(&self, timeout: Duration) -> bool {
        self.queue.wait_idle(timeout)
    }
}

/// Follows the syncs of an engine.
impl Observer for Reconciler {
    fn on_event(&self, event: &EngineEvent<'_>) {
        match event {
            EngineEvent::Synced(outcome) => {
                if !outcome.report.drift.is_none() {
                    self.doubt();
                }
                self.synced(&outcome.change);
            }
            // A part of the attempt may be in the kernel. What is left out is no such doubt: the
            // sync goes on with all other changes, and a family that is left out is in doubt until
            // it is back.
            EngineEvent::SyncFailed { .. } => self.doubt(),
            _ => {}
        }
    }
}

impl Drop for Reconciler {
    fn drop(&mut self) {
        self.queue.stop();
    }
}

/// A family and protocol, whose flows are requested separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) family: IpFamily,
    pub(crate) protocol: Protocol,
}

/// Reads the kernel's messages as flows of each family and protocol, and writes the requests to
/// delete these. For tests.
#[cfg(feature = "testing")]
pub fn read_flows(messages: &[u8]) -> Vec<u8> {
    let mut writer = crate::netlink::Writer::new();
    for message in crate::netlink::Messages::new(messages) {
        for group in Group::ALL {
            if let Some(flow) = flow::Flow::read(&message, group) {
                writer.message(flow::CT_DELETE, 0, message.sequence, |w| flow.write(w, group));
            }
        }
    }
    writer.as_slice().to_vec()
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

    /// Returns the group of a Service port, or `None` for TCP.
    pub(crate) fn from_port(id: &ServicePortId) -> Option<Self> {
        let group = Self { family: id.family, protocol: id.name.protocol };
        (group.protocol != Protocol::Tcp).then_some(group)
    }

    pub(crate) fn index(self) -> usize {
        let first = match self.family {
            IpFamily::V4 => 0,
            IpFamily::V6 => 2,
        };
        first + usize::from(self.protocol == Protocol::Sctp)
    }
}
