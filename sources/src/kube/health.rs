//! A record of when the server was last heard from, for each watch.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use switchyard_core::objects::Kind;
use tokio::time::Instant;

/// The times at which each watch last heard from the server, and last failed. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WatchHealth(Arc<Mutex<HashMap<Kind, State>>>);

#[derive(Debug, Default)]
struct State {
    heard: Option<Instant>,
    /// The time of the first failure, while the server was never heard from.
    in_vain: Option<Instant>,
    failed: Option<(Instant, String)>,
    /// The time at which the server began to answer each request with status 401.
    unauthorized: Option<Instant>,
    is_synced: bool,
}

impl WatchHealth {
    /// Returns a record in which no watch was heard from yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how long ago the server last sent something on this watch: an event, a bookmark, or
    /// the head of an answer. `None` if it never did, and for ServiceCIDRs while they are absent or
    /// forbidden. A healthy watch is heard from every 90 s: if nothing is sent, it is opened again.
    pub fn heard(&self, kind: Kind) -> Option<Duration> {
        self.with(kind, |state| Some(state.heard?.elapsed()))
    }

    /// Returns for how long the server has sent nothing on this watch: since it was heard from, or
    /// if it never was, since the first failure.
    pub fn silent(&self, kind: Kind) -> Option<Duration> {
        self.with(kind, |state| Some(state.heard.or(state.in_vain)?.elapsed()))
    }

    /// Returns how long ago this watch failed last, and why; `None` if it never did. Failed watches
    /// are opened again for ever.
    pub fn failed(&self, kind: Kind) -> Option<(Duration, String)> {
        self.with(kind, |state| state.failed.as_ref().map(|(at, why)| (at.elapsed(), why.clone())))
    }

    /// Returns for how long the server has answered each request of this watch with status 401.
    /// `None` if the last answer, or the last failure, is another.
    pub fn unauthorized(&self, kind: Kind) -> Option<Duration> {
        self.with(kind, |state| Some(state.unauthorized?.elapsed()))
    }

    /// Whether all objects of the kind were sent once.
    pub fn is_synced(&self, kind: Kind) -> bool {
        self.with(kind, |state| state.is_synced)
    }

    /// Makes a watch one that has just failed, was heard from this long ago, and has been refused
    /// for this long; the first refusal is the first failure.
    #[cfg(feature = "testing")]
    pub fn set(&self, kind: Kind, heard: Option<Duration>, unauthorized: Option<Duration>) {
        let now = Instant::now();
        let [heard, unauthorized] = [heard, unauthorized].map(|age| age.map(|age| now - age));
        let failed = Some((now, String::new()));
        let in_vain = unauthorized;
        self.with(kind, |state| {
            *state = State { heard, in_vain, failed, unauthorized, is_synced: false };
        });
    }

    /// Returns the handle with which the watch of a kind records its state.
    pub(crate) fn pulse(&self, kind: Kind) -> Pulse {
        Pulse { health: self.clone(), kind }
    }

    fn with<T>(&self, kind: Kind, act: impl FnOnce(&mut State) -> T) -> T {
        // Each change is complete when the lock is released.
        act(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default())
    }
}

/// The handle with which one watch records its state.
#[derive(Debug)]
pub(crate) struct Pulse {
    health: WatchHealth,
    kind: Kind,
}

impl Pulse {
    fn record(&self, change: impl FnOnce(&mut State)) {
        self.health.with(self.kind, change);
    }

    /// Records that the server sent something.
    pub(crate) fn heard(&self) {
        self.record(|state| {
            state.heard = Some(Instant::now());
            (state.in_vain, state.unauthorized) = (None, None);
        });
    }

    /// Records that there is no watch, because the server does not have or does not allow the
    /// resource: silence is no sign of trouble then.
    pub(crate) fn absent(&self) {
        self.record(|state| {
            (state.heard, state.in_vain, state.unauthorized) = (None, None, None);
        });
    }

    /// Records a failure, after which the watch is opened again, and whether the failure is that
    /// the server answered with status 401.
    pub(crate) fn failed(&self, why: &impl fmt::Display, is_unauthorized: bool) {
        let now = Instant::now();
        self.record(|state| {
            state.failed = Some((now, why.to_string()));
            if state.heard.is_none() {
                state.in_vain.get_or_insert(now);
            }
            state.unauthorized = is_unauthorized.then(|| state.unauthorized.unwrap_or(now));
        });
    }

    /// Records that all objects were sent.
    pub(crate) fn synced(&self) {
        self.record(|state| state.is_synced = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_is_heard_from() {
        let health = WatchHealth::new();
        for kind in Kind::ALL {
            assert_eq!((health.heard(kind), health.silent(kind)), (None, None));
        }
        // A watch that never worked is silent since its first failure.
        let (pulse, past) = (health.pulse(Kind::EndpointSlice), Duration::from_secs(181));
        pulse.failed(&"no route to host", false);
        tokio::time::advance(past).await;
        pulse.failed(&"no route to host", false);
        let age = || (health.heard(Kind::EndpointSlice), health.silent(Kind::EndpointSlice));
        assert_eq!(age(), (None, Some(past)));
        pulse.absent();
        assert_eq!(age(), (None, None));
        pulse.heard();
        tokio::time::advance(past).await;
        pulse.failed(&"no route to host", false);
        assert_eq!(age(), (Some(past), Some(past)));
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

    #[tokio::test(start_paused = true)]
    async fn refusals_last_until_another_answer_or_failure() {
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
            let past = Duration::from_secs(20);
            tokio::time::advance(past).await;
            pulse.failed(&"Unauthorized (401)", true);
            assert_eq!(age(), Some(past));
            assert_eq!(health.unauthorized(Kind::Node), None);
            end(&pulse);
        }
        assert_eq!(age(), None);
    }
}
