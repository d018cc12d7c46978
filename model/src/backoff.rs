//! The delays between attempts that fail.

use std::time::Duration;

/// Delays that double from the first to the longest.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The delay after the first of several failures in a row.
    pub first: Duration,
    /// The longest delay.
    pub longest: Duration,
}

impl Backoff {
    /// Returns the delay after a failure that follows this number of failures in a row.
    pub fn delay(self, failures: u32) -> Duration {
        self.first.saturating_mul(2u32.saturating_pow(failures)).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest() {
        let backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
        let seconds = [0, 1, 5, 6, u32::MAX].map(|failures| backoff.delay(failures).as_secs());
        assert_eq!(seconds, [1, 2, 32, 60, 60]);
    }
}
