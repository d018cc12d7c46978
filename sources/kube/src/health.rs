//! A record of when the server was last heard from, for each watch.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use switchyard_core::objects::Kind;

/// The times at which each watch last heard from the server, and last failed. Clones share them.
#[derive(Clone, Debug)]
pub struct WatchHealth(Arc<Pulses>);

#[derive(Debug)]
struct Pulses {
    start: Instant,
    pulses: [State; Kind::ALL.len()],
}

#[derive(Debug, Default)]
struct State {
    /// The time at which the server was last heard from, in milliseconds since the start, plus one; 0 is never.
    heard: AtomicU64,
    /// The time of the last failure, in the same form.
    failed: AtomicU64,
    failure: Mutex<String>,
    /// The time at which the server began to answer each request with status 401, in the same form; 0 if the last
    /// answer or failure is another.
    unauthorized: AtomicU64,
    synced: AtomicBool,
}

impl WatchHealth {
    /// Returns a record in which no watch was heard from yet.
    pub fn new() -> Self {
        Self(Arc::new(Pulses { start: Instant::now(), pulses: Default::default() }))
    }

    /// Returns how long ago the server last sent something on this watch: an event, a bookmark, or
    /// the head of an answer. `None` if it never did, and for ServiceCIDRs while they are absent or
    /// forbidden. A healthy watch is heard from every 75 s, and a watch that is silent is opened
    /// again after 90 s.
    pub fn heard(&self, kind: Kind) -> Option<Duration> {
        self.since(&self.state(kind).heard)
    }

    /// Returns how long ago this watch failed last, and why; `None` if it never did. Failed watches
    /// are opened again for ever.
    pub fn failed(&self, kind: Kind) -> Option<(Duration, String)> {
        let state = self.state(kind);
        let why = state.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some((self.since(&state.failed)?, why))
    }

    /// Returns for how long the server has answered each request of this watch with status 401. `None`
    /// if the last answer, or the last failure, is another.
    pub fn unauthorized(&self, kind: Kind) -> Option<Duration> {
        self.since(&self.state(kind).unauthorized)
    }

    fn since(&self, moment: &AtomicU64) -> Option<Duration> {
        let at = moment.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.0.start.elapsed().saturating_sub(Duration::from_millis(at)))
    }

    /// Whether all objects of the kind were sent once.
    pub fn is_synced(&self, kind: Kind) -> bool {
        self.state(kind).synced.load(Ordering::Relaxed)
    }

    /// Returns the handle with which the watch of a kind records its state.
    pub(crate) fn pulse(&self, kind: Kind) -> Pulse {
        Pulse { health: self.clone(), kind }
    }

    fn state(&self, kind: Kind) -> &State {
        let index = match kind {
            Kind::Service => 0,
            Kind::EndpointSlice => 1,
            Kind::Node => 2,
            Kind::ServiceCidr => 3,
        };
        &self.0.pulses[index]
    }
}

impl Default for WatchHealth {
    fn default() -> Self {
        Self::new()
    }
}

/// The handle with which one watch records its state.
#[derive(Debug)]
pub(crate) struct Pulse {
    health: WatchHealth,
    kind: Kind,
}

impl Pulse {
    /// Records that the server sent something.
    pub(crate) fn heard(&self) {
        let state = self.health.state(self.kind);
        state.heard.store(self.now(), Ordering::Relaxed);
        state.unauthorized.store(0, Ordering::Relaxed);
    }

    /// Records that there is no watch, because the server does not have or does not allow the
    /// resource: silence is no sign of trouble then.
    pub(crate) fn absent(&self) {
        let state = self.health.state(self.kind);
        state.heard.store(0, Ordering::Relaxed);
        state.unauthorized.store(0, Ordering::Relaxed);
    }

    /// Records a failure, after which the watch is opened again, and whether the failure is that the
    /// server answered with status 401.
    pub(crate) fn failed(&self, why: &impl fmt::Display, is_unauthorized: bool) {
        let state = self.health.state(self.kind);
        *state.failure.lock().unwrap_or_else(PoisonError::into_inner) = why.to_string();
        state.failed.store(self.now(), Ordering::Relaxed);
        if !is_unauthorized {
            state.unauthorized.store(0, Ordering::Relaxed);
        } else if state.unauthorized.load(Ordering::Relaxed) == 0 {
            // Only the task of the watch writes, so nothing comes between.
            state.unauthorized.store(self.now(), Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        self.health.0.start.elapsed().as_millis() as u64 + 1
    }

    /// Records that all objects were sent.
    pub(crate) fn synced(&self) {
        self.health.state(self.kind).synced.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_heard_from() {
        let health = WatchHealth::new();
        for kind in Kind::ALL {
            assert_eq!(health.heard(kind), None);
        }
        health.pulse(Kind::Service).heard();
        health.pulse(Kind::Node).synced();
        assert!(health.heard(Kind::Service).is_some_and(|age| age < Duration::from_secs(60)));
        assert_eq!(health.heard(Kind::Node), None);
        health.pulse(Kind::ServiceCidr).heard();
        health.pulse(Kind::ServiceCidr).absent();
        assert_eq!(health.heard(Kind::ServiceCidr), None);
        assert!(health.is_synced(Kind::Node) && !health.is_synced(Kind::Service));
        assert_eq!(health.failed(Kind::Service), None);
        health.pulse(Kind::Service).failed(&"no route to host", false);
        assert_eq!(health.failed(Kind::Service).unwrap().1, "no route to host");
    }
    #[test]
    fn refusals_last_until_another_answer_or_failure() {
        let health = WatchHealth::new();
        let pulse = health.pulse(Kind::Service);
        let age = || health.unauthorized(Kind::Service);
        for end in [
            (|pulse| pulse.heard()) as fn(&Pulse),
            |pulse| pulse.absent(),
            |pulse| pulse.failed(&"no route to host", false),
        ] {
            assert_eq!(age(), None);
            pulse.failed(&"Unauthorized (401)", true);
            std::thread::sleep(Duration::from_millis(20));
            pulse.failed(&"Unauthorized (401)", true);
            assert!(age().is_some_and(|age| age >= Duration::from_millis(19)), "{:?}", age());
            assert_eq!(health.unauthorized(Kind::Node), None);
            end(&pulse);
        }
        assert_eq!(age(), None);
    }
}
