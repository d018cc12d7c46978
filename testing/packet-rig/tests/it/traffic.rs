//! Traffic while the proxy makes changes or is gone, of which nothing may be lost.

use std::time::Duration;

use packet_rig::{LoadGenerator, LoadPlan, LoadReport, Rig};

/// The place of clients, and their target.
pub type Route = (&'static str, &'static str);

/// Clients that connect again and again, and connections that are kept.
pub struct Traffic(Vec<(Route, LoadGenerator)>);

impl Traffic {
    /// Starts two clients for each route, and so many connections that are kept.
    pub fn start(rig: &Rig, routes: &[Route], kept: usize) -> Self {
        let start = |&(from, to): &Route| {
            let plan = LoadPlan {
                workers: 2,
                persistent: kept,
                pause: Duration::from_millis(3),
                // A busy machine must not look like a lost connection.
                timeout: Duration::from_secs(5),
                ..LoadPlan::new(&rig.place(from).unwrap().namespace, to.parse().unwrap())
            };
            ((from, to), LoadGenerator::start(&plan))
        };
        Self(routes.iter().map(start).collect())
    }

    /// Ends the traffic, none of which may have been lost. Returns the reports of all routes.
    pub fn assert_nothing_lost(self) -> Vec<(Route, LoadReport)> {
        self.assert_lost_at_most(0)
    }

    /// Ends the traffic, of which no connection may have been lost, and at most so many datagrams
    /// of each route. Returns the reports of all routes.
    pub fn assert_lost_at_most(self, datagrams: u64) -> Vec<(Route, LoadReport)> {
        let finish = |((from, to), load): (Route, LoadGenerator)| {
            let report = load.finish().unwrap();
            let (new, kept) = (&report.new_connections, &report.persistent);
            println!(
                "{from} to {to}: {} new connections, {} requests over kept ones, {} and {} lost; \
                 slowest {:?}",
                new.attempts,
                kept.attempts,
                new.failed(),
                kept.failed(),
                new.latency(1.0).unwrap_or_default()
            );
            let bound = if to.starts_with("udp") { datagrams } else { 0 };
            let lost = new.failed() + kept.failed();
            assert!(lost <= bound, "{from} to {to}: {new:?} {kept:?}");
            assert!(new.attempts > 50 && kept.attempts > 10, "{from} to {to}: hardly any traffic");
            ((from, to), report)
        };
        self.0.into_iter().map(finish).collect()
    }
}
