//! Steady traffic, to see whether anything is lost while something happens.
//!
//! Two kinds at once: workers that open a new connection for every request, and connections (UDP:
//! flows) that stay open and send a request now and then. Bounded by a duration.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    conversation::Conversation,
    echo::Answer,
    error::{Result, RigError},
    netns::NetNs,
    outcome::Outcome,
    probe::Probe,
    protocol::{Protocol, Target},
};

/// The traffic to make.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    pub namespace: NetNs,
    /// The target of all requests. A persistent connection to a UDP target is a flow from one
    /// source port.
    pub target: Target,
    /// The address of the clients; `None` for the usual one.
    pub source: Option<IpAddr>,
    /// The number of workers that open new connections.
    pub workers: usize,
    /// The pause of a worker after each request.
    pub pause: Duration,
    /// The number of connections that stay open.
    pub persistent: usize,
    /// The pause of each open connection after each request.
    pub interval: Duration,
    /// The time without an answer after which a request has failed.
    pub timeout: Duration,
    /// Whether a datagram that was not answered in time is repeated once, as clients of DNS do.
    pub is_repeated: bool,
    /// The longest duration of the traffic.
    pub duration: Duration,
}

impl LoadPlan {
    /// Four workers and four connections for at most 30 seconds.
    pub fn new(namespace: &NetNs, target: Target) -> Self {
        Self {
            namespace: namespace.clone(),
            target,
            source: None,
            workers: 4,
            pause: Duration::from_millis(2),
            persistent: 4,
            interval: Duration::from_millis(50),
            timeout: Duration::from_secs(2),
            is_repeated: false,
            duration: Duration::from_secs(30),
        }
    }
}

/// The outcomes of the requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub attempts: u64,
    /// The number of failures, by description.
    pub failures: BTreeMap<String, u64>,
    /// The number of answers, by server.
    pub endpoints: BTreeMap<String, u64>,
    /// The latencies of the answers, sorted.
    pub latencies: Vec<Duration>,
}

impl Tally {
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// The latency that this share of the answers did not exceed, e.g. 0.5 for the median.
    pub fn latency(&self, share: f64) -> Option<Duration> {
        let last = self.latencies.len().checked_sub(1)?;
        // The share is clamped, so the product lies within the list.
        let index = (share.clamp(0.0, 1.0) * last as f64).round() as usize;
        self.latencies.get(index).copied()
    }

    fn count(&mut self, outcome: Outcome, took: Duration) {
        self.attempts += 1;
        match outcome {
            Outcome::Reached { endpoint, .. } => {
                *self.endpoints.entry(endpoint).or_default() += 1;
                self.latencies.push(took);
            }
            failure => *self.failures.entry(failure.to_string()).or_default() += 1,
        }
    }

    fn add(&mut self, other: Self) {
        self.attempts += other.attempts;
        for (what, count) in other.failures {
            *self.failures.entry(what).or_default() += count;
        }
        for (who, count) in other.endpoints {
            *self.endpoints.entry(who).or_default() += count;
        }
        self.latencies.extend(other.latencies);
        self.latencies.sort_unstable();
    }
}

/// The outcomes of all requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Requests that opened a connection each (or sent a datagram from a new port).
    pub new_connections: Tally,
    /// Requests over connections that stay open. A connection that breaks counts as a failure, and
    /// is not opened again.
    pub persistent: Tally,
}

/// Running traffic. Dropping it stops it.
#[derive(Debug)]
pub struct LoadGenerator {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(Kind, Tally)>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    New,
    Persistent,
}

impl LoadGenerator {
    pub fn start(plan: &LoadPlan) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let kinds = std::iter::repeat_n(Kind::New, plan.workers)
            .chain(std::iter::repeat_n(Kind::Persistent, plan.persistent));
        let threads = kinds
            .map(|kind| {
                let (plan, stop) = (plan.clone(), Arc::clone(&stop));
                let go_on =
                    move || !stop.load(Ordering::Relaxed) && started.elapsed() < plan.duration;
                let plan_inside = plan.clone();
                thread::spawn(move || {
                    let tally = plan.namespace.run(|| match kind {
                        Kind::New => make_connections(&plan_inside, &go_on),
                        Kind::Persistent => keep_connection(&plan_inside, &go_on),
                    })?;
                    Ok((kind, tally))
                })
            })
            .collect();
        Self { stop, threads }
    }

    /// Stops the traffic and returns the outcomes.
    pub fn finish(mut self) -> Result<LoadReport> {
        self.stop.store(true, Ordering::Relaxed);
        let mut report = LoadReport::default();
        for thread in self.threads.drain(..) {
            let (kind, tally) = thread.join().unwrap_or_else(|_| {
                Err(RigError::Setup("a thread of clients panicked".to_owned()))
            })?;
            match kind {
                Kind::New => report.new_connections.add(tally),
                Kind::Persistent => report.persistent.add(tally),
            }
        }
        Ok(report)
    }
}

impl Drop for LoadGenerator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Opens one connection after the other.
fn make_connections(plan: &LoadPlan, go_on: &dyn Fn() -> bool) -> Tally {
    let probe = Probe { timeout: plan.timeout, source: plan.source, ..Probe::new(plan.target) };
    let mut tally = Tally::default();
    while go_on() {
        let asked = Instant::now();
        let is_repeated = plan.is_repeated && plan.target.protocol == Protocol::Udp;
        let outcome = match probe.attempt() {
            Outcome::TimedOut if is_repeated => probe.attempt(),
            outcome => outcome,
        };
        tally.count(outcome, asked.elapsed());
        thread::sleep(plan.pause);
    }
    tally
}

/// Keeps one connection open and asks over it, until it breaks.
fn keep_connection(plan: &LoadPlan, go_on: &dyn Fn() -> bool) -> Tally {
    let probe = Probe { timeout: plan.timeout, source: plan.source, ..Probe::new(plan.target) };
    let mut tally = Tally::default();
    let mut conversation = None;
    while go_on() {
        let asked = Instant::now();
        let mut ask = || match &mut conversation {
            Some(open) => Conversation::ask(open),
            None => probe.converse().and_then(|open| conversation.insert(open).ask()),
        };
        let is_udp = plan.target.protocol == Protocol::Udp;
        let answer = match ask() {
            Err(error) if plan.is_repeated && is_udp && error.kind() == ErrorKind::WouldBlock => {
                ask()
            }
            answer => answer,
        };
        let outcome = match answer {
            Ok(line) => Answer::parse(&line).map_or(Outcome::Other(line), Outcome::from),
            Err(error) => Outcome::Other(format!("persistent connection: {error}")),
        };
        let broken = outcome.endpoint().is_none();
        tally.count(outcome, asked.elapsed());
        if broken {
            break;
        }
        thread::sleep(plan.interval);
    }
    tally
}
