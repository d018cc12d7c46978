//! The metrics of connection tracking's table, which belong to no mode.

use std::sync::Arc;

use prometheus::IntCounterVec;
use switchyard::conntrack::Usage;
use switchyard_core::model::ServiceName;

use super::maker::{Maker, metrics, set};
use crate::observability::conntrack::{Shares, TableUsage};

metrics! {
    /// The series of the table; those of a table that cannot be read are absent.
    Series {
        entries: gauges("switchyard_conntrack_entries",
            "Entries in connection tracking's table", &[]),
        limit: gauges("switchyard_conntrack_entries_limit",
            "Limit of entries in connection tracking's tables", &[]),
        dropped: counters("switchyard_conntrack_dropped_packets_total",
            "Packets that were dropped because no entry could be made", &[]),
        evicted: counters("switchyard_conntrack_evicted_entries_total",
            "Entries that were ended early to make room for others", &[]),
        insert_failures: counters("switchyard_conntrack_insert_failures_total",
            "Entries that could not be inserted because the same entry came first", &[]),
        services: gauges("switchyard_conntrack_service_entries",
            "Entries that lead to the Services with the most of them", &["namespace", "service"]),
        elsewhere: gauges("switchyard_conntrack_other_entries",
            "Entries that lead to no Service, or to one that has no series", &["to"]),
        stuck: gauges("switchyard_conntrack_stuck_connections",
            "Connections to Services whose client has sent data that are not acknowledged", &[]),
    }
}

pub struct TableMetrics {
    /// The use of the table, which others may ask for as well.
    pub usage: Arc<TableUsage>,
    series: Series,
}

impl TableMetrics {
    pub(super) fn new(make: &Maker<'_>) -> prometheus::Result<Self> {
        Ok(Self { usage: Arc::default(), series: Series::new(make)? })
    }

    /// Reads the table. Calls must not overlap, since each call adds the difference to counters.
    pub(super) fn refresh(&self) {
        let Some(usage) = self.usage.get() else { return };
        let Usage { entries, limit, dropped, evicted, insert_failures, .. } = usage;
        set(&self.series.entries, &[], entries);
        if let Some(limit) = limit {
            set(&self.series.limit, &[], limit);
        }
        raise(&self.series.dropped, dropped);
        raise(&self.series.evicted, evicted);
        raise(&self.series.insert_failures, insert_failures);
    }

    /// Replaces the shares of Services.
    pub(super) fn set_shares(&self, shares: Option<&Shares<ServiceName>>) {
        self.series.services.reset();
        self.series.elsewhere.reset();
        self.series.stuck.reset();
        let Some(shares) = shares else { return };
        for (service, entries) in &shares.largest {
            set(&self.series.services, &[service.namespace(), service.name()], *entries);
        }
        set(&self.series.elsewhere, &["service"], shares.others);
        set(&self.series.elsewhere, &["elsewhere"], shares.elsewhere);
        if let Some(stuck) = shares.stuck {
            set(&self.series.stuck, &[], stuck);
        }
    }
}

/// Raises a counter to this value.
fn raise(counters: &IntCounterVec, value: u64) {
    let counter = counters.with_label_values::<&str>(&[]);
    counter.inc_by(value.saturating_sub(counter.get()));
}
