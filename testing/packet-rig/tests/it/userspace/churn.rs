//! Endpoints come and go under load.

use std::{thread, time::Duration};

use super::{start, web, write};
use crate::traffic::{Route, Traffic};

/// The pods of the Service, phase by phase. All have servers all the time.
const PHASES: [&[&str]; 6] = [
    &["10.244.1.10", "10.244.1.11", "10.244.2.10", "10.244.2.11"],
    &["10.244.1.10", "10.244.1.11"],
    &["10.244.2.10", "10.244.2.11"],
    &["10.244.1.11"],
    &["10.244.1.10", "10.244.2.11"],
    &["10.244.2.10"],
];

const LOAD: [Route; 3] = [
    ("client", "tcp://10.96.0.10:80"),
    ("b", "tcp://10.96.0.10:80"),
    ("node-1", "tcp://192.168.10.1:30080"),
];

/// The connections of an endpoint that leaves go on, as its server does.
#[test]
fn endpoints_that_leave_while_they_serve_lose_nothing() {
    let _calm = crate::stay_calm();
    let rig = start("churn", web(PHASES[0]));
    let load = Traffic::start(&rig, &LOAD, 4);
    for phase in PHASES.iter().cycle().skip(1).take(2 * PHASES.len()) {
        thread::sleep(Duration::from_millis(150));
        write(&rig, &web(phase));
    }
    thread::sleep(Duration::from_millis(300));
    for ((from, to), report) in load.assert_nothing_lost() {
        assert!(report.new_connections.endpoints.len() == 4, "{from} to {to}: {report:?}");
    }
}
