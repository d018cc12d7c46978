//! Flows of connection tracking, counted for those who ask.

use std::{
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use switchyard::conntrack::{StuckLimit, UsageReader};
use switchyard_core::{
    error::ErrorChain,
    explain::{Explanation, FlowCounts},
    proxier::Mode,
};

/// The pause between two walks over the table, as a multiple of the duration of the first: whoever
/// asks, and however often, the walks take a tenth of a processor.
const PAUSE: u32 = 9;

/// The longest wait for the end of the pause.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// Walks over the kernel's table, one at a time.
#[derive(Debug, Default)]
pub struct FlowReader(Mutex<Option<Instant>>);

impl FlowReader {
    /// Shows the flows of the explanation's endpoints, unless the table cannot be read, or the last
    /// walk took seconds and was a moment ago. Takes time in proportion to the table.
    pub fn count(&self, explanation: &mut Explanation) {
        // The flows of userspace mode end at the proxy.
        let mut counts = FlowCounts::new(explanation);
        if counts.is_empty() || explanation.mode.as_deref() == Some(Mode::USERSPACE.as_str()) {
            return;
        }
        let mut next = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pause =
            next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
        if pause > LONGEST_WAIT {
            return;
        }
        thread::sleep(pause);
        let begun = Instant::now();
        let limit = StuckLimit::read();
        let walked = UsageReader::open().and_then(|mut reader| {
            reader.flows(|flow| {
                let is_stuck = limit.is_some_and(|limit| limit.is_stuck(flow));
                counts.add(flow.protocol, flow.destination, flow.answered_by, is_stuck);
            })
        });
        let took: Duration = begun.elapsed();
        *next = Instant::now().checked_add(took.saturating_mul(PAUSE));
        match walked {
            Ok(()) => explanation.set_flows(&counts, limit.is_some()),
            Err(error) => {
                tracing::debug!(err = %ErrorChain(&error), "Failed to read connection tracking");
            }
        }
    }
}
