//! The silence of the watches on the API server, and the problems that it means.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use switchyard_core::objects::Kind;
use switchyard_sources::kube::WatchHealth;

/// The silence after which a watch is not fresh. A watch is opened again after 90 s, and the server
/// answers that.
const FRESH: Duration = Duration::from_secs(180);

/// The time within which a watch that failed is heard from, or fails again: a pause of 90 s, as the
/// server may ask for a minute (`Retry-After`), and a list that is given up after 120 s, with its
/// connection and credentials before.
const RETRIED_WITHIN: Duration = Duration::from_secs(300);

/// The time for which all watches can be refused as unauthorized before that is reported.
const UNAUTHORIZED_AFTER: Duration = Duration::from_secs(600);

/// The state of a watch on the API server.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchState {
    pub kind: &'static str,
    pub seconds_silent: u64,
    pub is_fresh: bool,
}

/// The watches that were heard from, or have failed.
#[derive(Debug, Default)]
pub struct WatchReport {
    pub watches: Vec<WatchState>,
    pub problems: Vec<String>,
    /// Whether a watch is silent for another reason than that the server cannot be reached.
    pub stuck: bool,
}

impl WatchReport {
    pub fn new(health: &WatchHealth) -> Self {
        let mut report = Self::default();
        for kind in Kind::ALL {
            let failure = health.failed(kind).map(|(age, _)| age);
            report.add(kind, health.silent(kind), failure);
        }
        if let Some(age) = unauthorized(health).filter(|age| *age > UNAUTHORIZED_AFTER) {
            let seconds = age.as_secs();
            report.problems.push(format!(
                "the API server has refused all watches as unauthorized for {seconds} s"
            ));
        }
        report
    }

    fn add(&mut self, kind: Kind, silence: Option<Duration>, failure: Option<Duration>) {
        let Some(silence) = silence else { return };
        let (kind, seconds) = (kind.as_str(), silence.as_secs());
        let is_fresh = silence <= FRESH;
        self.watches.push(WatchState { kind, seconds_silent: seconds, is_fresh });
        if is_fresh {
            return;
        }
        // The cause of a failure is in the log; everybody can read the answer.
        let is_retried = failure.is_some_and(|age| age <= RETRIED_WITHIN);
        self.stuck |= !is_retried;
        let note = if is_retried { "" } else { ": the watch is stuck" };
        self.problems.push(format!("no news of {kind} objects for {seconds} s{note}"));
    }

    /// Returns the seconds of silence for each kind whose watch is not fresh.
    pub fn silent(&self) -> BTreeMap<&'static str, u64> {
        let silent = self.watches.iter().filter(|watch| !watch.is_fresh);
        silent.map(|watch| (watch.kind, watch.seconds_silent)).collect()
    }
}

/// Returns the time for which all watches have been refused as unauthorized. Watches that are
/// absent do not count.
fn unauthorized(health: &WatchHealth) -> Option<Duration> {
    let existing = Kind::ALL.into_iter().filter(|kind| health.silent(*kind).is_some());
    // A watch that is not refused makes the result `None`.
    let ages = existing.map(|kind| health.unauthorized(kind));
    ages.collect::<Option<Vec<Duration>>>()?.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_that_are_silent_are_problems() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let mut watches = WatchReport::default();
        watches.add(Kind::Service, seconds(181), seconds(3));
        watches.add(Kind::EndpointSlice, seconds(180), seconds(3));
        watches.add(Kind::ServiceCidr, None, None);
        assert_eq!(watches.silent(), BTreeMap::from([("Service", 181)]));
        assert_eq!(watches.problems, ["no news of Service objects for 181 s"]);
        assert!(!watches.stuck, "the server is away");
        let mut paused = WatchReport::default();
        paused.add(Kind::Service, seconds(211), seconds(210));
        assert!(!paused.stuck, "the server has asked for a minute, and does not answer");
        watches.add(Kind::Node, seconds(7200), seconds(7000));
        assert!(watches.stuck);
        assert_eq!(watches.problems[1], "no news of Node objects for 7200 s: the watch is stuck");
    }
}
