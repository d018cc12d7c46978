//! Schedulers of virtual servers that are there, which the kernel changes slowly.
//!
//! While the kernel puts one scheduler in the place of another, which takes it tens of
//! milliseconds, the virtual server refuses new connections, and the kernel carries out no other
//! command. So a scheduler stays as long as it does what is wanted, and many are changed by a few
//! in each sync.

use std::{collections::BTreeMap, time::Duration};

use switchyard_netlink::ipvs::{Selector, VirtualServer};

use super::commands::Commands;
use crate::{layout::servers::Server, scheduler::Scheduler};

/// The most schedulers that a sync changes.
pub(crate) const MOST: usize = 16;
/// The time after which further schedulers are changed.
const PAUSE: Duration = Duration::from_millis(500);

/// The virtual servers that do not have the scheduler with which they would be added.
#[derive(Debug, Default)]
pub(crate) struct Schedulers {
    others: BTreeMap<Selector, Other>,
    /// The number of changes that are left to the sync.
    left: usize,
}

/// The scheduler of a virtual server, and what the virtual server should be, if that differs.
#[derive(Debug)]
struct Other {
    held: String,
    wanted: Option<VirtualServer>,
}

impl Schedulers {
    /// Begins a sync.
    pub(crate) fn begin(&mut self) {
        self.left = MOST;
    }

    /// Notes that a virtual server is gone.
    pub(crate) fn forget(&mut self, selector: &Selector) {
        self.others.remove(selector);
    }

    /// Returns the scheduler that a virtual server has which was last to be `server`.
    pub(crate) fn of(&self, selector: &Selector, server: &VirtualServer) -> String {
        self.others.get(selector).map_or(&server.scheduler, |other| &other.held).clone()
    }

    /// Returns what a virtual server should be now that has the scheduler `held`.
    pub(crate) fn settle(
        &mut self,
        held: String,
        server: &Server,
        wanted: VirtualServer,
    ) -> VirtualServer {
        let selector = wanted.selector;
        self.others.remove(&selector);
        if held == wanted.scheduler {
            return wanted;
        }
        let is_the_same = match (held.as_str(), server.scheduler) {
            ("rr", Scheduler::WeightedRoundRobin) => !server.is_uneven(),
            ("lc", Scheduler::WeightedLeastConnections) => !server.is_uneven(),
            _ => false,
        };
        if !is_the_same && self.left > 0 {
            self.left -= 1;
            return wanted;
        }
        // Flags of a scheduler go with it.
        let flags = held.parse().map_or(0, Scheduler::flags);
        let flags = wanted.flags & VirtualServer::PERSISTENT | flags;
        let now = VirtualServer { scheduler: held.clone(), flags, ..wanted.clone() };
        self.others.insert(selector, Other { held, wanted: (!is_the_same).then_some(wanted) });
        now
    }

    /// Plans as many of the changes that wait as are left to the sync.
    pub(crate) fn catch_up(&mut self, commands: &mut Commands) {
        let waiting = self.waiting().take(self.left);
        for selector in waiting.collect::<Vec<_>>() {
            self.left -= 1;
            if let Some(wanted) = self.others.remove(&selector).and_then(|other| other.wanted) {
                commands.edit_server(wanted);
            }
        }
    }

    /// The virtual servers whose change waits.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = Selector> {
        let waits = self.others.iter().filter(|(_, other)| other.wanted.is_some());
        waits.map(|(selector, _)| *selector)
    }

    /// The time until the next changes; `None` if none waits.
    pub(crate) fn wait(&self) -> Option<Duration> {
        self.waiting().next().map(|_| PAUSE)
    }
}
