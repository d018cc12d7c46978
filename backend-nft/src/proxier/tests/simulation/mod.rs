//! Stories of everything that can go wrong, in simulated time, on one thread.
//!
//! A source sends events in any order, again, or as lists, some of which are older than what came
//! before. Runner, tracker and backend sync them to a model of the kernel, which refuses
//! transactions, loses answers, is changed by other programs, and sees the process end and begin
//! again. One seed decides all; a failing story is made smaller by proptest.

mod checks;
mod world;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use proptest::{collection::vec, prelude::*, sample::select, test_runner::TestRunner};
use switchyard_core::{
    config::NodeConfig,
    objects::{Event, Kind},
    proxier::ExternalChange,
    runner::{Input, Runner, RunnerConfig},
    testing::{
        NODE, arbitrary_event, assert_invariants, final_objects, proptest_config, replayed_seed,
    },
    track::Tracker,
};
use switchyard_kernel::nftables::{Family, Table, testing::Ruleset};
use tokio::{sync::mpsc, time::sleep};

use self::{
    checks::{Judge, Reports},
    world::{Fault, Faulty, World, lock},
};
use super::{
    super::{PROFILE, parts::UNDIVIDED},
    judge::local_addresses,
    proxier,
};
use crate::layout::names::KUBE_PROXY;

/// The events that a run of all stories must have seen: otherwise it tests less than it seems to.
const SOMETIMES: [&str; 12] = [
    "a refusal left a Service port out",
    "a sync failed",
    "an answer was lost",
    "a process ended before a commit",
    "a process ended after a commit",
    "a process ended between two commits of a sync",
    "another program's damage was reported as drift",
    "a damage was missed",
    "a commit conflicted",
    "a list was older than what came before",
    "a sync came before the end of a list",
    "a sync had three transactions",
];

/// The stories of an ordinary run.
const CASES: u32 = 384;

/// A step of a story.
#[derive(Clone, Debug)]
enum Step {
    /// The source sends an event.
    Event(Box<Event>),
    /// The last event comes again.
    Again,
    /// All objects of a kind are listed, as after a 410.
    List(Kind),
    /// All objects of a kind are listed as they were before as many events, and then as they are.
    OldList(Kind, usize),
    /// One of the next commits meets a fault.
    Fault(usize, Fault),
    /// Reading a table fails.
    Unreadable,
    /// Another program changes the tables, which is reported at once, or suspected later.
    Damage(usize, bool),
    /// The process ends, and another one begins.
    Restart,
    /// Nothing happens for a while.
    Quiet(u64),
}

/// Steps in which only the source is at fault.
fn calm_step() -> impl Strategy<Value = Step> {
    let kind = || select(&Kind::ALL);
    prop_oneof![
        20 => arbitrary_event().prop_map(|event| Step::Event(event.into())),
        1 => Just(Step::Again),
        1 => kind().prop_map(Step::List),
        1 => (kind(), 1..6usize).prop_map(|(kind, before)| Step::OldList(kind, before)),
        2 => (1..120_000u64).prop_map(Step::Quiet),
    ]
}

/// Steps of all kinds.
fn arbitrary_step() -> impl Strategy<Value = Step> {
    let errno = select(&[libc::EPERM, libc::ENOENT, libc::EEXIST, libc::EBUSY, libc::EINVAL]);
    let fault = prop_oneof![
        3 => (any::<usize>(), errno).prop_map(|(n, errno)| Fault::Refused(Some(n), errno)),
        1 => Just(Fault::Refused(None, libc::ENOMEM)),
        2 => Just(Fault::Lost),
        1 => any::<usize>().prop_map(Fault::Overtaken),
        2 => any::<bool>().prop_map(Fault::Crash),
    ];
    prop_oneof![
        24 => calm_step(),
        3 => (0..3usize, fault).prop_map(|(commits, fault)| Step::Fault(commits, fault)),
        1 => Just(Step::Unreadable),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(n, seen)| Step::Damage(n, seen)),
        1 => Just(Step::Restart),
    ]
}

/// A process: its runner, and the objects that were sent to the runner.
struct Process {
    inputs: mpsc::Sender<Input>,
    runner: tokio::task::JoinHandle<()>,
    reports: Arc<Mutex<Reports>>,
    told: Vec<Event>,
}

impl Process {
    /// Starts a process, which lists everything.
    async fn start(world: &Arc<Mutex<World>>, config: &NodeConfig, known: &[Event]) -> Self {
        let number = {
            let mut world = lock(world);
            world.process += 1;
            world.has_crashed = false;
            world.process
        };
        let reports = Arc::new(Mutex::new(Reports::default()));
        let judge = Judge(world.clone(), reports.clone(), local_addresses());
        // Every other process divides whatever it can.
        let undivided = if number.is_multiple_of(2) { 0 } else { UNDIVIDED };
        let proxier = proxier(Faulty(world.clone(), number), undivided);
        let tracker = Tracker::new(config.clone());
        let timing = RunnerConfig::default();
        let runner = Runner::new(tracker, Box::new(proxier), timing, Arc::new(judge)).watched(true);
        let (inputs, received) = mpsc::channel(64);
        let runner = tokio::spawn(async move {
            runner.run(received, std::future::pending()).await;
        });
        let mut process = Self { inputs, runner, reports, told: Vec::new() };
        let addresses = local_addresses().into_iter().collect();
        process.send(Input::InterfaceAddresses(addresses)).await;
        for kind in Kind::ALL {
            process.tell(list(kind, known)).await;
        }
        process
    }

    async fn send(&self, input: Input) {
        // A process that has crashed takes no more inputs.
        let _ = self.inputs.send(input).await;
    }

    async fn tell(&mut self, event: Event) {
        self.told.push(event.clone());
        self.send(Input::Event(event)).await;
    }
}

/// The list of all objects of a kind that these events have left.
fn list(kind: Kind, events: &[Event]) -> Event {
    let mut objects = final_objects(events);
    objects.retain(|object| object.key().kind == kind);
    Event::Replace { kind, objects, malformed: Vec::new() }
}

/// Lives through a story; returns what has happened in it.
async fn live(steps: Vec<Step>) -> BTreeSet<&'static str> {
    let world = Arc::new(Mutex::new(World::default()));
    let config = NodeConfig::new(NODE);
    // All events that the source has sent, to whichever process.
    let mut sent: Vec<Event> = Vec::new();
    let mut process = Process::start(&world, &config, &sent).await;
    let mut problems = Vec::new();
    for step in steps {
        let mut restarts = false;
        match step {
            Step::Event(event) => {
                sent.push((*event).clone());
                process.tell(*event).await;
            }
            Step::Again => {
                if let Some(event) = sent.last().cloned() {
                    sent.push(event.clone());
                    process.tell(event).await;
                }
            }
            Step::List(kind) => process.tell(list(kind, &sent)).await,
            Step::OldList(kind, before) => {
                lock(&world).seen.insert("a list was older than what came before");
                process.tell(list(kind, &sent[..sent.len().saturating_sub(before)])).await;
                sleep(Duration::from_millis(300)).await;
                process.tell(list(kind, &sent)).await;
            }
            Step::Fault(commits, fault) => lock(&world).faults.push((commits, fault)),
            Step::Unreadable => lock(&world).unreadable = true,
            Step::Damage(number, is_seen) => {
                lock(&world).damage(number);
                let change = match is_seen {
                    true => ExternalChange::Changed { by: None },
                    false => {
                        lock(&world).seen.insert("a damage was missed");
                        sleep(Duration::from_secs(7)).await;
                        ExternalChange::Suspected
                    }
                };
                process.send(Input::ExternallyChanged(change)).await;
            }
            Step::Restart => restarts = true,
            Step::Quiet(milliseconds) => sleep(Duration::from_millis(milliseconds)).await,
        }
        sleep(Duration::from_millis(20)).await;
        if std::mem::take(&mut lock(&world).is_unreported) {
            process.send(Input::ExternallyChanged(ExternalChange::Changed { by: None })).await;
        }
        if restarts || lock(&world).has_crashed {
            process.runner.abort();
            problems.append(&mut process.reports.lock().expect("no panic").problems);
            // What packets met when the process ended is followed no further.
            lock(&world).kernel.take_history();
            process = Process::start(&world, &config, &sent).await;
        }
    }
    // Everything is as it should be within two minutes, whatever happened.
    {
        let mut world = lock(&world);
        world.faults.clear();
        world.unreadable = false;
    }
    sleep(Duration::from_secs(120)).await;
    assert!(!process.runner.is_finished(), "the runner has ended");
    let (started, reads) = (process.reports.lock().expect("no panic").started, lock(&world).reads);
    let mut tracker = Tracker::new(config);
    tracker.set_capabilities(PROFILE.capabilities, PROFILE.mode);
    tracker.set_interface_addresses(local_addresses());
    final_objects(&process.told)
        .into_iter()
        .for_each(|object| drop(tracker.apply(Event::Apply(object))));
    tracker.resolve();
    {
        let reports = process.reports.lock().expect("no panic");
        problems.extend(reports.problems.iter().cloned());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        let last = reports.synced.last().expect("a sync");
        assert_invariants(last);
        assert_eq!(last, tracker.state(), "what was synced is what is known");
    }
    // Nothing waits, and nothing is done for nothing.
    sleep(Duration::from_secs(3600)).await;
    let idle = process.reports.lock().expect("no panic").started - started;
    assert!(idle <= 12, "{idle} syncs in an hour without an event");
    assert!(lock(&world).reads <= reads + 2, "tables are read for nothing");
    // Another process finds nothing to do.
    process.runner.abort();
    lock(&world).kernel.take_history();
    let again = Process::start(&world, &NodeConfig::new(NODE), &sent).await;
    sleep(Duration::from_secs(1)).await;
    let history = lock(&world).kernel.take_history();
    again.runner.abort();
    let elements = |state: &Ruleset| -> Vec<String> {
        let tables = Family::ALL.map(|family| Table::new(family, KUBE_PROXY));
        let sets = tables.iter().flat_map(|table| {
            let sets = state.sets(table).map(move |set| (table, set));
            sets.flat_map(|(table, set)| {
                let elements = state.elements(table, set).into_iter().flatten();
                elements.map(move |dump| format!("{table} {set} {:?}", dump.element))
            })
        });
        sets.collect()
    };
    let [first, .., last] = &history[..] else { return lock(&world).seen.clone() };
    assert_eq!(elements(first), elements(last), "a restart changes no element");
    lock(&world).seen.clone()
}

#[test]
fn any_story_ends_well() {
    let seen = Mutex::new(BTreeSet::new());
    let config = proptest_config(CASES);
    let mut runner = TestRunner::new(config);
    let story = prop_oneof![
        1 => vec(calm_step().boxed(), 1..60),
        3 => vec(arbitrary_step().boxed(), 1..60),
    ];
    let result = runner.run(&story, |steps| {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
        let mut happened = runtime.block_on(live(steps));
        seen.lock().expect("no panic").append(&mut happened);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.into_inner().expect("no panic");
    let missed: Vec<_> = SOMETIMES.iter().filter(|what| !seen.contains(*what)).collect();
    assert!(missed.is_empty() || replayed_seed().is_some(), "this never happened: {missed:?}");
}
