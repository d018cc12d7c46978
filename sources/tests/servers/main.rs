//! The Kubernetes source against any server: each scenario runs with the stand-in, and with a
//! genuine API server where `KUBE_APISERVER` and `ETCD` name the programs.
//!
//! [`answers`] compares what the two answer to the same requests. Without these variables, the
//! tests of the genuine server are reported as ignored.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panics")]

mod answers;
#[path = "../rig/mod.rs"]
mod rig;
mod scenarios;
mod server;

use std::{future::Future, pin::Pin, process::ExitCode};

use api_standin::control_plane::Programs;
use libtest_mimic::{Arguments, Completion, Trial};
use tokio::runtime::Runtime;

use self::server::{Lists, Server};

/// A scenario: what is to be seen of a server.
type Scenario = fn(Server) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), |server| Box::pin(scenarios::$name(server)) as _)),*]
    };
}

const SCENARIOS: [(&str, Scenario); 5] = scenarios![
    all_kinds_arrive,
    changes_and_selections_are_followed,
    more_objects_than_a_page_arrive,
    changes_follow_a_restart,
    a_busy_cluster_is_followed,
];

/// The test that compares the two servers' answers.
const ANSWERS: &str = "genuine::answers_are_those_of_the_standin";

/// Why a test with the genuine server is ignored.
const NO_PROGRAMS: &str = "KUBE_APISERVER and ETCD name no programs";

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let programs = Programs::find();
    // A genuine server takes its own processor for a few seconds; others mostly wait.
    let threads = if programs.is_some() { 2 } else { 12 };
    arguments.test_threads = arguments.test_threads.or(Some(threads));
    let mut trials = Vec::new();
    for (name, scenario) in SCENARIOS {
        for lists in Lists::ALL {
            let run = move || {
                Runtime::new()?.block_on(async { scenario(Server::standin(lists).await).await });
                Ok(Completion::Completed)
            };
            trials.push(Trial::ignorable_test(format!("standin::{lists}::{name}"), run));
            let programs = programs.clone();
            let name = format!("genuine::{lists}::{name}");
            let test = name.clone();
            let run = move || {
                let Some(programs) = programs else { return Ok(ignored(&test)) };
                let server = Server::genuine(programs, lists);
                Runtime::new()?.block_on(async { scenario(server.await).await });
                Ok(Completion::Completed)
            };
            trials.push(Trial::ignorable_test(name, run));
        }
    }
    let run = move || {
        let Some(programs) = programs else { return Ok(ignored(ANSWERS)) };
        Runtime::new()?.block_on(answers::are_those_of_the_standin(programs));
        Ok(Completion::Completed)
    };
    trials.push(Trial::ignorable_test(ANSWERS, run));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Records a test with the genuine server as skipped.
fn ignored(test: &str) -> Completion {
    test_netns::skipped_test(test, NO_PROGRAMS);
    Completion::ignored_with(NO_PROGRAMS)
}
