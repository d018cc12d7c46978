//! The Event about a table of connections that is nearly full, and then refuses new ones.

use std::{sync::Arc, time::Duration};

use switchyard::conntrack::Usage;
use tokio::{
    task::block_in_place,
    time::{MissedTickBehavior, interval},
};

use super::{Event, Recorder};
use crate::observability::conntrack::{NEARLY_FULL, TableUsage};

/// The interval between two looks.
const PERIOD: Duration = Duration::from_secs(10);
/// The share of the limit, in percent, below which there may be another Event.
const RELAXED: u64 = 70;

/// Records an Event each time the table becomes nearly full. Does not end.
pub async fn watch_table(usage: Arc<TableUsage>, recorder: Recorder) {
    let mut alarm = Alarm::default();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // The kernel may be busy with the table.
        let usage = block_in_place(|| usage.get());
        if let Some(event) = usage.and_then(|usage| alarm.next(usage)) {
            tracing::warn!(note = event.note.as_str(), "Connection tracking is nearly full");
            recorder.record(event);
        }
    }
}

#[derive(Debug, Default)]
struct Alarm {
    is_raised: bool,
}

impl Alarm {
    /// Returns the Event if the table has become nearly full.
    fn next(&mut self, usage: Usage) -> Option<Event> {
        let (percent, limit) = usage.percent().zip(usage.limit)?;
        if self.is_raised {
            self.is_raised = percent >= RELAXED;
            return None;
        }
        self.is_raised = percent >= NEARLY_FULL;
        self.is_raised.then(|| {
            Event::conntrack_nearly_full(format!(
                "connection tracking is {percent} % full: {} of {limit} entries (nf_conntrack_max); new \
                 connections are dropped when it is full",
                usage.entries
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_is_one_event_until_it_has_room_again() {
        let mut alarm = Alarm::default();
        let mut events = |percents: &[u64]| -> Vec<bool> {
            let usage = |percent| {
                let mut usage = Usage::default();
                (usage.entries, usage.limit) = (percent * 10, Some(1000));
                usage
            };
            percents.iter().map(|percent| alarm.next(usage(*percent)).is_some()).collect()
        };
        assert_eq!(events(&[79, 80, 95, 71, 85]), [false, true, false, false, false]);
        assert_eq!(events(&[69, 79, 90]), [false, false, true]);
        assert_eq!(Alarm::default().next(Usage::default()), None, "there is no limit");
    }
}
