//! The measurements.

use std::time::Duration;

use super::kernel::RuleCount;
use crate::{stage::Changes, view::thousands};

/// All measurements of the script.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Whether the proxy followed a genuine API server, and changes were requests to it. Else, a change was
    /// the rename of a manifest.
    pub has_server: bool,
    /// The changes to `web`.
    pub changes: Changes,
    /// From the change to the first refusal.
    pub refused: Duration,
    /// From the change to the first answer.
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
    /// From the change to the first connection that reached an endpoint again, by the new process.
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
}
