//! What has happened so far: the one thing that traffic, script and display share.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use packet_rig::Outcome;

use crate::cast::{PODS, Pod, ROLES};

/// Connections of a Service whose latency is remembered.
pub const REMEMBERED: usize = 4000;

/// Failures that are said one by one.
const FAILURES_SAID: u64 = 5;

/// One connection that somebody made, or tried to.
#[derive(Debug)]
pub struct Attempt {
    /// The Service, as an index into [`ROLES`].
    pub role: usize,
    /// The frontend, as an index into the role's.
    pub frontend: usize,
    /// Where the client is.
    pub client: &'static str,
    /// When it began.
    pub opened: Instant,
    /// When it was established; for UDP and for failures, when it was over.
    pub established: Instant,
    /// How long it took, with the answer.
    pub took: Duration,
    /// What came of it.
    pub outcome: Outcome,
}

/// How an endpoint stands, by the manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not been there yet.
    Absent,
    /// It is there.
    Present,
    /// It was added a moment ago.
    Added,
    /// It was removed.
    Removed,
}

/// Connections that reached one endpoint.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The pod.
    pub pod: &'static Pod,
    /// How it stands.
    pub standing: Standing,
    /// How many connections reached it.
    pub count: u64,
    /// When the first one since [`Board::set_standing`] was established.
    pub first: Option<Instant>,
    /// When the last one was established.
    pub last: Option<Instant>,
    /// How many connections its Service had had by then.
    pub reached_by_then: u64,
}

/// Whether a refused connection is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusals {
    /// No, unless it began before this time, when the Service had no endpoints.
    OnlyBefore(Option<Instant>),
    /// Yes: endpoints are going or coming.
    Fine,
    /// Yes, and anything else is wrong.
    Always,
}

/// Connections to one Service.
#[derive(Clone, Debug)]
pub struct Tally {
    /// By endpoint.
    pub endpoints: Vec<Endpoint>,
    /// By frontend.
    pub frontends: Vec<u64>,
    /// Refused, as it should be.
    pub refused: u64,
    /// When the first of these since [`Board::set_all_standing`] was refused.
    pub first_refused: Option<Instant>,
    /// What went wrong, and how often.
    pub failures: BTreeMap<String, u64>,
    /// How many microseconds each of the last [`REMEMBERED`] took.
    pub latencies: VecDeque<u32>,
    /// The endpoints that each client reached.
    pub homes: BTreeMap<&'static str, BTreeSet<usize>>,
    /// Whether refusals are as they should be.
    pub refusals: Refusals,
}

impl Tally {
    fn new(role: usize) -> Self {
        let role = &ROLES[role];
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
        let endpoints: Vec<Endpoint> = PODS.iter().filter(mine).map(endpoint).collect();
        Self {
            refusals: match endpoints.is_empty() {
                true => Refusals::Always,
                false => Refusals::OnlyBefore(None),
            },
            endpoints,
            frontends: vec![0; role.frontends.len()],
            refused: 0,
            first_refused: None,
            failures: BTreeMap::new(),
            latencies: VecDeque::new(),
            homes: BTreeMap::new(),
        }
    }

    /// How many connections reached an endpoint.
    pub fn reached(&self) -> u64 {
        self.endpoints.iter().map(|endpoint| endpoint.count).sum()
    }

    /// How many went wrong.
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

    /// Counts an attempt, and says what is wrong with it.
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

/// How the proxy does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyStatus {
    /// It has not been started, or has not programmed anything yet.
    Starting,
    /// It runs, as this process.
    Running(u32),
    /// It was killed.
    Killed,
}

/// All that is shown.
#[derive(Clone, Debug)]
pub struct State {
    /// By Service, in the order of [`ROLES`].
    pub tallies: Vec<Tally>,
    /// What was said, and when.
    pub said: Vec<(Duration, String)>,
    /// The proxy.
    pub proxy: ProxyStatus,
}

impl State {
    /// How many connections reached an endpoint.
    pub fn reached(&self) -> u64 {
        self.tallies.iter().map(Tally::reached).sum()
    }

    /// How many connections went wrong.
    pub fn failed(&self) -> u64 {
        self.tallies.iter().map(Tally::failed).sum()
    }

    /// How many connections reached an endpoint, and how many went wrong.
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
    pub fn new() -> Self {
        let tallies = (0..ROLES.len()).map(Tally::new).collect();
        let state = State { tallies, said: Vec::new(), proxy: ProxyStatus::Starting };
        Self { state: Mutex::new(state), started: Instant::now() }
    }

    /// Since when there is something to show.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What has happened, for as long as the guard is held nothing more.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an attempt. The first ones that fail are said.
    pub fn count(&self, attempt: &Attempt) {
        let mut state = self.state();
        if let Some(failure) = state.tallies[attempt.role].count(attempt)
            && state.failed() <= FAILURES_SAID
        {
            let opened = attempt.opened.saturating_duration_since(self.started);
            let name = ROLES[attempt.role].name;
            state.said.push((
                self.elapsed(),
                format!("{name}: FAILED: {failure} (begun at {:.3} s)", opened.as_secs_f64()),
            ));
        }
    }

    /// Sets how an endpoint stands. What is first from now on counts as its first connection.
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
        let board = Board::new();
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
        let board = Board::new();
        board.count(&attempt(reached("dns-1")));
        board.count(&attempt(Outcome::TimedOut));
        board.count(&attempt(Outcome::Refused));
        let state = board.state();
        assert_eq!((state.failed(), state.said.len()), (3, 3));
    }

    #[test]
    fn refusals_count_as_failures_once_the_service_has_answered_again() {
        let board = Board::new();
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
        let board = Board::new();
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
