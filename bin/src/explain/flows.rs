//! Flows of connection tracking, counted for those who ask.

use switchyard::conntrack::{StuckLimit, TrackedFlow, UsageReader};
use switchyard_core::{
    error::ErrorChain,
    explain::{Explanation, FlowCounts},
    proxier::Mode,
};

use crate::pace::Pace;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCounted {
    #[error("connections are being counted for another question, or were a moment ago")]
    Busy,
    #[error("connection tracking cannot be read")]
    Unreadable,
}

/// Walks over the kernel's table, one at a time.
#[derive(Debug, Default)]
pub struct FlowReader(Pace);

impl FlowReader {
    /// Shows the flows of the explanation's endpoints, or why they are not counted. Takes time in
    /// proportion to the table.
    pub fn count(&self, explanation: &mut Explanation) {
        // The flows of userspace mode end at the proxy.
        let mut counts = FlowCounts::new(explanation);
        if counts.is_empty() || explanation.mode.as_deref() == Some(Mode::USERSPACE.as_str()) {
            return;
        }
        let limit = StuckLimit::read();
        let each = |flow: &TrackedFlow| {
            let is_stuck = limit.is_some_and(|limit| limit.is_stuck(flow));
            counts.add(flow.protocol, flow.destination, flow.answered_by, is_stuck);
        };
        match self.walk(each) {
            Ok(()) => explanation.set_flows(&counts, limit.is_some()),
            Err(why) => explanation.flows_not_counted = Some(why.to_string()),
        }
    }

    /// Hands over each flow of the table.
    ///
    /// # Errors
    /// If these are not all, or none.
    pub fn walk(&self, each: impl FnMut(&TrackedFlow)) -> Result<(), NotCounted> {
        let walked = self.0.run(|| UsageReader::open()?.flows(each)).ok_or(NotCounted::Busy)?;
        walked.map_err(|error| {
            tracing::debug!(err = %ErrorChain(&error), "Failed to read connection tracking");
            NotCounted::Unreadable
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use switchyard_core::{
        config::NodeConfig,
        explain::explain,
        objects::{Event, Kind},
        testing::{NODE, endpoint, service, slice},
        track::Tracker,
    };

    use super::*;

    #[test]
    fn an_answer_beside_another_walk_has_the_reason_for_its_lack_of_flows() {
        let mut tracker = Tracker::new(NodeConfig::new(NODE));
        let pods = slice("web", "a").port("http", "TCP", 8080).endpoint(endpoint("10.1.0.1", NODE));
        tracker.apply(service("web", "10.96.0.1").port("http", "TCP", 80).apply());
        tracker.apply(pods.apply());
        Kind::ALL.map(Event::Listed).into_iter().for_each(|event| drop(tracker.apply(event)));
        tracker.resolve();
        let mut answer = explain(&"ns/web".parse().unwrap(), &tracker);

        let reader = FlowReader::default();
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let reader = &reader;
            scope.spawn(move || {
                reader.0.run(|| {
                    begun.send(()).unwrap();
                    may_end.recv().unwrap();
                })
            });
            has_begun.recv().unwrap();
            reader.count(&mut answer);
            end.send(()).unwrap();
        });
        let text = answer.to_string();
        assert!(
            text.contains("\nflows were not counted: connections are being counted "),
            "{text}"
        );
    }
}
