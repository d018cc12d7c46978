//! Flows of connection tracking, counted for those who ask.

use switchyard::conntrack::{StuckLimit, UsageReader};
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
        let walked = self.0.run(|| {
            UsageReader::open()?.flows(|flow| {
                let is_stuck = limit.is_some_and(|limit| limit.is_stuck(flow));
                counts.add(flow.protocol, flow.destination, flow.answered_by, is_stuck);
            })
        });
        match walked {
            Some(Ok(())) => explanation.set_flows(&counts, limit.is_some()),
            None => {}
            Some(Err(error)) => {
                tracing::debug!(err = %ErrorChain(&error), "Failed to read connection tracking");
            }
        }
    }
}
