//! A pool of endpoints, and the algorithm that chooses among the endpoints. When the algorithm's
//! own choice was tried before or is left out, another endpoint is drawn among the rest in
//! proportion to the weights; for hashes, by further hashes.

use std::{
    cmp::Ordering::Less,
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use switchyard_core::{
    maglev,
    model::LbAlgorithm,
    state::{self, Endpoint},
};

use super::{
    hash::{Key, table_size},
    member::{Connection, Member, Verdict},
    random::{self, Sums},
    round_robin::RoundRobin,
};
use crate::forwarder::ends::Ends;

/// The number of times that another endpoint is drawn before all are looked at.
const DRAWS: u8 = 8;

/// The endpoints that connections are spread over.
pub(crate) struct Pool {
    lb_algorithm: LbAlgorithm,
    /// Sorted by address.
    endpoints: state::Pool,
    /// One for each endpoint.
    entries: Box<[Entry]>,
    /// The number of endpoints that are left out: never more than half.
    left_out: AtomicUsize,
    method: Method,
    sums: OnceLock<Sums>,
}

/// An endpoint of a pool, beside its address and weight.
struct Entry {
    member: Arc<Member>,
    is_left_out: AtomicBool,
}

enum Method {
    Random,
    RoundRobin(RoundRobin),
    Hash(Key, OnceLock<Box<[u32]>>),
    /// By the numbers of connections; where the next search begins, so that equals take turns.
    Fewest(AtomicUsize),
    /// The first endpoint in this order.
    Ordered(Box<[u32]>),
}

impl Pool {
    /// Goes on where `before` is, the pool that this one replaces.
    pub(crate) fn new(
        endpoints: &state::Pool,
        lb_algorithm: LbAlgorithm,
        members: &HashMap<SocketAddr, Arc<Member>>,
        before: Option<&Self>,
    ) -> Self {
        let entry = |endpoint: &Endpoint| Entry {
            member: members.get(&endpoint.address).map_or_else(Member::new, Arc::clone),
            is_left_out: AtomicBool::new(false),
        };
        let method = match lb_algorithm {
            LbAlgorithm::Random => Method::Random,
            LbAlgorithm::RoundRobin => Method::RoundRobin(RoundRobin::new(
                endpoints,
                before.and_then(|before| match &before.method {
                    Method::RoundRobin(round_robin) => Some((round_robin, &*before.endpoints)),
                    _ => None,
                }),
            )),
            LbAlgorithm::SourceHash => Method::Hash(Key::Source, OnceLock::new()),
            LbAlgorithm::Maglev => Method::Hash(Key::SourceAndPort, OnceLock::new()),
            LbAlgorithm::DestinationHash => Method::Hash(Key::Destination, OnceLock::new()),
            LbAlgorithm::LeastConnections
            | LbAlgorithm::ShortestExpectedDelay
            | LbAlgorithm::NeverQueue
            | LbAlgorithm::LocalityLeastConnections
            | LbAlgorithm::LocalityLeastConnectionsReplicated => {
                Method::Fewest(AtomicUsize::new(random::number() as usize))
            }
            LbAlgorithm::WeightedFailover | LbAlgorithm::WeightedOverflow => {
                let mut order: Box<[u32]> = (0..endpoints.len() as u32).collect();
                order.sort_by_key(|&i| std::cmp::Reverse(endpoints[i as usize].weight));
                Method::Ordered(order)
            }
        };
        let pool = Self {
            lb_algorithm,
            endpoints: Arc::clone(endpoints),
            entries: endpoints.iter().map(entry).collect(),
            left_out: AtomicUsize::new(0),
            method,
            sums: OnceLock::new(),
        };
        for index in (0..pool.entries.len()).filter(|&i| pool.entries[i].member.is_down()) {
            pool.leave_out_at(index);
        }
        pool
    }

    /// Whether the pool has these endpoints and this algorithm.
    pub(crate) fn is(&self, endpoints: &state::Pool, lb_algorithm: LbAlgorithm) -> bool {
        self.lb_algorithm == lb_algorithm
            && (Arc::ptr_eq(&self.endpoints, endpoints) || self.endpoints == *endpoints)
    }

    /// Chooses an endpoint that was not tried. Endpoints that are left out count as tried, until no
    /// other is left.
    pub(crate) fn choose(
        &self,
        ends: Ends,
        tried: &[SocketAddr],
        now: Instant,
    ) -> Option<(SocketAddr, Connection)> {
        if self.entries.is_empty() {
            return None;
        }
        let is_untried = |i: usize| tried.is_empty() || !tried.contains(&self.endpoints[i].address);
        let first = match &self.method {
            Method::Ordered(order) => return self.choose_in_order(order, &is_untried, now),
            Method::Random => self.sums().draw(),
            Method::RoundRobin(round_robin) => round_robin.next(),
            Method::Hash(key, table) => {
                let table = table.get_or_init(|| self.table());
                let choose = |attempt| {
                    table[(key.hash(ends, attempt) % table.len().max(1) as u64) as usize] as usize
                };
                // The last attempt, if no other serves, is left to the draw among all.
                let found = (0..DRAWS).map(choose).find(|&i| is_untried(i) && self.admits(i, now));
                match found {
                    Some(index) => return self.connect(index),
                    None => choose(DRAWS),
                }
            }
            Method::Fewest(start) => {
                let start = start.fetch_add(1, Ordering::Relaxed);
                let due = |i| is_untried(i) && self.is_due(i, now);
                match self.fewest(start, &due) {
                    Some(index) => index,
                    None => return self.connect(self.fewest(start, &is_untried)?),
                }
            }
        };
        if is_untried(first) && self.admits(first, now) {
            return self.connect(first);
        }
        let is_left = |i: usize| is_untried(i) && !self.is_left_out(i);
        match &self.method {
            Method::Hash(..) => self.next_from(first, &is_left, &is_untried),
            Method::Fewest(_) => {
                self.fewest(first, &is_left).or_else(|| self.fewest(first, &is_untried))
            }
            _ => self.draw(&is_left).or_else(|| self.draw(&is_untried)),
        }
        .and_then(|index| self.connect(index))
    }

    /// Chooses the endpoint at an address, unless that is not in the pool, was tried, or is left
    /// out.
    pub(crate) fn choose_again(
        &self,
        address: SocketAddr,
        tried: &[SocketAddr],
        now: Instant,
    ) -> Option<(SocketAddr, Connection)> {
        let index = self.index(address)?;
        let is_allowed = !tried.contains(&address) && self.admits(index, now);
        is_allowed.then(|| self.connect(index)).flatten()
    }

    /// Leaves an endpoint out, unless half of the pool is left out already. Returns whether the
    /// endpoint was not left out before.
    pub(crate) fn leave_out(&self, address: SocketAddr) -> bool {
        self.index(address).is_some_and(|index| self.leave_out_at(index))
    }

    /// Ends that an endpoint is left out.
    pub(crate) fn readmit(&self, address: SocketAddr) {
        if let Some(index) = self.index(address) {
            self.readmit_at(index);
        }
    }

    fn leave_out_at(&self, index: usize) -> bool {
        let most = self.entries.len() / 2;
        let more = |count| (count < most).then_some(count + 1);
        if self.left_out.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_err() {
            return false;
        }
        let was_left_out = self.entries[index].is_left_out.swap(true, Ordering::AcqRel);
        if was_left_out {
            self.left_out.fetch_sub(1, Ordering::AcqRel);
        }
        !was_left_out
    }

    fn readmit_at(&self, index: usize) {
        if self.entries[index].is_left_out.swap(false, Ordering::AcqRel) {
            self.left_out.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn index(&self, address: SocketAddr) -> Option<usize> {
        self.endpoints.binary_search_by_key(&address, |endpoint| endpoint.address).ok()
    }

    fn is_left_out(&self, index: usize) -> bool {
        self.entries[index].is_left_out.load(Ordering::Acquire)
    }

    fn is_due(&self, index: usize, now: Instant) -> bool {
        !self.is_left_out(index) || self.entries[index].member.is_due(now)
    }

    /// Whether a connection may use an endpoint. If so, and if the endpoint is left out, the
    /// connection is the one that tries the endpoint.
    fn admits(&self, index: usize, now: Instant) -> bool {
        if !self.is_left_out(index) {
            return true;
        }
        match self.entries[index].member.judge(now) {
            Verdict::LeaveOut => false,
            Verdict::Try => true,
            Verdict::Readmit => {
                self.readmit_at(index);
                true
            }
        }
    }

    fn connect(&self, index: usize) -> Option<(SocketAddr, Connection)> {
        let connection = self.entries[index].member.connect(u32::MAX)?;
        Some((self.endpoints[index].address, connection))
    }

    fn sums(&self) -> &Sums {
        self.sums.get_or_init(|| Sums::new(&self.endpoints))
    }

    fn table(&self) -> Box<[u32]> {
        maglev::table(&self.endpoints, table_size(self.endpoints.len()))
    }

    /// Draws an endpoint among some, in proportion to the weights.
    fn draw(&self, is_allowed: &impl Fn(usize) -> bool) -> Option<usize> {
        let drawn = (0..DRAWS).map(|_| self.sums().draw()).find(|&i| is_allowed(i));
        drawn.or_else(|| {
            let allowed = || (0..self.entries.len()).filter(|&i| is_allowed(i));
            let weight = |i: usize| u64::from(self.endpoints[i].weight);
            let sum = allowed().map(weight).sum();
            let mut left = random::below(sum);
            // If others change what is allowed in the meantime, the last one has to do.
            let mut last = None;
            for i in allowed() {
                if left < weight(i) {
                    return Some(i);
                }
                left -= weight(i);
                last = Some(i);
            }
            last
        })
    }

    /// Returns the next endpoint after one that serves, preferably one that is left.
    fn next_from(
        &self,
        first: usize,
        is_left: &impl Fn(usize) -> bool,
        is_untried: &impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut others = (first..self.entries.len()).chain(0..first);
        others.clone().find(|&i| is_left(i)).or_else(|| others.find(|&i| is_untried(i)))
    }

    /// Returns the endpoint with the fewest connections for its weight, as the algorithm counts.
    fn fewest(&self, start: usize, is_allowed: &impl Fn(usize) -> bool) -> Option<usize> {
        let start = start % self.entries.len();
        let new = u64::from(self.lb_algorithm != LbAlgorithm::LeastConnections);
        // Until an endpoint is found, and only then, there are no connections that could be fewer.
        let mut best: Option<(usize, u64, u64)> = None;
        for i in (start..self.entries.len()).chain(0..start) {
            let connections = u64::from(self.entries[i].member.connections());
            let weight = u64::from(self.endpoints[i].weight);
            let is_idle =
                connections == 0 && self.lb_algorithm != LbAlgorithm::ShortestExpectedDelay;
            let count = connections + new;
            let is_less =
                |&(_, least, of)| u128::from(count * of).cmp(&u128::from(least * weight)) == Less;
            if (is_idle || best.as_ref().is_none_or(is_less)) && is_allowed(i) {
                if is_idle {
                    return Some(i);
                }
                best = Some((i, count, weight));
            }
        }
        best.map(|(i, ..)| i)
    }

    fn choose_in_order(
        &self,
        order: &[u32],
        is_untried: &impl Fn(usize) -> bool,
        now: Instant,
    ) -> Option<(SocketAddr, Connection)> {
        let connect = |i: usize| {
            let endpoint = self.endpoints[i];
            let is_limited = self.lb_algorithm == LbAlgorithm::WeightedOverflow;
            let most = if is_limited { endpoint.weight } else { u32::MAX };
            Some((endpoint.address, self.entries[i].member.connect(most)?))
        };
        let untried = || order.iter().map(|&i| i as usize).filter(|&i| is_untried(i));
        let mut admitted = untried().filter(|&i| self.admits(i, now));
        admitted.find_map(connect).or_else(|| untried().find_map(connect))
    }

    #[cfg(test)]
    pub(super) fn left_out(&self) -> Vec<SocketAddr> {
        let left_out = (0..self.entries.len()).filter(|&i| self.is_left_out(i));
        left_out.map(|i| self.endpoints[i].address).collect()
    }
}
