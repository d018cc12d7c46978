//! The measurements.

use std::time::Duration;

use crate::{kernel::RuleCount, view::thousands};

/// All measurements of the script.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// From the rename of the file to the first connection that reached the new endpoint.
    pub added: Duration,
    /// The share of the connections that reached the new endpoint while it had more weight than the
    /// others, in percent.
    pub weighed: f64,
    /// From the rename to the last connection that reached the removed endpoint. `None` if there was
    /// no such connection after the rename.
    pub removed: Option<Duration>,
    /// The number of connections of the Service after that, until the endpoint came back.
    pub since_removed: u64,
    /// From the rename to the first refusal.
    pub refused: Duration,
    /// From the rename to the first answer.
    pub restored: Duration,
    /// The time without a ready proxy after `SIGKILL`.
    pub outage: Duration,
    /// The number of connections in that time.
    pub during_outage: u64,
    /// The number of these connections that failed.
    pub failed_in_outage: u64,
    /// Messages, and bytes of them, that the new process sent to the kernel.
    pub sent: (u64, u64),
    /// The number of rules that were gone after that.
    pub removed_rules: usize,
    /// From the rename to the first connection that reached an endpoint again, by the new process.
    pub added_again: Duration,
    /// The size of the ruleset at the end.
    pub rules: RuleCount,
    /// Answers over the connections that were open all the time.
    pub held_answers: u64,
    /// The number of connections that were open all the time, and how many of them broke.
    pub held: (u64, u64),
}

impl Findings {
    /// The size of the new process's messages to the kernel, in words.
    pub fn sent(&self) -> String {
        let (messages, bytes) = self.sent;
        match (messages, self.removed_rules) {
            (0, _) => "nothing differed".to_owned(),
            (_, 0) => format!("{} bytes", thousands(bytes)),
            // Rules of chains that no Service uses any more go at a restart.
            (_, removed) => format!("{} bytes, {removed} unused rules removed", thousands(bytes)),
        }
    }
}

/// A duration in milliseconds, for people.
pub fn ms(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1000.0;
    match milliseconds {
        100.0.. => format!("{milliseconds:.0} ms"),
        _ => format!("{milliseconds:.1} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_seen_is_said_of_what_was_sent() {
        let said = |messages, removed_rules| {
            Findings { sent: (messages, 1640), removed_rules, ..Findings::default() }.sent()
        };
        assert_eq!(said(0, 0), "nothing differed");
        assert_eq!(said(2, 0), "1,640 bytes");
        assert_eq!(said(2, 3), "1,640 bytes, 3 unused rules removed");
    }

    #[test]
    fn milliseconds_are_as_exact_as_they_need_to_be() {
        assert_eq!(ms(Duration::from_micros(4_560)), "4.6 ms");
        assert_eq!(ms(Duration::from_micros(123_456)), "123 ms");
    }
}
