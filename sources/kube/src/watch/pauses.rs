//! The pauses between failed requests of a watch.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use switchyard_core::model::Backoff;

/// The pauses of client-go.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(800), longest: Duration::from_secs(30) };
/// A request that lasted this long resets the back-off, as two minutes without a failure do in
/// client-go. A list that is given up does not last so long: a server that is overloaded must not
/// be asked for lists at a fast pace.
const STABLE: Duration = Duration::from_secs(180);

/// Pauses that grow from failure to failure, up to half a minute, and are up to twice as long at
/// random, so that the nodes of a cluster do not come back together.
#[derive(Default)]
pub(super) struct Pauses {
    failures: u32,
}

impl Pauses {
    /// Takes into account that a request failed after this time. Pauses begin anew after a request
    /// that lasted.
    pub(super) fn failed_after(&mut self, lasted: Duration) {
        if lasted > STABLE {
            self.failures = 0;
        }
    }

    /// Returns the next pause, which is not shorter than the server asks for.
    pub(super) fn next(&mut self, at_least: Duration) -> Duration {
        let pause = BACKOFF.delay(self.failures);
        self.failures = self.failures.saturating_add(1);
        let random = RandomState::new().hash_one(self.failures) as f64 / u64::MAX as f64;
        pause.max(at_least) + pause.mul_f64(random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between the longest first pause and the shortest of the later ones, which are random.
    const BETWEEN: Duration = Duration::from_secs(4);

    fn after_failures(pauses: &mut Pauses, count: usize, lasted: Duration) -> Duration {
        let pause = |_| {
            pauses.failed_after(lasted);
            pauses.next(Duration::ZERO)
        };
        (0..count).map(pause).last().unwrap()
    }

    #[test]
    fn pauses_grow_until_a_request_lasts() {
        let mut pauses = Pauses::default();
        assert!(after_failures(&mut pauses, 1, Duration::ZERO) < BETWEEN);
        assert!(after_failures(&mut pauses, 7, STABLE) > BETWEEN);
        assert!(after_failures(&mut pauses, 1, STABLE * 2) < BETWEEN);
        assert!(after_failures(&mut pauses, 7, Duration::ZERO) > BETWEEN);
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
