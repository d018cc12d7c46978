//! The record of the demo so far, which traffic, script and display share.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use packet_rig::Outcome;

use crate::cast::{Cast, Pod, Role};

/// Connections of a Service whose latency is remembered.
pub const REMEMBERED: usize = 4000;

/// The duration from which a connection counts as slow: that of one that waited for an endpoint that does
/// not answer. In userspace mode, the first endpoint has 250 ms.
pub const SLOW: Duration = Duration::from_millis(240);

/// The number of failures that get a message each.
const FAILURES_SAID: u64 = 5;

/// A connection that a client made, or tried to make.
#[derive(Debug)]
pub struct Attempt {
    /// The Service, as an index into the cast's roles.
    pub role: usize,
    /// The frontend, as an index into the role's.
    pub frontend: usize,
    /// The client's place.
    pub client: &'static str,
    /// The time of its begin.
    pub opened: Instant,
    /// The time at which the connection was established; for UDP and for failures, its end.
    pub established: Instant,
    /// The duration, with the answer.
    pub took: Duration,
    /// The outcome.
    pub outcome: Outcome,
}

/// The standing of an endpoint in the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not added yet.
    Absent,
    /// Present.
    Present,
    /// Added a moment ago.
    Added,
    /// Present, but its server does not answer.
    Silent,
    /// Removed.
    Removed,
}

/// Connections that reached one endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The pod.
    pub pod: &'static Pod,
    /// The standing in the manifests.
    pub standing: Standing,
    /// The number of connections that reached the endpoint.
    pub count: u64,
    /// The time of the first connection since [`Board::set_standing`].
    pub first: Option<Instant>,
    /// The time of the last connection.
    pub last: Option<Instant>,
    /// The number of connections of the Service by then.
    pub reached_by_then: u64,
}

/// Whether a refused connection is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusals {
    /// No, unless the connection began before this time, when the Service had no endpoints.
    OnlyBefore(Option<Instant>),
    /// Yes: endpoints are being removed or added.
    Fine,
    /// Yes, and any other outcome is wrong.
    Always,
}

/// Connections to one Service.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The connections by endpoint.
    pub endpoints: Vec<Endpoint>,
    /// The names of the frontends on the screen.
    pub labels: Vec<String>,
    /// The connections by frontend.
    pub frontends: Vec<u64>,
    /// The number of expected refusals.
    pub refused: u64,
    /// The time of the first expected refusal since [`Board::set_all_standing`].
    pub first_refused: Option<Instant>,
    /// The number of failures, by description.
    pub failures: BTreeMap<String, u64>,
    /// The latencies of the last [`REMEMBERED`] connections, in microseconds.
    pub latencies: VecDeque<u32>,
    /// The endpoints that each client reached.
    pub homes: BTreeMap<&'static str, BTreeSet<usize>>,
    /// The number of connections that took at least [`SLOW`].
    pub slow: u64,
    /// Whether refusals are expected.
    pub refusals: Refusals,
}

impl Tally {
    fn new(cast: &'static Cast, role: &Role) -> Self {
        let mine =
            |pod: &&Pod| pod.name.strip_prefix(role.name).is_some_and(|rest| rest.starts_with('-'));
        let endpoint = |pod| Endpoint {
            pod,
            standing: Standing::Present,
            count: 0,
            first: None,
            last: None,
            reached_by_then: 0,
        };
        let endpoints: Vec<Endpoint> = cast.pods.iter().filter(mine).map(endpoint).collect();
        Self {
            refusals: match endpoints.is_empty() {
                true => Refusals::Always,
                false => Refusals::OnlyBefore(None),
            },
            endpoints,
            labels: role.frontends.iter().map(|one| one.label.to_owned()).collect(),
            frontends: vec![0; role.frontends.len()],
            refused: 0,
            first_refused: None,
            failures: BTreeMap::new(),
            latencies: VecDeque::new(),
            homes: BTreeMap::new(),
            slow: 0,
        }
    }

    /// The number of connections that reached an endpoint.
    pub fn reached(&self) -> u64 {
        self.endpoints.iter().map(|endpoint| endpoint.count).sum()
    }

    /// The number of failures.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Whether every client reached one endpoint only.
    pub fn each_client_kept_its_endpoint(&self) -> bool {
        !self.homes.is_empty() && self.homes.values().all(|endpoints| endpoints.len() == 1)
    }

    /// The latencies, in milliseconds, that a half and 99 % of the last `window` connections did
    /// not exceed.
    pub fn latency(&self, window: usize) -> Option<(f64, f64)> {
        let from = self.latencies.len().saturating_sub(window);
        let mut last: Vec<u32> = self.latencies.iter().skip(from).copied().collect();
        last.sort_unstable();
        let greatest = last.len().checked_sub(1)?;
        let at = |percent: usize| f64::from(last[greatest * percent / 100]) / 1000.0;
        Some((at(50), at(99)))
    }

    /// Counts an attempt, and returns a description if it failed.
    fn count(&mut self, attempt: &Attempt) -> Option<String> {
        let failure = match &attempt.outcome {
            Outcome::Reached { endpoint, .. } => self.count_reached(endpoint, attempt),
            Outcome::Refused if self.is_refusal_fine(attempt.opened) => {
                self.refused += 1;
                self.first_refused.get_or_insert(attempt.established);
                None
            }
            failure => Some(failure.to_string()),
        };
        if let Some(failure) = &failure {
            *self.failures.entry(failure.clone()).or_default() += 1;
        }
        failure
    }

    fn count_reached(&mut self, name: &str, attempt: &Attempt) -> Option<String> {
        let found = self.endpoints.iter().position(|endpoint| endpoint.pod.name == name);
        let Some(index) = found else {
            return Some(format!("reached {name}, which is no endpoint of it"));
        };
        let reached = self.reached() + 1;
        let endpoint = &mut self.endpoints[index];
        endpoint.count += 1;
        endpoint.reached_by_then = reached;
        // Workers report in another order than their connections were established in.
        let at = attempt.established;
        endpoint.first = Some(endpoint.first.map_or(at, |first| first.min(at)));
        endpoint.last = Some(endpoint.last.map_or(at, |last| last.max(at)));
        self.frontends[attempt.frontend] += 1;
        self.slow += u64::from(attempt.took >= SLOW);
        if self.latencies.len() == REMEMBERED {
            self.latencies.pop_front();
        }
        self.latencies.push_back(u32::try_from(attempt.took.as_micros()).unwrap_or(u32::MAX));
        self.homes.entry(attempt.client).or_default().insert(index);
        None
    }

    fn is_refusal_fine(&self, opened: Instant) -> bool {
        match self.refusals {
            Refusals::OnlyBefore(time) => time.is_some_and(|time| opened <= time),
            Refusals::Fine | Refusals::Always => true,
        }
    }
}

/// The state of the proxy's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyStatus {
    /// Not started, or nothing programmed yet.
    Starting,
    /// Running, with this process number.
    Running(u32),
    /// Killed.
    Killed,
}

/// The contents of the board.
#[derive(Clone, Debug)]
pub struct State {
    /// The Services and endpoints of the act.
    pub cast: &'static Cast,
    /// The connections by Service, in the order of the cast's roles.
    pub tallies: Vec<Tally>,
    /// The messages, with their times.
    pub said: Vec<(Duration, String)>,
    /// The proxy.
    pub proxy: ProxyStatus,
}

impl State {
    /// The number of connections that reached an endpoint.
    pub fn reached(&self) -> u64 {
        self.tallies.iter().map(Tally::reached).sum()
    }

    /// The number of connections that failed.
    pub fn failed(&self) -> u64 {
        self.tallies.iter().map(Tally::failed).sum()
    }

    /// The numbers of connections that reached an endpoint, and that failed.
    pub fn totals(&self) -> (u64, u64) {
        (self.reached(), self.failed())
    }
}

/// The [`State`], shared.
pub struct Board {
    state: Mutex<State>,
    started: Instant,
}

impl Board {
    /// A board on which nothing has happened.
    pub fn new(cast: &'static Cast) -> Self {
        let tallies = cast.roles.iter().map(|role| Tally::new(cast, role)).collect();
        let state = State { cast, tallies, said: Vec::new(), proxy: ProxyStatus::Starting };
        Self { state: Mutex::new(state), started: Instant::now() }
    }

    /// The time at which the board was made.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The contents; nothing changes while the guard is held.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an attempt. The first failures get a message each.
    pub fn count(&self, attempt: &Attempt) {
        let mut state = self.state();
        if let Some(failure) = state.tallies[attempt.role].count(attempt)
            && state.failed() <= FAILURES_SAID
        {
            let opened = attempt.opened.saturating_duration_since(self.started);
            let name = state.cast.roles[attempt.role].name;
            state.said.push((
                self.elapsed(),
                format!("{name}: FAILED: {failure} (begun at {:.3} s)", opened.as_secs_f64()),
            ));
        }
    }

    /// Sets the standing of an endpoint. The next connection counts as the endpoint's first.
    pub fn set_standing(&self, role: usize, endpoint: usize, standing: Standing) {
        let endpoint = &mut self.state().tallies[role].endpoints[endpoint];
        endpoint.standing = standing;
        endpoint.first = None;
    }

    /// Sets how all endpoints of a Service stand. What is first from now on counts as the first
    /// connection, or refusal.
    pub fn set_all_standing(&self, role: usize, standing: Standing) {
        let tally = &mut self.state().tallies[role];
        tally.first_refused = None;
        for endpoint in &mut tally.endpoints {
            endpoint.standing = standing;
            endpoint.first = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::CLUSTER;

    fn attempt(outcome: Outcome) -> Attempt {
        let now = Instant::now();
        Attempt {
            role: 0,
            frontend: 0,
            client: "a",
            opened: now,
            established: now,
            took: Duration::from_micros(150),
            outcome,
        }
    }

    fn reached(endpoint: &str) -> Outcome {
        Outcome::Reached { endpoint: endpoint.to_owned(), seen: ([10, 0, 0, 1], 1000).into() }
    }

    #[test]
    fn connections_are_counted_where_they_went() {
        let board = Board::new(&CLUSTER);
        for name in ["web-1", "web-1", "web-3"] {
            board.count(&attempt(reached(name)));
        }
        let state = board.state();
        let web = &state.tallies[0];
        let counts: Vec<u64> = web.endpoints.iter().map(|endpoint| endpoint.count).collect();
        assert_eq!(counts, [2, 0, 1, 0]);
        assert_eq!((web.endpoints[0].reached_by_then, web.endpoints[2].reached_by_then), (2, 3));
        assert_eq!((web.frontends[0], state.reached(), state.failed()), (3, 3, 0));
        assert_eq!(web.latency(2), Some((0.15, 0.15)));
        assert!(!web.each_client_kept_its_endpoint());
    }

    #[test]
    fn what_should_not_be_is_a_failure() {
        let board = Board::new(&CLUSTER);
        board.count(&attempt(reached("dns-1")));
        board.count(&attempt(Outcome::TimedOut));
        board.count(&attempt(Outcome::Refused));
        let state = board.state();
        assert_eq!((state.failed(), state.said.len()), (3, 3));
    }

    #[test]
    fn refusals_count_as_failures_once_the_service_has_answered_again() {
        let board = Board::new(&CLUSTER);
        board.state().tallies[0].refusals = Refusals::Fine;
        let early = attempt(Outcome::Refused);
        board.count(&early);
        let answered = Instant::now();
        board.state().tallies[0].refusals = Refusals::OnlyBefore(Some(answered));
        board.count(&early);
        let late = Attempt { opened: answered + Duration::from_millis(1), ..early };
        board.count(&late);
        let state = board.state();
        assert_eq!((state.tallies[0].refused, state.failed()), (2, 1));
        assert!(state.tallies[0].first_refused.is_some());
    }

    #[test]
    fn first_and_last_do_not_depend_on_the_order_of_reports() {
        let board = Board::new(&CLUSTER);
        let late = attempt(reached("web-1"));
        let early = Attempt {
            established: late.established - Duration::from_millis(1),
            outcome: reached("web-1"),
            ..attempt(Outcome::Refused)
        };
        board.count(&late);
        board.count(&early);
        let endpoint = board.state().tallies[0].endpoints[0].clone();
        assert_eq!(endpoint.first, Some(early.established));
        assert_eq!(endpoint.last, Some(late.established));
    }
}
