//! Real servers that take no new connections, and are there for the connections that they have.
//!
//! A real server that leaves a pool gets weight 0, and is deleted when its last connection has
//! ended, as the kernel would end the connections of a real server that is deleted; or when time is
//! up for one whose endpoint serves no longer.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use switchyard_core::{model::PerFamily, proxier::SyncReport};
use switchyard_kernel::{
    ipvs::{RealServer, Selector},
    netlink::Error,
};

use super::{
    IpvsProxier, SyncError,
    commands::{Action, Commands, Named},
    refused::Refused,
};
use crate::layout::servers::is_of;

/// The time from the last new one to the first look: most have no connections.
const FIRST: Duration = Duration::from_secs(1);
/// The longest time between two looks.
const LONGEST: Duration = Duration::from_secs(32);

/// The most virtual servers with draining real servers that a sync looks at: each is a request.
pub(super) const MOST_LOOKS: usize = 256;

#[derive(Debug)]
pub(crate) struct Draining {
    servers: HashMap<Selector, Drained>,
    /// The time that a real server may take whose endpoint serves no longer.
    limit: Duration,
}

/// The real servers of one virtual server that drain.
#[derive(Debug)]
struct Drained {
    /// The time from which the limit counts; `None` while the endpoint serves.
    since: BTreeMap<SocketAddr, Option<Instant>>,
    /// Whether the virtual server goes with the last of them.
    is_last: bool,
    /// The time when to look at the virtual server next.
    next: Instant,
    /// The time from then to the look after.
    pause: Duration,
}

/// The state of a virtual server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// The real servers to be deleted.
    pub(crate) over: Vec<SocketAddr>,
    /// Whether the virtual server is to be deleted with them.
    pub(crate) is_last: bool,
}

impl Draining {
    /// Returns an empty list, with the longest time that a real server may take whose endpoint
    /// serves no longer.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { servers: HashMap::new(), limit }
    }

    /// Notes that a real server has weight 0, and whether its endpoint serves. Returns whether the
    /// real server is new here.
    pub(crate) fn begin(
        &mut self,
        of: Selector,
        address: SocketAddr,
        serves: bool,
        now: Instant,
    ) -> bool {
        let first = now + FIRST;
        let drained = self.servers.entry(of).or_insert_with(|| Drained {
            since: BTreeMap::new(),
            is_last: false,
            next: first,
            pause: 2 * FIRST,
        });
        let known = drained.since.get(&address).copied();
        let since = (!serves).then(|| known.flatten().unwrap_or(now));
        drained.since.insert(address, since);
        if known.is_some() {
            return false;
        }
        (drained.next, drained.pause) = (drained.next.min(first), 2 * FIRST);
        true
    }

    /// Notes that a real server is gone, or takes new connections again. Returns whether the real
    /// server was draining.
    pub(crate) fn end(&mut self, of: &Selector, address: &SocketAddr) -> bool {
        let Some(drained) = self.servers.get_mut(of) else { return false };
        let existed = drained.since.remove(address).is_some();
        if drained.since.is_empty() {
            self.servers.remove(of);
        }
        existed
    }

    /// Notes that a virtual server is gone.
    pub(crate) fn forget(&mut self, selector: &Selector) {
        self.servers.remove(selector);
    }

    /// Whether real servers of a virtual server are draining.
    pub(crate) fn has(&self, selector: &Selector) -> bool {
        self.servers.contains_key(selector)
    }

    /// The real servers of a virtual server that are draining.
    pub(crate) fn of(&self, selector: &Selector) -> Vec<SocketAddr> {
        self.servers.get(selector).map_or_else(Vec::new, |d| d.since.keys().copied().collect())
    }

    /// All real servers that are draining.
    pub(crate) fn all(&self) -> HashSet<(Selector, SocketAddr)> {
        let of = |(selector, drained): (&Selector, &Drained)| {
            drained.since.keys().map(|address| (*selector, *address)).collect::<Vec<_>>()
        };
        self.servers.iter().flat_map(of).collect()
    }

    /// Sets whether a virtual server is there for its draining real servers alone.
    pub(crate) fn set_last(&mut self, selector: &Selector, is_last: bool) {
        if let Some(drained) = self.servers.get_mut(selector) {
            drained.is_last = is_last;
        }
    }

    /// The virtual servers of these families to look at now, those first that have waited for the
    /// longest time.
    pub(crate) fn due(&self, families: &PerFamily<bool>, now: Instant) -> Vec<Selector> {
        let due = self.of_families(families).filter(|(_, drained)| drained.next <= now);
        let mut due: Vec<_> = due.map(|(selector, drained)| (drained.next, *selector)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, selector)| selector).collect()
    }

    fn of_families(
        &self,
        families: &PerFamily<bool>,
    ) -> impl Iterator<Item = (&Selector, &Drained)> {
        let families = *families;
        self.servers.iter().filter(move |(selector, _)| is_of(selector, &families))
    }

    /// Plans the next look at a virtual server that could not be looked at.
    pub(crate) fn postpone(&mut self, at: &Selector, now: Instant) {
        if let Some(drained) = self.servers.get_mut(at) {
            drained.next = now + drained.pause;
        }
    }

    /// Returns what is to be done with a virtual server that has these real servers, forgets what
    /// is over, and plans the next look.
    pub(crate) fn look(&mut self, at: &Selector, found: &[RealServer], now: Instant) -> Look {
        let Some(drained) = self.servers.get_mut(at) else { return Look::default() };
        let limit = self.limit;
        let mut over = Vec::new();
        // A client that keeps its connections open while endpoints change makes there be many.
        let found: HashMap<_, _> = found.iter().map(|real| (real.address, real)).collect();
        drained.since.retain(|address, since| {
            let Some(real) = found.get(address) else { return false };
            let is_late = since.is_some_and(|since| now - since >= limit);
            let is_over = is_late || !real.has_connections();
            if is_over {
                over.push(*address);
            }
            !is_over
        });
        (drained.next, drained.pause) = (now + drained.pause, (2 * drained.pause).min(LONGEST));
        let is_empty = drained.since.is_empty();
        let is_last = drained.is_last && is_empty;
        if is_empty {
            self.servers.remove(at);
        }
        Look { over, is_last }
    }

    /// Lets everything be looked at at once.
    #[cfg(test)]
    pub(crate) fn hasten(&mut self) {
        self.servers.values_mut().for_each(|drained| drained.next = Instant::now());
    }

    /// The time from now to the next look at these families; `None` if nothing drains.
    pub(crate) fn wait(&self, families: &PerFamily<bool>, now: Instant) -> Option<Duration> {
        let next = self.of_families(families).map(|(_, drained)| drained.next).min()?;
        Some(next.saturating_duration_since(now))
    }
}

impl IpvsProxier {
    /// Deletes real servers of these families whose last connections have ended.
    pub(super) fn look_at_draining(
        &mut self,
        families: &PerFamily<bool>,
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> Result<(), SyncError> {
        let now = Instant::now();
        let mut commands = Commands::default();
        for selector in self.draining.due(families, now).into_iter().take(MOST_LOOKS) {
            let found = match self.kernel.real_servers(&selector) {
                Ok(found) => found,
                Err(error) => {
                    self.draining.postpone(&selector, now);
                    let is_answer = matches!(error, Error::Kernel(_));
                    let error = SyncError::Ipvs("list the real servers of IPVS", error);
                    if !is_answer {
                        // Each further one would take as long.
                        return Err(error);
                    }
                    refused.leftover(&error);
                    continue;
                }
            };
            let look = self.draining.look(&selector, &found, now);
            for address in look.over {
                tracing::debug!(server = %Named(&selector), real = %address, "Drained");
                commands.push(selector, Action::DeleteReal(address));
            }
            if look.is_last {
                commands.push(selector, Action::DeleteServer);
            }
        }
        for (step, refusal) in self.commit(report, &commands)? {
            refused.command(None, step, refusal);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const SELECTOR: Selector =
        Selector::Address { protocol: 6, ip: IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), port: 80 };

    const BOTH: PerFamily<bool> = PerFamily { v4: true, v6: true };

    fn real(n: u8, active: u32, inactive: u32) -> RealServer {
        RealServer { address: address(n), weight: 0, active, inactive, is_masquerading: true }
    }

    fn address(n: u8) -> SocketAddr {
        (Ipv4Addr::new(10, 1, 0, n), 80).into()
    }

    #[test]
    fn a_real_server_goes_with_its_last_connection() {
        let start = Instant::now();
        let mut draining = Draining::new(Duration::from_secs(100));
        assert_eq!(draining.wait(&BOTH, start), None);
        for n in [1, 2, 3] {
            draining.begin(SELECTOR, address(n), false, start);
        }
        draining.set_last(&SELECTOR, true);
        assert_eq!(draining.wait(&BOTH, start), Some(FIRST));
        assert!(draining.due(&BOTH, start).is_empty());
        let now = start + FIRST;
        assert_eq!(draining.due(&BOTH, now), [SELECTOR]);
        // One has a connection, one has only connections that are being closed, one has none.
        let found = [real(1, 1, 0), real(2, 0, 1), real(3, 0, 0), real(4, 0, 0)];
        let look = draining.look(&SELECTOR, &found, now);
        assert_eq!(look, Look { over: vec![address(3)], is_last: false });
        assert_eq!(draining.wait(&BOTH, now), Some(2 * FIRST));
        assert!(draining.end(&SELECTOR, &address(1)), "it came back");
        assert_eq!(draining.of(&SELECTOR), [address(2)]);
        // Another program has deleted the last of them.
        let now = now + 2 * FIRST;
        let look = draining.look(&SELECTOR, &[], now);
        assert_eq!(look, Look { over: vec![], is_last: true });
        assert_eq!(draining.wait(&BOTH, now), None);
    }

    /// However many real servers follow, the first is looked at in time.
    #[test]
    fn others_do_not_put_off_a_look() {
        let start = Instant::now();
        let mut draining = Draining::new(Duration::from_secs(100));
        for n in 1..=9 {
            draining.begin(SELECTOR, address(n), false, start + FIRST / 10 * n.into());
        }
        assert_eq!(draining.due(&BOTH, start + FIRST / 10 + FIRST), [SELECTOR]);
    }

    #[test]
    fn time_is_up_at_last() {
        let start = Instant::now();
        let mut draining = Draining::new(Duration::from_secs(100));
        draining.begin(SELECTOR, address(1), false, start);
        let busy = [real(1, 1, 0)];
        let mut now = start;
        let mut looks = 0;
        while draining.has(&SELECTOR) {
            now += draining.wait(&BOTH, now).unwrap();
            for selector in draining.due(&BOTH, now) {
                looks += 1;
                let look = draining.look(&selector, &busy, now);
                let is_over = now - start >= Duration::from_secs(100);
                assert_eq!(!look.over.is_empty(), is_over);
                assert!(!look.is_last, "the virtual server has a pool");
            }
        }
        assert_eq!(looks, 8, "after 1, 3, 7, 15, 31, 63, 95 and 127 seconds");
    }

    /// An endpoint that a policy or a weight leaves out, and that is gone later.
    #[test]
    fn what_serves_has_all_the_time_it_needs() {
        let start = Instant::now();
        let limit = Duration::from_secs(100);
        let mut draining = Draining::new(limit);
        let busy = [real(1, 1, 0)];
        assert!(draining.begin(SELECTOR, address(1), true, start));
        let gone = start + 2 * limit;
        assert_eq!(draining.look(&SELECTOR, &busy, gone), Look::default());
        assert!(!draining.begin(SELECTOR, address(1), false, gone), "known");
        assert!(
            !draining.begin(SELECTOR, address(1), false, gone + limit / 2),
            "the time counts on"
        );
        assert_eq!(draining.look(&SELECTOR, &busy, gone + limit / 2), Look::default());
        let look = draining.look(&SELECTOR, &busy, gone + limit);
        assert_eq!(look.over, [address(1)]);
    }
}
