//! Flows of connection tracking, counted for those who ask.

use switchyard::conntrack::{StuckLimit, TrackedFlow, UsageReader};
use switchyard_core::{
    error::ErrorChain,
    explain::{Explanation, FlowCounts},
    proxier::Mode,
};

use crate::pace::Pace;

/// Walks over the kernel's table, one at a time.
#[derive(Debug, Default)]
pub struct FlowReader(Pace);

impl FlowReader {
    /// Shows the flows of the explanation's endpoints, unless the table cannot be read, or the last
    /// walk took seconds and was a moment ago. Takes time in proportion to the table.
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
        if self.walk(each) {
            explanation.set_flows(&counts, limit.is_some());
        }
    }

    /// Hands over each flow of the table, and returns whether these are all: not if the table
    /// cannot be read, or the last walk took seconds and was a moment ago.
    pub fn walk(&self, each: impl FnMut(&TrackedFlow)) -> bool {
        match self.0.run(|| UsageReader::open()?.flows(each)) {
            Some(Ok(())) => true,
            None => false,
            Some(Err(error)) => {
                tracing::debug!(err = %ErrorChain(&error), "Failed to read connection tracking");
                false
            }
        }
    }
}
