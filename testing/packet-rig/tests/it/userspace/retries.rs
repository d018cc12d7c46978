//! Endpoints that do not accept a connection are passed over.

use packet_rig::{
    case::{Expectation, ProbePlan, Reaches},
    wait::{PATIENCE, scaled},
};

use super::{service, slice, start};
use std::time::Instant;

#[test]
fn endpoints_that_refuse_or_do_not_answer_are_passed_over() {
    // Pods `a` and `c` have servers; port 9999 of `b` refuses, and `d` is silent.
    let served = slice("served", 8080, &["10.244.1.10", "10.244.2.10", "10.244.2.11"]);
    let refusing = slice("refusing", 9999, &["10.244.1.11"]);
    let mut rig = start("retries", service("") + &served + &refusing);
    let silence = "table ip silence {
        chain post {
            type filter hook postrouting priority 0
            ip daddr 10.244.2.11 tcp dport 8080 drop
        }
    }";
    rig.topology.node().namespace.nft(silence).unwrap();
    let targets = ["tcp://10.96.0.10:80", "tcp://192.168.10.1:30080"].map(|to| to.parse().unwrap());
    let expected = Expectation::Reaches(Reaches::all_of(["a", "c"]));
    let plan =
        ProbePlan { count: Some(40), ..ProbePlan::new(&["client", "b"], &targets, expected) };
    let began = Instant::now();
    // Once: a check that repeats would hide a client that fails.
    rig.check_once(&plan).unwrap();
    // With each connection, a client could wait for the endpoint that is silent.
    assert!(began.elapsed() < scaled(PATIENCE), "{:?}", began.elapsed());
}
