//! How fast requests may follow each other (`clientConnection.qps` and `burst`): a token bucket that
//! all requests of this program share.
//!
//! A list counts once, however many pages it has, as the unpaged list of another client would.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::metrics::RequestMetrics;

/// Who waits longer than this says so.
const WORTH_A_WORD: Duration = Duration::from_secs(1);
/// What a rate or a burst of zero means.
const USUAL: RequestPace = RequestPace { qps: 5.0, burst: 10 };
/// The slowest pace, so that no wait is longer than a clock can tell.
const SLOWEST: f64 = 1e-6;

/// The pace of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestPace {
    /// Requests a second in the long run; negative for as many as there are.
    pub qps: f32,
    /// Requests that may be made at once, after a time without any.
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
    metrics: Option<RequestMetrics>,
}

#[derive(Debug)]
struct Bucket {
    /// Requests a second, in the long run.
    qps: f64,
    burst: f64,
    level: Mutex<Level>,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// Requests that may be made at once; negative if so many wait.
    tokens: f64,
    /// When that was so.
    at: Instant,
}

impl Pacer {
    /// Of this pace. As for kube-proxy's own client, 0 means the default.
    pub fn new(pace: RequestPace) -> Self {
        let qps = if pace.qps == 0.0 { USUAL.qps } else { pace.qps };
        let burst = if pace.burst == 0 { USUAL.burst } else { pace.burst };
        let bucket = (qps > 0.0).then(|| {
            let (qps, burst) = (f64::from(qps).max(SLOWEST), f64::from(burst));
            let level = Mutex::new(Level { tokens: burst, at: Instant::now() });
            Arc::new(Bucket { qps, burst, level })
        });
        Self { bucket, metrics: None }
    }

    /// Has the waits told.
    pub fn counting(self, metrics: RequestMetrics) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// Waits until a request with this method may be made. Requests are let through in the order of
    /// their asking.
    pub async fn permit(&self, verb: &str) {
        let Some(bucket) = &self.bucket else { return };
        let wait = bucket.reserve(Instant::now());
        if let Some(metrics) = &self.metrics {
            metrics.held_back(verb, wait);
        }
        if wait > WORTH_A_WORD {
            tracing::info!(?wait, "Waiting before a request, as clientConnection.qps asks for it");
        }
        sleep(wait).await;
    }
}

impl Bucket {
    /// Takes a token, and says how long to wait for it.
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

    /// When each of so many requests is let through, in milliseconds from the first asking.
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
