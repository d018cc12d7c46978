//! The pauses between failed requests of a watch.

use std::time::Duration;

use kube::runtime::{utils::Backoff, watcher::DefaultBackoff};

/// A request that lasted this long resets the back-off.
const STABLE: Duration = Duration::from_secs(10);
/// The pause after the back-off's last, which it does not have: the back-off never ends.
const LAST: Duration = Duration::from_secs(30);

/// Pauses that grow from failure to failure, up to half a minute.
#[derive(Default)]
pub(super) struct Pauses {
    backoff: DefaultBackoff,
}

impl Pauses {
    /// Takes into account that a request failed after this time. Pauses begin anew after a request
    /// that lasted.
    pub(super) fn failed_after(&mut self, lasted: Duration) {
        if lasted > STABLE {
            self.backoff.reset();
        }
    }

    /// Returns the next pause, which is not shorter than the server asks for.
    pub(super) fn next(&mut self, at_least: Duration) -> Duration {
        self.backoff.next().unwrap_or(LAST).max(at_least)
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

    #[test]
    fn the_server_may_ask_for_a_longer_pause() {
        assert_eq!(Pauses::default().next(Duration::from_secs(50)), Duration::from_secs(50));
    }
}
