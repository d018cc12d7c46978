//! Schedulers of virtual servers that are there, which the kernel changes slowly.
//!
//! While the kernel puts one scheduler in the place of another, which takes it tens of
//! milliseconds (`ip_vs_edit_service` in `net/netfilter/ipvs/ip_vs_ctl.c`), the virtual server
//! refuses new connections, and the kernel carries out no other command. So a scheduler stays as
//! long as it does what is wanted, many are changed by a few at a time, and the rules translate new
//! connections meanwhile.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use switchyard_core::model::{PerFamily, ServicePortId};
use switchyard_kernel::ipvs::{Selector, VirtualServer};

use crate::{
    layout::servers::{Server, is_of},
    scheduler::{Scheduler, is_uneven},
};

/// The most schedulers that are changed until a pause is over.
pub(crate) const MOST: usize = 16;
/// The time after which further schedulers are changed, however many syncs there are.
const PAUSE: Duration = Duration::from_millis(500);

/// The virtual servers that do not have the scheduler with which they would be added.
#[derive(Debug, Default)]
pub(crate) struct Schedulers {
    others: BTreeMap<Selector, Other>,
    /// The time until which no more than `left` are changed.
    until: Option<Instant>,
    left: usize,
    /// The virtual server that was changed last. Those behind it come first, so that Services whose
    /// schedulers change all the time do not keep others waiting.
    last: Option<Selector>,
}

/// The scheduler of a virtual server, and what the virtual server should be, if that differs, with
/// its Service port.
#[derive(Debug)]
struct Other {
    held: String,
    wanted: Option<(ServicePortId, VirtualServer)>,
}

impl Schedulers {
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
        let parsed: Option<Scheduler> = held.parse().ok();
        let is_alike = parsed.is_some_and(|held| held.weighted() == server.scheduler.weighted());
        let is_the_same = is_alike && !is_uneven(&server.port);
        // Flags of a scheduler go with it.
        let flags = parsed.map_or(0, Scheduler::flags);
        let flags = wanted.flags & VirtualServer::PERSISTENT | flags;
        let now = VirtualServer { scheduler: held.clone(), flags, ..wanted.clone() };
        let wanted = (!is_the_same).then(|| (server.port.id.clone(), wanted));
        self.others.insert(selector, Other { held, wanted });
        now
    }

    /// Returns as many of the changes that wait as may be made now, in these families.
    pub(crate) fn take(
        &mut self,
        families: &PerFamily<bool>,
        now: Instant,
    ) -> Vec<(ServicePortId, VirtualServer)> {
        if self.until.is_none_or(|until| until <= now) {
            (self.until, self.left) = (Some(now + PAUSE), MOST);
        }
        let mut waiting: Vec<Selector> = self.waiting(families).collect();
        let behind = waiting.partition_point(|selector| Some(selector) <= self.last.as_ref());
        waiting.rotate_left(behind);
        waiting.truncate(self.left);
        self.left -= waiting.len();
        self.last = waiting.last().copied().or(self.last);
        let taken = waiting.iter().filter_map(|selector| self.others.remove(selector)?.wanted);
        taken.collect()
    }

    /// The virtual servers of these families whose change waits.
    pub(crate) fn waiting(&self, families: &PerFamily<bool>) -> impl Iterator<Item = Selector> {
        let waits = self.others.iter().filter(|(_, other)| other.wanted.is_some());
        waits.map(|(selector, _)| *selector).filter(|selector| is_of(selector, families))
    }

    /// The time until the next changes in these families; `None` if none waits.
    pub(crate) fn wait(&self, families: &PerFamily<bool>, now: Instant) -> Option<Duration> {
        self.waiting(families).next()?;
        Some(self.until?.saturating_duration_since(now))
    }

    /// Ends a pause.
    #[cfg(test)]
    pub(crate) fn hasten(&mut self) {
        self.until = None;
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, sync::Arc};

    use switchyard_core::model::{IpFamily, Protocol, ServiceName, ServicePortName};

    use super::*;

    /// Has the virtual servers at these addresses wait for another scheduler.
    fn want(schedulers: &mut Schedulers, ips: impl IntoIterator<Item = IpAddr>) {
        let service = ServiceName::new("ns", "web");
        let name = ServicePortName { service, port: Arc::default(), protocol: Protocol::Tcp };
        let port = ServicePortId { name, family: IpFamily::V4 };
        for ip in ips {
            let selector = Selector::Address { protocol: 6, ip, port: 80 };
            let scheduler = "sh".to_owned();
            let wanted = VirtualServer { selector, scheduler, flags: 0, timeout: 0, netmask: 32 };
            let wanted = Some((port.clone(), wanted));
            schedulers.others.insert(selector, Other { held: "rr".into(), wanted });
        }
    }

    /// A family that is left out stays as it is.
    #[test]
    fn only_the_families_at_hand_are_changed() {
        let mut schedulers = Schedulers::default();
        let ips = [IpAddr::from([10, 96, 0, 1]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1])];
        want(&mut schedulers, ips);
        let now = Instant::now();
        for v6 in [false, true] {
            let families = PerFamily { v4: !v6, v6 };
            let taken = schedulers.take(&families, now);
            let [(_, server)] = &*taken else { panic!("{taken:?}") };
            let Selector::Address { ip, .. } = server.selector else { panic!("{server:?}") };
            assert_eq!(ip.is_ipv6(), v6);
            assert_eq!(schedulers.wait(&families, now), None);
        }
        assert_eq!(schedulers.left, MOST - 2);
    }

    /// However often the first ones want another scheduler.
    #[test]
    fn all_get_their_turns() {
        let mut schedulers = Schedulers::default();
        let ip = |n: usize| IpAddr::from([10, 96, 0, n as u8]);
        want(&mut schedulers, (1..=MOST + 1).map(ip));
        let both = PerFamily { v4: true, v6: true };
        let first = schedulers.take(&both, Instant::now());
        assert_eq!(first.len(), MOST);
        want(&mut schedulers, (1..=MOST).map(ip));
        schedulers.hasten();
        let taken = schedulers.take(&both, Instant::now());
        assert_eq!(taken.len(), MOST);
        let last = Selector::Address { protocol: 6, ip: ip(MOST + 1), port: 80 };
        assert_eq!(taken[0].1.selector, last);
    }
}
