//! When the watches were last heard from.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use proxy_core::objects::Kind;

/// Tells how long ago each watch was heard from. Clones share what they know.
#[derive(Clone, Debug)]
pub struct WatchHealth(Arc<Pulses>);

#[derive(Debug)]
struct Pulses {
    start: Instant,
    pulses: [State; Kind::ALL.len()],
}

#[derive(Debug, Default)]
struct State {
    /// Milliseconds since the start, plus one; 0 is never.
    heard: AtomicU64,
    /// The same of the last failure.
    failed: AtomicU64,
    failure: Mutex<String>,
    synced: AtomicBool,
}

impl WatchHealth {
    /// Of watches that were not heard from yet.
    pub fn new() -> Self {
        Self(Arc::new(Pulses { start: Instant::now(), pulses: Default::default() }))
    }

    /// How long ago the server last said something on this watch: an event, a bookmark, or that a
    /// request is granted. `None` if it never did. A healthy watch is heard from every 75 s, and one
    /// that is not is opened again after 90 s. ServiceCIDRs may be absent or forbidden; then
    /// nothing is heard of them.
    pub fn heard(&self, kind: Kind) -> Option<Duration> {
        self.since(&self.state(kind).heard)
    }

    /// How long ago this watch failed last, and why; `None` if it never did. It is tried again all
    /// the time.
    pub fn failed(&self, kind: Kind) -> Option<(Duration, String)> {
        let state = self.state(kind);
        let why = state.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some((self.since(&state.failed)?, why))
    }

    fn since(&self, moment: &AtomicU64) -> Option<Duration> {
        let at = moment.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.0.start.elapsed().saturating_sub(Duration::from_millis(at)))
    }

    /// Whether all objects of the kind were sent once.
    pub fn is_synced(&self, kind: Kind) -> bool {
        self.state(kind).synced.load(Ordering::Relaxed)
    }

    /// For the watch itself.
    pub(super) fn of(&self, kind: Kind) -> Pulse {
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

/// Where one watch tells that it lives.
#[derive(Debug)]
pub(super) struct Pulse {
    health: WatchHealth,
    kind: Kind,
}

impl Pulse {
    /// The server said something.
    pub(super) fn beat(&self) {
        self.health.state(self.kind).heard.store(self.now(), Ordering::Relaxed);
    }

    /// The watch failed, and will be tried again.
    pub(super) fn failed(&self, why: &impl fmt::Display) {
        let state = self.health.state(self.kind);
        *state.failure.lock().unwrap_or_else(PoisonError::into_inner) = why.to_string();
        state.failed.store(self.now(), Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.health.0.start.elapsed().as_millis() as u64 + 1
    }

    /// All objects were sent.
    pub(super) fn synced(&self) {
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
        health.of(Kind::Service).beat();
        health.of(Kind::Node).synced();
        assert!(health.heard(Kind::Service).is_some_and(|age| age < Duration::from_secs(60)));
        assert_eq!(health.heard(Kind::Node), None);
        assert!(health.is_synced(Kind::Node) && !health.is_synced(Kind::Service));
        assert_eq!(health.failed(Kind::Service), None);
        health.of(Kind::Service).failed(&"no route to host");
        assert_eq!(health.failed(Kind::Service).unwrap().1, "no route to host");
    }
}
