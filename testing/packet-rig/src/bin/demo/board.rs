//! The record of the show so far, which traffic, script and screen share.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
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
/// The number of failures that get a message each.
const FAILURES_SAID: u64 = 5;

/// The standing of an endpoint in the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not added yet.
    Absent,
    Present,
    /// Added a moment ago.
    Added,
    /// Present, but its server does not answer.
    Silent,
    Removed,
}

/// Connections that reached one endpoint.
#[derive(Clone)]
pub struct Endpoint {
    pub name: String,
    pub node: u8,
    pub address: IpAddr,
    pub standing: Standing,
    pub count: u64,
    /// The time of the first connection since [`Board::set_standing`], and of the last.
    pub first: Option<Instant>,
    pub last: Option<Instant>,
    /// The number of connections of the Service by the last.
    pub reached_by_then: u64,
}

/// Connections to one Service.
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
    /// The number of failures, by description.
    pub failures: BTreeMap<String, u64>,
    /// The latencies of the last connections in microseconds, the last one first.
    latencies: VecDeque<u32>,
    /// The endpoints that each client reached.
    homes: BTreeMap<&'static str, BTreeSet<usize>>,
    /// The number of connections that took at least [`SLOW`].
    pub slow: u64,
}

impl Tally {
    /// The number of connections that reached an endpoint.
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
        let mut last: Vec<u32> = self.latencies.iter().take(window).copied().collect();
        last.sort_unstable();
        let greatest = last.len().checked_sub(1)?;
        let at = |percent: usize| f64::from(last[greatest * percent / 100]) / 1000.0;
        Some((at(50), at(99)))
    }

    fn count_reached(&mut self, endpoint: usize, frontend: usize, opened: Instant, at: Instant) {
        let reached = self.reached() + 1;
        let endpoint = &mut self.endpoints[endpoint];
        endpoint.count += 1;
        endpoint.reached_by_then = reached;
        endpoint.first.get_or_insert(at);
        endpoint.last = Some(at);
        self.frontends[frontend].1 += 1;
        let took = at - opened;
        self.slow += u64::from(took >= SLOW);
        self.latencies.truncate(REMEMBERED - 1);
        self.latencies.push_front(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }
}

/// The time in which connections may be lost.
#[derive(Clone, Copy)]
pub struct Outage {
    pub began: Instant,
    pub ends: Instant,
    pub lost: u64,
    /// The last moment at which one was lost.
    pub last: Instant,
}

/// The contents of the board.
#[derive(Clone)]
pub struct State {
    pub show: Show,
    /// The connections by Service, in the order of the show's roles.
    pub tallies: Vec<Tally>,
    /// The messages, with their times.
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

/// The [`State`], shared, and the request to end.
pub struct Board {
    state: Mutex<State>,
    started: Instant,
    pub stop: Arc<AtomicBool>,
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
        Self { state: Mutex::new(state), started: Instant::now(), stop: Arc::default() }
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
        let tally = &mut state.tallies[role];
        let is_refusal_expected =
            tally.endpoints.is_empty() || tally.refusals_until.is_some_and(|until| opened <= until);
        if let Outcome::Reached { endpoint, .. } = outcome
            && let Some(index) = tally.endpoints.iter().position(|one| one.name == *endpoint)
        {
            tally.homes.entry(client).or_default().insert(index);
            return tally.count_reached(index, frontend, opened, at);
        }
        if *outcome == Outcome::Refused && is_refusal_expected {
            tally.refused += 1;
            tally.first_refused.get_or_insert(at);
            return;
        }
        if let Some(outage) = &mut state.outage
            && (outage.began..outage.ends).contains(&opened)
        {
            outage.lost += 1;
            outage.last = at;
            return;
        }
        *state.tallies[role].failures.entry(outcome.to_string()).or_default() += 1;
        if state.totals().1 <= FAILURES_SAID {
            let began = opened.saturating_duration_since(self.started).as_secs_f64();
            let name = state.show.roles()[role].name;
            let text = format!("{name}: FAILED: {outcome} (begun at {began:.3} s)");
            state.said.push((self.elapsed(), text));
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

    /// Sleeps for the duration, or returns an error once the end is requested.
    pub fn sleep(&self, duration: Duration) -> Result<()> {
        let deadline = Instant::now() + duration;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err("stopped".into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// Waits until `look` returns a value.
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
            self.sleep(Duration::from_millis(1))?;
        }
        Err(format!("{what} did not happen within {seconds} s").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(board: &Board, outcomes: &[Outcome]) {
        outcomes.iter().for_each(|outcome| board.count((0, "a", 0), Instant::now(), outcome));
    }

    fn reached(endpoint: &str) -> Outcome {
        Outcome::Reached { endpoint: endpoint.to_owned(), seen: ([10, 0, 0, 1], 1000).into() }
    }

    #[test]
    fn connections_are_counted_where_they_went() {
        let board = Board::new(Show::Cluster);
        count(&board, &[reached("web-1"), reached("web-1"), reached("web-3")]);
        let state = board.state();
        let web = &state.tallies[0];
        let counts: Vec<u64> = web.endpoints.iter().map(|endpoint| endpoint.count).collect();
        assert_eq!(counts, [2, 0, 1, 0]);
        assert_eq!((web.endpoints[0].reached_by_then, web.endpoints[2].reached_by_then), (2, 3));
        assert_eq!((web.frontends[0].1, state.totals()), (3, (3, 0)));
        assert!(web.latency(1).is_some() && !web.each_client_kept_its_endpoint());
    }

    #[test]
    fn failures_are_what_nothing_excuses() {
        let board = Board::new(Show::Cluster);
        count(&board, &[reached("dns-1"), Outcome::TimedOut, Outcome::Refused]);
        let state = board.state().clone();
        assert_eq!((state.totals().1, state.said.len()), (3, 3));
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        board.state().tallies[0].refusals_until = Some(later);
        count(&board, &[Outcome::Refused, Outcome::TimedOut]);
        let state = board.state().clone();
        assert_eq!((state.tallies[0].refused, state.totals().1), (1, 4));
        board.state().outage = Some(Outage { began: now, ends: later, lost: 0, last: now });
        count(&board, &[Outcome::Unrouted]);
        let state = board.state();
        assert_eq!((state.totals().1, state.outage.map(|outage| outage.lost)), (4, Some(1)));
    }
}
