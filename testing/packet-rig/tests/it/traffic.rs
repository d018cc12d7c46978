//! Traffic while the proxy makes changes or is gone, of which nothing may be lost.

use std::time::Duration;

use packet_rig::{LoadGenerator, LoadPlan, LoadReport, Rig, wait::scaled};

/// The place of clients, and their target.
pub type Route = (&'static str, &'static str);

/// Clients that connect again and again, and connections that are kept.
pub struct Traffic(Vec<(Route, LoadGenerator)>);

impl Traffic {
    /// Starts two clients for each route, and so many connections that are kept.
    pub fn start(rig: &Rig, routes: &[Route], kept: usize) -> Self {
        Self::start_all(rig, routes, kept, false)
    }

    /// Starts the same where flows of UDP end with their endpoint. An answer that is on its way
    /// while the conntrack entry of its flow is deleted is lost: its client asks once more.
    pub fn start_repeating(rig: &Rig, routes: &[Route], kept: usize) -> Self {
        Self::start_all(rig, routes, kept, true)
    }

    fn start_all(rig: &Rig, routes: &[Route], kept: usize, is_repeated: bool) -> Self {
        let start = |&(from, to): &Route| {
            let plan = LoadPlan {
                workers: 2,
                persistent: kept,
                // An emulated machine has time for the proxy, too.
                pause: scaled(Duration::from_millis(3)),
                // A busy machine must not look like a lost connection.
                timeout: scaled(Duration::from_secs(5)),
                is_repeated,
                ..LoadPlan::new(&rig.place(from).unwrap().namespace, to.parse().unwrap())
            };
            ((from, to), LoadGenerator::start(&plan))
        };
        Self(routes.iter().map(start).collect())
    }

    /// Ends the traffic, none of which may have been lost. Returns the reports of all routes.
    pub fn assert_nothing_lost(self) -> Vec<(Route, LoadReport)> {
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
            assert_eq!(new.failed() + kept.failed(), 0, "{from} to {to}: {new:?} {kept:?}");
            assert!(new.attempts > 50 && kept.attempts > 10, "{from} to {to}: hardly any traffic");
            ((from, to), report)
        };
        self.0.into_iter().map(finish).collect()
    }
}
