//! Stories of everything that can go wrong, in simulated time, on one thread.
//!
//! Runner, tracker and backend sync what a source reports ([`Telling`]) to a model of the programs
//! and their tables, which refuses lines, keeps the lock, loses answers, is changed by other
//! programs, and sees the process end and begin again. One seed decides all; a failing story is
//! made smaller by proptest.

mod checks;
mod world;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use proptest::{collection::vec, prelude::*};
use switchyard_core::{
    config::NodeConfig,
    objects::Event,
    proxier::ExternalChange,
    runner::Input,
    testing::{
        Process, Telling, arbitrary_config, arbitrary_telling, local_addresses,
        simulation::{Judge, SERVED_ALL_THE_WHILE, World as _, live_through, lock},
    },
};
use switchyard_kernel::xtables::{Tools, testing::SharedMachine};
use tokio::time::sleep;

use self::{
    checks::assert_as_afresh,
    world::{Fault, Programs, World},
};
use super::super::IptablesProxier;
use crate::IptablesConfig;

/// The events that a run of all stories must have seen.
const SOMETIMES: [&str; 8] = [
    SERVED_ALL_THE_WHILE,
    "an answer was lost",
    "another program kept the lock",
    "a process ended before a commit",
    "a process ended after a commit",
    "a process ended between two tables",
    "a table could not be shown",
    "a sync of changes met a damage",
];

/// The stories of an ordinary run.
const CASES: u32 = 192;

#[derive(Clone, Debug)]
enum Step {
    Told(Telling),
    /// One of the next restores meets a fault.
    Fault(usize, Fault),
    /// Reading the tables fails, or they have rules that iptables cannot show.
    Unreadable(bool),
    /// Another program changes the tables, which is reported at once, or suspected later.
    Damage(usize, bool),
    /// The process ends, and another one begins.
    Restart,
}

fn arbitrary_step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![
        3 => any::<usize>().prop_map(Fault::Refused),
        1 => Just(Fault::Locked),
        2 => Just(Fault::Lost),
        1 => any::<usize>().prop_map(Fault::Overtaken),
        2 => (0..4usize).prop_map(Fault::Crash),
    ];
    prop_oneof![
        24 => arbitrary_telling().prop_map(Step::Told),
        3 => (0..3usize, fault).prop_map(|(restores, fault)| Step::Fault(restores, fault)),
        1 => any::<bool>().prop_map(Step::Unreadable),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(n, seen)| Step::Damage(n, seen)),
        1 => Just(Step::Restart),
    ]
}

async fn start(
    world: &Arc<Mutex<World>>,
    config: &NodeConfig,
    known: &[Event],
) -> (Process, Arc<Judge<World>>) {
    let number = {
        let mut world = lock(world);
        world.happened.process += 1;
        world.happened.has_crashed = false;
        // What packets met when the process before ended is followed no further.
        world.take_history();
        world.happened.process
    };
    let programs = SharedMachine(Arc::new(Mutex::new(Programs(world.clone(), number))));
    let proxier = IptablesProxier::with_tools(IptablesConfig::default(), Tools::on(&programs));
    let (proxier, judge) = (Box::new(proxier), Judge::new(world));
    let addresses = local_addresses();
    (Process::start(config.clone(), addresses, proxier, judge.clone(), known).await, judge)
}

/// Lives through a story; returns what has happened in it.
async fn live(config: NodeConfig, steps: Vec<Step>) -> BTreeSet<&'static str> {
    let world = Arc::new(Mutex::new(World::new()));
    // All events that the source has sent, to whichever process.
    let mut sent: Vec<Event> = Vec::new();
    let (mut process, mut judge) = start(&world, &config, &sent).await;
    for step in steps {
        let mut restarts = false;
        match step {
            Step::Told(telling) => process.play(telling, &mut sent).await,
            Step::Fault(restores, fault) => lock(&world).happened.faults.push((restores, fault)),
            Step::Unreadable(is_incompatible) => {
                lock(&world).unreadable = Some(is_incompatible);
                process.send(Input::Compare).await;
            }
            Step::Damage(number, is_seen) => {
                lock(&world).damage(number);
                let change = match is_seen {
                    true => ExternalChange::Changed { by: None },
                    false => {
                        sleep(Duration::from_secs(7)).await;
                        ExternalChange::Suspected
                    }
                };
                process.send(Input::ExternallyChanged(change)).await;
            }
            Step::Restart => restarts = true,
        }
        sleep(Duration::from_millis(20)).await;
        if std::mem::take(&mut lock(&world).happened.is_unreported) {
            process.send(Input::ExternallyChanged(ExternalChange::Changed { by: None })).await;
        }
        judge.assert_right();
        if restarts || lock(&world).happened.has_crashed {
            process.kill();
            (process, judge) = start(&world, &config, &sent).await;
        }
    }
    // Everything is as it should be within two minutes, whatever happened.
    {
        let mut world = lock(&world);
        world.happened.faults.clear();
        world.unreadable = None;
    }
    sleep(Duration::from_secs(120)).await;
    assert!(!process.is_over(), "the runner has ended");
    judge.assert_right();
    let last = judge.reports().synced.clone().expect("a sync");
    process.assert_knows(&last, &sent, &config, local_addresses());
    assert_as_afresh(&lock(&world).tables, &last);
    // Nothing waits, and nothing is written or read for nothing.
    lock(&world).written = None;
    let reads = lock(&world).reads;
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(lock(&world).written, None, "an idle process writes");
    assert!(lock(&world).reads <= reads + 4, "tables are read for nothing");
    // Another process finds nothing to do.
    process.kill();
    let (again, judge) = start(&world, &config, &sent).await;
    sleep(Duration::from_secs(1)).await;
    let written = lock(&world).written.take();
    assert_eq!(written, None, "a restart writes");
    again.kill();
    judge.assert_right();
    lock(&world).happened.seen.clone()
}

#[test]
fn any_story_ends_well() {
    let story = prop_oneof![
        1 => vec(arbitrary_telling().prop_map(Step::Told).boxed(), 1..60),
        3 => vec(arbitrary_step().boxed(), 1..60),
    ];
    let stories = (arbitrary_config(), story);
    live_through(CASES, &stories, SOMETIMES, async |(config, steps)| live(config, steps).await);
}
