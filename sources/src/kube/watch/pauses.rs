//! The pauses between failed requests of a watch, or failed runs of a plugin.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use switchyard_core::model::Backoff;
use tokio::time::Instant;

/// The pauses of client-go.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(800), longest: Duration::from_secs(30) };
/// So long after a pause, a failure is the first again, whatever came in between. client-go waits
/// two minutes, which is as long as a list takes that is given up: a server that is overloaded must
/// not be asked for lists at a fast pace.
const STABLE: Duration = Duration::from_secs(180);

/// Pauses that grow from failure to failure, up to half a minute, and are up to twice as long at
/// random, so that the nodes of a cluster do not come back together.
#[derive(Default)]
pub(crate) struct Pauses {
    failures: u32,
    /// The end of the last pause.
    end: Option<Instant>,
}

impl Pauses {
    /// Returns the pause after a failure, which is not shorter than the server asks for.
    pub(crate) fn next(&mut self, at_least: Duration) -> Duration {
        if self.end.is_some_and(|end| end.elapsed() > STABLE) {
            self.failures = 0;
        }
        let pause = BACKOFF.delay(self.failures);
        self.failures = self.failures.saturating_add(1);
        let random = RandomState::new().hash_one(self.failures) as f64 / u64::MAX as f64;
        let pause = pause.max(at_least) + pause.mul_f64(random);
        self.end = Some(Instant::now() + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

    /// Between the longest first pause and the shortest of the later ones, which are random.
    const BETWEEN: Duration = Duration::from_secs(4);

    /// The last pause of some failures, each of which comes some time after the pause before.
    async fn after_failures(pauses: &mut Pauses, count: usize, after: Duration) -> Duration {
        let mut pause = Duration::ZERO;
        for _ in 0..count {
            time::advance(pause + after).await;
            pause = pauses.next(Duration::ZERO);
        }
        time::advance(pause).await;
        pause
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_until_there_is_no_failure_for_some_time() {
        let mut pauses = Pauses::default();
        assert!(after_failures(&mut pauses, 1, Duration::ZERO).await < BETWEEN);
        assert!(after_failures(&mut pauses, 7, Duration::ZERO).await > BETWEEN);
        // Requests that fail late, such as lists that are given up, change nothing.
        assert!(after_failures(&mut pauses, 3, STABLE * 2 / 3).await > BETWEEN);
        // Nor does it matter how many requests there were without a failure.
        assert!(after_failures(&mut pauses, 1, STABLE * 2).await < BETWEEN);
    }

    /// All nodes are asked for the same pause, and do not come back together.
    #[test]
    fn the_server_may_ask_for_a_longer_pause() {
        let asked = Duration::from_secs(50);
        let found = [(); 2].map(|()| Pauses::default().next(asked));
        assert!(found.iter().all(|pause| *pause >= asked && *pause < asked + BETWEEN), "{found:?}");
        assert_ne!(found[0], found[1]);
    }
}
