//! An endpoint of a Service port: its connections, and whether it answers.
//!
//! An endpoint that fails twice without a success in between is left out of choices for a while;
//! one failure alone may be that of a restart. Then a single connection tries the endpoint, and all
//! others follow when that succeeds, or when it has not failed for five seconds, since some UDP
//! services never answer.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use switchyard_core::model::Backoff;

/// Failures in a row that are tolerated.
const TOLERATED: u32 = 1;

/// Failures are in a row only if no more than this lies between two.
const IN_A_ROW: Duration = Duration::from_secs(60);

/// The time that an endpoint is left out.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

/// The time after which a trial without a failure counts as success.
const TRIAL: Duration = Duration::from_secs(5);

/// An endpoint, shared by the pools of a Service port and by connections.
pub(crate) struct Member {
    connections: AtomicU32,
    /// Whether there is anything in `health` for a success to end.
    is_suspect: AtomicBool,
    health: Mutex<Health>,
}

#[derive(Clone, Copy, Default)]
struct Health {
    state: State,
    /// Failures since the last success.
    failures: u32,
    last_failure: Option<Instant>,
    /// The number of times that the endpoint was left out since the last success.
    times: u32,
}

#[derive(Clone, Copy, Default)]
enum State {
    #[default]
    Up,
    Down {
        until: Instant,
    },
    Trial {
        until: Instant,
    },
}

/// The decision about an endpoint that is left out, but would be chosen otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    LeaveOut,
    /// The connection at hand tries the endpoint.
    Try,
    /// The endpoint is no longer left out.
    Readmit,
}

impl Member {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            connections: AtomicU32::new(0),
            is_suspect: AtomicBool::new(false),
            health: Mutex::default(),
        })
    }

    pub(crate) fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection, unless there are `most` already.
    pub(super) fn connect(self: &Arc<Self>, most: u32) -> Option<Connection> {
        let more = |connections| (connections < most).then_some(connections + 1);
        let counted =
            self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        counted.then(|| Connection(Arc::clone(self)))
    }

    /// Notes a failure. Returns whether the endpoint is to be left out.
    pub(crate) fn failed(&self, now: Instant) -> bool {
        self.is_suspect.store(true, Ordering::Relaxed);
        let mut health = self.lock();
        let in_a_row = health.last_failure.is_some_and(|last| now - last <= IN_A_ROW);
        health.last_failure = Some(now);
        health.failures = if in_a_row { health.failures + 1 } else { 1 };
        let again = match health.state {
            State::Up => health.failures > TOLERATED,
            // Connections that began earlier say nothing new.
            State::Down { until } => now >= until,
            State::Trial { .. } => true,
        };
        if again {
            health.state = State::Down { until: now + BACKOFF.delay(health.times) };
            health.times = health.times.saturating_add(1);
        }
        !matches!(health.state, State::Up)
    }

    /// Notes a success. Returns whether the endpoint may have been left out.
    pub(crate) fn succeeded(&self) -> bool {
        if !self.is_suspect.load(Ordering::Relaxed) {
            return false;
        }
        let mut health = self.lock();
        *health = Health::default();
        self.is_suspect.store(false, Ordering::Relaxed);
        true
    }

    pub(super) fn is_down(&self) -> bool {
        !matches!(self.lock().state, State::Up)
    }

    /// Whether [`Self::judge`] would not say [`Verdict::LeaveOut`].
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match self.lock().state {
            State::Up => true,
            State::Down { until } | State::Trial { until } => now >= until,
        }
    }

    /// Decides whether a connection may use the endpoint, which is left out. Only one may try it.
    pub(super) fn judge(&self, now: Instant) -> Verdict {
        let mut health = self.lock();
        match health.state {
            State::Up => Verdict::Readmit,
            State::Down { until } if now >= until => {
                health.state = State::Trial { until: now + TRIAL };
                Verdict::Try
            }
            State::Trial { until } if now >= until => {
                // The next failure leaves the endpoint out again, and for longer.
                health.state = State::Up;
                Verdict::Readmit
            }
            State::Down { .. } | State::Trial { .. } => Verdict::LeaveOut,
        }
    }

    /// Notes that the connection which was to try the endpoint has not: the next one may.
    pub(crate) fn spared(&self, now: Instant) {
        let mut health = self.lock();
        if let State::Trial { .. } = health.state {
            health.state = State::Down { until: now };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that counts as one of an endpoint's, until it is dropped.
pub(crate) struct Connection(Arc<Member>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn one_failure_alone_is_tolerated() {
        let (member, start) = (Member::new(), Instant::now());
        assert!(!member.failed(start));
        assert!(member.succeeded());
        assert!(!member.failed(start), "not in a row");
        assert!(!member.failed(start + seconds(61)), "not in a row");
        assert!(member.failed(start + seconds(61)));
    }

    #[test]
    fn the_time_doubles_up_to_a_minute() {
        let (member, mut now) = (Member::new(), Instant::now());
        member.failed(now);
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(member.failed(now));
            assert!(member.failed(now), "of a connection that began earlier");
            assert_eq!(member.judge(now + seconds(expected) - seconds(1) / 2), Verdict::LeaveOut);
            now += seconds(expected);
            assert_eq!(member.judge(now), Verdict::Try);
            assert_eq!(member.judge(now), Verdict::LeaveOut, "one connection alone tries");
        }
        assert!(member.succeeded());
        assert_eq!(member.judge(now), Verdict::Readmit);
        assert!(!member.failed(now));
        assert!(member.failed(now));
        assert_eq!(member.judge(now + seconds(1)), Verdict::Try, "a second again");
    }

    #[test]
    fn no_news_of_a_trial_are_good_news_until_the_next_failure() {
        let (member, now) = (Member::new(), Instant::now());
        member.failed(now);
        member.failed(now);
        for _ in 0..2 {
            member.spared(now + seconds(1));
            assert_eq!(member.judge(now + seconds(1)), Verdict::Try);
        }
        assert_eq!(member.judge(now + seconds(5)), Verdict::LeaveOut);
        assert_eq!(member.judge(now + seconds(6)), Verdict::Readmit);
        assert!(!member.is_down());
        assert!(member.failed(now + seconds(6)));
        assert_eq!(member.judge(now + seconds(7)), Verdict::LeaveOut, "for two seconds now");
    }
}
