//! The record of the show so far, which traffic, script and screen share.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::Ipv4Addr,
    sync::{Mutex, MutexGuard, PoisonError, RwLock, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use packet_rig::Outcome;

use super::{Result, cast::Show};

/// Connections of a Service whose latency is remembered.
const REMEMBERED: usize = 4000;
/// The duration from which a connection counts as slow: that of one that waited for an endpoint
/// that does not answer. In userspace mode, the first endpoint has 250 ms.
const SLOW: Duration = Duration::from_millis(240);

/// The standing of an endpoint in the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Absent,
    Present,
    Added,
    /// Present, but its server does not answer.
    Silent,
    Removed,
}

#[derive(Clone)]
pub struct Endpoint {
    pub name: String,
    pub node: u8,
    pub address: Ipv4Addr,
    pub standing: Standing,
    pub count: u64,
    /// The end of the first connection since [`Board::set_standing`], and the start of the last: a SYN
    /// that is lost after the choice of an endpoint is repeated after a second.
    pub first: Option<Instant>,
    pub last: Option<Instant>,
    /// The number of connections of the Service by the end of the last.
    pub reached_by_then: u64,
}

#[derive(Clone, Default)]
pub struct Tally {
    pub endpoints: Vec<Endpoint>,
    /// The names of the frontends on the screen, and the connections by frontend.
    pub frontends: Vec<(String, u64)>,
    /// The number of expected refusals, and the time of the first since [`Board::set_standing`].
    pub refused: u64,
    pub first_refused: Option<Instant>,
    /// Refusals are expected of connections that began before this time; always, without endpoints.
    pub refusals_until: Option<Instant>,
    pub failures: BTreeMap<String, u64>,
    /// The latencies of the last connections, the last one first.
    latencies: VecDeque<Duration>,
    homes: BTreeMap<&'static str, BTreeSet<usize>>,
    pub slow: u64,
}

impl Tally {
    pub fn reached(&self) -> u64 {
        self.endpoints.iter().map(|endpoint| endpoint.count).sum()
    }

    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    pub fn each_client_kept_its_endpoint(&self) -> bool {
        !self.homes.is_empty() && self.homes.values().all(|endpoints| endpoints.len() == 1)
    }

    /// The latencies, in milliseconds, that a half and 99 % of the last `window` connections did
    /// not exceed.
    pub fn latency(&self, window: usize) -> Option<(f64, f64)> {
        let mut last: Vec<_> = self.latencies.iter().take(window).collect();
        last.sort_unstable();
        let greatest = last.len().checked_sub(1)?;
        let at = |percent: usize| last[greatest * percent / 100].as_secs_f64() * 1000.0;
        Some((at(50), at(99)))
    }
}

/// The time in which connections may be lost.
#[derive(Clone, Copy)]
pub struct Outage {
    pub began: Instant,
    pub lost: u64,
    pub last: Instant,
}

#[derive(Clone)]
pub struct State {
    pub show: Show,
    pub tallies: Vec<Tally>,
    pub said: Vec<(Duration, String)>,
    /// The proxy's process; 0 if it was killed, `None` before the first.
    pub proxy: Option<u32>,
    pub outage: Option<Outage>,
    /// Of the connections that stay open: the answers, and how many broke.
    pub held: (u64, u64),
}

impl State {
    /// The numbers of connections that reached an endpoint, and that failed.
    pub fn totals(&self) -> (u64, u64) {
        let sum = |count: fn(&Tally) -> u64| self.tallies.iter().map(count).sum();
        (sum(Tally::reached), sum(Tally::failed))
    }
}

pub struct Board {
    state: Mutex<State>,
    started: Instant,
    /// Set when clients are to stop, and held for reading while one opens a connection.
    pub is_over: AtomicBool,
    pub gate: RwLock<()>,
}

impl Board {
    pub fn new(show: Show) -> Self {
        let endpoint = |(name, node, index)| Endpoint {
            name,
            node,
            address: show.address(node, index),
            standing: Standing::Present,
            count: 0,
            first: None,
            last: None,
            reached_by_then: 0,
        };
        let roles = show.roles().iter().enumerate().map(|(index, role)| {
            let label = |text: &&'static str| text.rsplit_once(' ').map_or(&text[6..], |it| it.0);
            Tally {
                endpoints: show.pods(index).into_iter().map(endpoint).collect(),
                frontends: role.frontends.iter().map(|it| (label(it).to_owned(), 0)).collect(),
                ..Tally::default()
            }
        });
        let (tallies, said) = (roles.collect(), Vec::new());
        let state = State { show, tallies, said, proxy: None, outage: None, held: (0, 0) };
        Self {
            state: Mutex::new(state),
            started: Instant::now(),
            is_over: AtomicBool::new(false),
            gate: RwLock::default(),
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The contents; nothing changes while the guard is held.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection that has just ended. The first failures get a message each.
    pub fn count(
        &self,
        (role, client, frontend): (usize, &'static str, usize),
        opened: Instant,
        outcome: &Outcome,
    ) {
        let at = Instant::now();
        let mut state = self.state();
        let state = &mut *state;
        let tally = &mut state.tallies[role];
        if let Outcome::Reached { endpoint, .. } = outcome
            && let Some(index) = tally.endpoints.iter().position(|one| one.name == *endpoint)
        {
            let (took, reached) = (at - opened, tally.reached() + 1);
            let endpoint = &mut tally.endpoints[index];
            endpoint.count += 1;
            endpoint.first.get_or_insert(at);
            if endpoint.last.is_none_or(|last| last < opened) {
                (endpoint.last, endpoint.reached_by_then) = (Some(opened), reached);
            }
            tally.homes.entry(client).or_default().insert(index);
            tally.frontends[frontend].1 += 1;
            tally.slow += u64::from(took >= SLOW);
            tally.latencies.truncate(REMEMBERED - 1);
            tally.latencies.push_front(took);
            return;
        }
        let until = tally.refusals_until.filter(|until| opened <= *until);
        if *outcome == Outcome::Refused && (tally.endpoints.is_empty() || until.is_some()) {
            tally.refused += 1;
            tally.first_refused.get_or_insert(at);
        } else if let Some(outage) = state.outage.as_mut().filter(|outage| outage.began <= opened) {
            outage.lost += 1;
            outage.last = at;
        } else {
            *tally.failures.entry(outcome.to_string()).or_default() += 1;
            if state.totals().1 <= 5 {
                let text = format!("{}: FAILED: {outcome}", state.show.roles()[role].name);
                state.said.push((self.elapsed(), text));
            }
        }
    }

    /// Sets the standing of an endpoint, or of all of a Service. What is first from now on counts
    /// as the first connection, or refusal.
    pub fn set_standing(&self, role: usize, endpoint: Option<usize>, standing: Standing) {
        let tally = &mut self.state().tallies[role];
        tally.first_refused = None;
        for (index, one) in tally.endpoints.iter_mut().enumerate() {
            if endpoint.is_none_or(|only| only == index) {
                one.standing = standing;
                one.first = None;
            }
        }
    }

    pub fn wait<T>(
        &self,
        seconds: u64,
        what: &str,
        mut look: impl FnMut(&State) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < deadline {
            if let Some(found) = look(&self.state()) {
                return Ok(found);
            }
            thread::sleep(Duration::from_millis(1));
        }
        Err(format!("{what} did not happen within {seconds} s").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_count_where_they_went_and_failures_are_what_nothing_excuses() {
        let board = Board::new(Show::Cluster);
        let failed = || board.state().totals().1;
        let start = Instant::now();
        let count_opened = |opened, outcome| board.count((0, "a", 0), opened, &outcome);
        let count = |outcome| count_opened(Instant::now(), outcome);
        for (after, name) in [(0, "web-1"), (2, "web-1"), (3, "web-3"), (1, "web-1")] {
            let seen = ([10, 0, 0, 1], 1000).into();
            let opened = start + Duration::from_millis(after);
            count_opened(opened, Outcome::Reached { endpoint: name.to_owned(), seen });
        }
        let web = board.state().tallies[0].clone();
        let counts = web.endpoints.iter().map(|it| (it.count, it.reached_by_then));
        assert!(counts.eq([(3, 2), (0, 0), (1, 3), (0, 0)]));
        assert_eq!((web.frontends[0].1, board.state().totals()), (4, (4, 0)));
        assert!(web.latency(1).is_some() && !web.each_client_kept_its_endpoint());

        [Outcome::TimedOut, Outcome::Refused].into_iter().for_each(count);
        assert_eq!((failed(), board.state().said.len()), (2, 2));
        let now = Instant::now();
        board.state().tallies[0].refusals_until = Some(now + Duration::from_secs(60));
        [Outcome::TimedOut, Outcome::Refused].into_iter().for_each(count);
        assert_eq!((failed(), board.state().tallies[0].refused), (3, 1));
        board.state().outage = Some(Outage { began: now, lost: 0, last: now });
        count(Outcome::Unrouted);
        let state = board.state();
        assert_eq!((state.totals().1, state.outage.map(|outage| outage.lost)), (3, Some(1)));
    }
}
