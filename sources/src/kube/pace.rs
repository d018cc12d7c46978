//! The pace of requests (`clientConnection.qps` and `burst`): a token bucket that all users of the
//! API server share.
//!
//! A list counts once, however many pages it has, as an unpaged list does.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::kube::observer::RequestObserver;

/// Longer waits are logged.
const LOGGED_WAIT: Duration = Duration::from_secs(1);
/// The pace that a rate or a burst of zero stands for.
const USUAL: RequestPace = RequestPace { qps: 5.0, burst: 10 };
/// The slowest rate, so that no wait overflows a `Duration`.
const SLOWEST: f64 = 1e-6;

/// The pace of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestPace {
    /// Requests a second in the long run; negative for no limit, 0 for the default of 5.
    pub qps: f32,
    /// Requests that may be made at once after a pause; 0 for the default of 10.
    pub burst: u32,
}

impl Default for RequestPace {
    fn default() -> Self {
        USUAL
    }
}

/// Lets requests through at a [`RequestPace`]. Clones share it.
#[derive(Clone, Debug)]
pub struct Pacer {
    bucket: Option<Arc<Bucket>>,
    observer: Option<Arc<dyn RequestObserver>>,
}

#[derive(Debug)]
struct Bucket {
    /// Requests a second in the long run.
    qps: f64,
    burst: f64,
    level: Mutex<Level>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// The number of requests that may be made at once; negative if that many wait.
    tokens: f64,
    /// The time of `tokens`.
    at: Instant,
}

impl Pacer {
    /// Returns a pacer of this pace.
    pub fn new(pace: RequestPace) -> Self {
        let qps = if pace.qps == 0.0 { USUAL.qps } else { pace.qps };
        let burst = if pace.burst == 0 { USUAL.burst } else { pace.burst };
        let bucket = (qps > 0.0).then(|| {
            let (qps, burst) = (f64::from(qps).max(SLOWEST), f64::from(burst));
            let level = Mutex::new(Level { tokens: burst, at: Instant::now() });
            Arc::new(Bucket { qps, burst, level })
        });
        Self { bucket, observer: None }
    }

    /// Reports the waits to `observer`.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn RequestObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Waits until a request with the HTTP method `verb` may be made. Requests are let through in
    /// the order of the calls.
    pub async fn permit(&self, verb: &str) {
        let Some(bucket) = &self.bucket else { return };
        let wait = bucket.reserve(Instant::now());
        if let Some(observer) = &self.observer {
            observer.held_back(verb, wait);
        }
        if wait > LOGGED_WAIT {
            tracing::info!(?wait, "Request throttled by clientConnection.qps");
        }
        sleep(wait).await;
    }
}

impl Bucket {
    /// Takes a token and returns how long to wait for it.
    fn reserve(&self, now: Instant) -> Duration {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let refilled = now.saturating_duration_since(level.at).as_secs_f64() * self.qps;
        let tokens = (level.tokens + refilled).min(self.burst) - 1.0;
        *level = Level { tokens, at: now };
        Duration::from_secs_f64((-tokens).max(0.0) / self.qps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns when each of `count` requests is let through, in milliseconds from the first call.
    async fn times(pacer: &Pacer, count: usize) -> Vec<u128> {
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..count {
            pacer.permit("GET").await;
            times.push(start.elapsed().as_millis());
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_the_rate() {
        let pacer = Pacer::new(RequestPace { qps: 4.0, burst: 3 });
        assert_eq!(times(&pacer, 5).await, [0, 0, 0, 250, 500]);
        sleep(Duration::from_millis(500)).await;
        assert_eq!(times(&pacer, 3).await, [0, 0, 250], "a pause refills it");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(times(&pacer.clone(), 4).await, [0, 0, 0, 250], "never more than the burst");
    }

    #[tokio::test(start_paused = true)]
    async fn zero_is_the_default_and_negative_no_limit() {
        let found = times(&Pacer::new(RequestPace { qps: 0.0, burst: 0 }), 12).await;
        assert_eq!(found[9..], [0, 200, 400]);
        let found = times(&Pacer::new(RequestPace { qps: -1.0, burst: 0 }), 1000).await;
        assert_eq!(found[999], 0);
    }
}
