//! The state of the proxy at a moment, for people: what it serves, when it last synced, who
//! disturbed it, and what it cannot do.

mod board;
mod page;

use std::{sync::Arc, time::Instant};

use serde::Serialize;
use switchyard::health::ProxyHealth;
use switchyard_sources::kube::WatchHealth;

use super::{
    conntrack::{NEARLY_FULL, TableUsage},
    watches::{WatchReport, WatchState},
};
use crate::{
    config::release,
    objects::{ClientHealth, ClientState},
};

pub use self::board::StatusBoard;
use self::board::{Destination, Drift, Failure, Synced};

/// The state of the proxy at a moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub node: String,
    mode: &'static str,
    pub version: &'static str,
    /// The problems of this moment, in words.
    pub problems: Vec<String>,
    service_ports: usize,
    /// The endpoints of all Service ports, as often as Service ports use them.
    endpoints: usize,
    last_sync: Option<Synced>,
    last_failure: Option<Failure>,
    pub last_drift: Option<Drift>,
    watches: Vec<WatchState>,
    /// The client of `--objects-socket`; `None` without that.
    objects_client: Option<ClientState>,
    /// The use of connection tracking; `None` if the kernel cannot be asked.
    pub conntrack: Option<Conntrack>,
    /// Where its entries lead, the most first; `None` if they are not counted.
    destinations: Option<Vec<Destination>>,
    /// The age of these counts. A failure to count leaves the last ones.
    counted_seconds_ago: Option<u64>,
    /// The Service ports, and the Services, that are left out or served otherwise than they ask.
    pub not_as_asked: Vec<NotAsAsked>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Conntrack {
    pub entries: u64,
    pub limit: Option<u64>,
    pub dropped_packets: u64,
    insert_failures: u64,
}

/// A Service or a Service port that is not served as it asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotAsAsked {
    /// The Service port, or the Service.
    pub what: String,
    pub because: String,
}

#[derive(Clone)]
pub struct StatusSources {
    /// The reports of the engine.
    pub board: Arc<StatusBoard>,
    pub health: Arc<ProxyHealth>,
    /// The use of connection tracking's table.
    pub table: Arc<TableUsage>,
    pub watches: WatchHealth,
    /// The client of `--objects-socket`.
    pub client: ClientHealth,
    pub node: String,
}

impl StatusSources {
    /// Returns the status of this moment, in this mode.
    pub fn now(&self, mode: &'static str) -> Status {
        let now = Instant::now();
        let report = self.health.report(now);
        let mut problems = report.problems;
        if report.has_synced && !report.node_eligible {
            let node = &self.node;
            problems.push(format!(
                "load balancers leave this node out: there is no Node {node}, or it is about to go"
            ));
        }
        let watches = WatchReport::new(&self.watches);
        problems.extend(watches.problems);
        let client = self.client.state();
        if client.is_some_and(|client| !client.is_synced) {
            problems.push("no client of --objects-socket has ended a list".to_owned());
        }
        let usage = self.table.get();
        if let Some(percent) = usage.and_then(|usage| usage.percent()).filter(|p| *p >= NEARLY_FULL)
        {
            problems.push(format!("connection tracking is {percent} % full"));
        }
        let mut status = Status {
            node: self.node.clone(),
            mode,
            version: release::OURS,
            problems,
            service_ports: 0,
            endpoints: 0,
            last_sync: None,
            last_failure: None,
            last_drift: None,
            watches: watches.watches,
            objects_client: client,
            conntrack: usage.map(|usage| Conntrack {
                entries: usage.entries,
                limit: usage.limit,
                dropped_packets: usage.dropped,
                insert_failures: usage.insert_failures,
            }),
            destinations: None,
            counted_seconds_ago: None,
            not_as_asked: Vec::new(),
        };
        self.board.show(&mut status, now);
        status
    }
}
