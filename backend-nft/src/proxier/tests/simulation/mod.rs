//! Stories of everything that can go wrong, in simulated time, on one thread.
//!
//! An API server in memory has its troubles, and is restored from backups. The source watches it,
//! and runner, tracker and backend sync what it has to a model of the kernel, which refuses
//! transactions, loses answers, is changed by other programs, and sees the process end and begin
//! again. One seed decides the story; a failing one is made smaller by proptest.

mod checks;
mod cluster;
mod world;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use proptest::{collection::vec, prelude::*, sample::select};
use switchyard::health::{HealthReport, ProxyHealth};
use switchyard_core::{
    config::NodeConfig,
    model::IpFamily,
    objects::{Event, Kind},
    proxier::ExternalChange,
    runner::{Input, Runner, RunnerConfig},
    testing::{
        Builder, NODE, arbitrary_builder, assert_invariants, final_objects, local_addresses,
        simulation::{Judge, SERVED_ALL_THE_WHILE, live_through, lock},
    },
    track::Tracker,
};
use switchyard_kernel::nftables::{Family, Table, testing::Ruleset};
use switchyard_sources::kube::WatchHealth;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};

use self::{
    cluster::{Cluster, TROUBLES, Told},
    world::{Fault, Slow, World},
};
use super::{
    super::{PROFILE, parts::UNDIVIDED},
    proxier,
};
use crate::layout::names::KUBE_PROXY;

/// The events that a run of all stories must have seen, besides each trouble of the API server.
const SOMETIMES: [&str; 21] = [
    SERVED_ALL_THE_WHILE,
    "a healthy process was checked",
    "an answer was lost",
    "a process ended before a commit",
    "a process ended after a commit",
    "a process ended between two commits of a sync",
    "the monitor lost notifications of a damage",
    "a read was interrupted",
    "a table changed while it was read",
    "a version with sets of other types came before",
    "a version with chains at other priorities came before",
    "a program with chains and sets of its own came before",
    "a commit conflicted",
    "a list lacked what was known",
    "a list was older than what came before",
    "objects changed between two pages of a list",
    "the next page of a list was gone",
    "a sync came before the end of a list",
    "a removal came before the end of a list",
    "a sync had three transactions",
    "a restart had the same to sync",
];

/// The stories of an ordinary run.
const CASES: u32 = 128;

/// The longest time, after all troubles have ended, until everything is as it should be: a source
/// whose resource the server did not have asks again after 300 s.
const CONVERGED: Duration = Duration::from_secs(420);

/// The time after which a change that waits makes a process unhealthy.
const UNHEALTHY_AFTER: Duration = Duration::from_secs(60);

/// The most requests of a source in an hour in which nothing happens: a watch that brings nothing
/// is opened again after 90 s, and the version is asked for after two.
const REQUESTS_AN_HOUR: usize = 4 * (41 + 21);

#[derive(Clone, Debug)]
enum Step {
    /// An object is created or changed; whether it can be read.
    Apply(Box<Builder>, bool),
    Delete(Box<Builder>),
    /// The last object is written again.
    Again,
    /// An endpoint of a slice moves.
    Move(usize),
    /// The server forgets what watches continue with (410).
    Expire,
    /// It does, Services change before they are listed, and one is deleted while the list is
    /// synced.
    ExpireAndDelete,
    /// Lists come in pages, and Services change between two of them; whether the next page is gone
    /// then.
    Pages(bool),
    /// The objects before so many changes come back, with versions that were never used, or not.
    Restore(usize, bool),
    /// A trouble of the API server begins or ends.
    Trouble(usize, bool),
    /// The next requests are answered with this status code.
    Answer(u16, usize),
    /// All connections to the API server break.
    Cut,
    /// One of the next commits meets a fault.
    Fault(usize, Fault),
    /// Reading a table fails.
    Unreadable,
    /// Other programs change a table during all attempts to read it.
    Changing(usize),
    /// Another program changes the tables, which is reported at once, or suspected later: the
    /// monitor's buffer was too small (`ENOBUFS`), and the engine has waited.
    Damage(usize, bool),
    /// The process ends, and another one begins.
    Restart,
    /// The process ends, another program programs the tables in its way, and ours begins again.
    TakenOver(usize),
    /// Nothing happens for a while.
    Quiet(u64),
}

/// Steps in which only the API server is at fault.
fn calm_step() -> impl Strategy<Value = Step> {
    let made = || arbitrary_builder().prop_map(Box::new);
    prop_oneof![
        20 => (made(), prop::bool::weighted(0.95)).prop_map(|(made, is)| Step::Apply(made, is)),
        6 => made().prop_map(Step::Delete),
        1 => Just(Step::Again),
        6 => any::<usize>().prop_map(Step::Move),
        1 => Just(Step::Expire),
        1 => Just(Step::ExpireAndDelete),
        1 => any::<bool>().prop_map(Step::Pages),
        1 => (0..6usize, any::<bool>()).prop_map(|(changes, is)| Step::Restore(changes, is)),
        4 => (0..TROUBLES.len(), any::<bool>()).prop_map(|(number, is)| Step::Trouble(number, is)),
        1 => (select(&[410, 429, 500, 503, 504]), 1..8usize)
            .prop_map(|(code, times)| Step::Answer(code, times)),
        1 => Just(Step::Cut),
        2 => (1..120_000u64).prop_map(Step::Quiet),
        1 => (900..2_000u64).prop_map(Step::Quiet),
    ]
}

fn arbitrary_step() -> impl Strategy<Value = Step> {
    let errno = [libc::EPERM, libc::ENOENT, libc::EEXIST, libc::EBUSY, libc::EINVAL, libc::ENOSPC];
    let errno = select(errno.to_vec());
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
        1 => any::<usize>().prop_map(Step::Changing),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(n, seen)| Step::Damage(n, seen)),
        1 => Just(Step::Restart),
        1 => any::<usize>().prop_map(Step::TakenOver),
    ]
}

/// A process: its source, its runner, and their reports.
struct Process {
    inputs: mpsc::Sender<Input>,
    tasks: JoinSet<()>,
    judge: Arc<Judge<World>>,
    told: Arc<Mutex<Told>>,
    watches: WatchHealth,
    /// The health that `/healthz` reports.
    health: Arc<ProxyHealth>,
}

impl Process {
    async fn start(world: &Arc<Mutex<World>>, config: &NodeConfig, cluster: &Cluster) -> Self {
        let number = {
            let mut world = lock(world);
            world.happened.process += 1;
            world.happened.has_crashed = false;
            world.is_in_list = false;
            world.removals.clear();
            world.served.clear();
            // Each time takes turns with each division.
            world.sync_takes = Duration::from_millis([0, 10, 400][world.happened.process % 3]);
            world.happened.process
        };
        let judge = Judge::new(world);
        let health = Arc::new(ProxyHealth::new(UNHEALTHY_AFTER));
        health.started(&IpFamily::ALL, Default::default());
        let observer = Arc::new((judge.clone(), health.clone()));
        // Every other process divides whatever it can.
        let undivided = if number.is_multiple_of(2) { 0 } else { UNDIVIDED };
        let proxier = Slow(proxier(world::transport(world, number), undivided), world.clone());
        let tracker = Tracker::new(config.clone());
        let timing = RunnerConfig::default();
        let runner = Runner::new(tracker, Box::new(proxier), timing, observer).watched(true);
        let (inputs, received) = mpsc::channel(64);
        let addresses = local_addresses().into_iter().collect();
        let _ = inputs.send(Input::InterfaceAddresses(addresses)).await;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(runner.run(received, std::future::pending()).await) });
        let server = &cluster.server;
        let (told, watches) = cluster::start_source(&mut tasks, world, server, inputs.clone());
        Self { inputs, tasks, judge, told, watches, health }
    }

    async fn send(&self, input: Input) {
        // A process that has crashed takes no more inputs.
        let _ = self.inputs.send(input).await;
    }

    /// The health, if changes may wait for so long.
    fn health(&self, patience: Duration) -> HealthReport {
        self.health.set_timeout(patience);
        self.health.report(Instant::now().into_std())
    }

    /// Returns how the health is wrong, unless another program's change is still to be found.
    /// Without faults it is good; and where nothing waits and all is well, packets find what was
    /// synced.
    fn wrong_health(&self, world: &mut World) -> Option<String> {
        if world.happened.is_damaged || world.happened.has_crashed {
            return None;
        }
        let report = self.health(UNHEALTHY_AFTER);
        if !report.healthy() && !world.happened.explain_failure() {
            return Some(format!("unhealthy without a cause: {report:?}"));
        }
        let report = self.health(Duration::ZERO);
        let synced = self.judge.reports().synced.clone().filter(|_| report.healthy())?;
        world.happened.seen.insert("a healthy process was checked");
        let present = [world.kernel.ruleset()];
        let wrong = self.judge.follow_packets(&present, None, &synced).err()?;
        Some(format!("healthy, but {wrong}"))
    }
}

/// Looks up to so many times, 10 ms apart, whether something holds; returns whether it does.
async fn holds_within(looks: usize, holds: impl Fn() -> bool) -> bool {
    for _ in 0..looks {
        if holds() {
            return true;
        }
        sleep(Duration::from_millis(10)).await;
    }
    false
}

/// Lives through a story; returns what has happened in it.
async fn live(first: usize, steps: Vec<Step>) -> BTreeSet<&'static str> {
    let world = Arc::new(Mutex::new(World::default()));
    lock(&world).happened.process = first;
    let config = NodeConfig::new(NODE);
    let mut cluster = Cluster::default();
    // Most of the arbitrary Services have no endpoints.
    cluster.serve();
    let mut process = Process::start(&world, &config, &cluster).await;
    let mut problems = Vec::new();
    for step in steps {
        let mut restarts = false;
        match step {
            Step::Apply(made, is_readable) => cluster.apply(*made, is_readable),
            Step::Delete(made) => cluster.delete(&made),
            Step::Again => cluster.apply_again(),
            Step::Move(number) => cluster.move_endpoint(number),
            Step::Expire => cluster.server.faults().expire_watches(),
            Step::ExpireAndDelete => {
                cluster.server.faults().expire_watches();
                cluster.change_many();
                holds_within(400, || lock(&world).is_in_list).await;
                if let Some(service) = lock(&world).served.first() {
                    cluster.delete_service(service);
                }
            }
            Step::Pages(is_gone) => {
                let requests = cluster.list_in_pages();
                if holds_within(1_000, || cluster.has_paged_since(requests)).await {
                    lock(&world).happened.seen.insert(match is_gone {
                        true => "the next page of a list was gone",
                        false => "objects changed between two pages of a list",
                    });
                    cluster.change_many();
                    if is_gone {
                        cluster.server.store().expire_log();
                    }
                }
            }
            Step::Restore(changes, is_bumped) => {
                lock(&world).is_restored = true;
                cluster.restore(changes, is_bumped).await;
            }
            Step::Trouble(number, begins) => {
                let name = cluster.trouble(number, begins);
                if begins {
                    lock(&world).happened.seen.insert(name);
                }
            }
            Step::Answer(429, times) => {
                cluster.server.faults().throttle_next(None, 20, times);
            }
            Step::Answer(code, times) => cluster.server.faults().fail_next(None, code, times),
            Step::Cut => cluster.server.faults().cut_connections(),
            Step::Fault(commits, fault) => lock(&world).happened.faults.push((commits, fault)),
            Step::Unreadable => lock(&world).unreadable = true,
            Step::Changing(number) => lock(&world).changing = Some(number),
            Step::Damage(number, is_seen) => {
                lock(&world).damage(number);
                let change = match is_seen {
                    true => ExternalChange::Changed { by: None },
                    false => {
                        lock(&world)
                            .happened
                            .seen
                            .insert("the monitor lost notifications of a damage");
                        sleep(Duration::from_secs(7)).await;
                        ExternalChange::Suspected
                    }
                };
                process.send(Input::ExternallyChanged(change)).await;
            }
            Step::Restart => restarts = true,
            Step::TakenOver(number) => {
                process.tasks.abort_all();
                lock(&world).take_over(number);
                restarts = true;
            }
            Step::Quiet(milliseconds) => sleep(Duration::from_millis(milliseconds)).await,
        }
        sleep(Duration::from_millis(20)).await;
        if !restarts {
            problems.extend(process.wrong_health(&mut lock(&world)));
        }
        if std::mem::take(&mut lock(&world).happened.is_unreported) {
            process.send(Input::ExternallyChanged(ExternalChange::Changed { by: None })).await;
        }
        if restarts || lock(&world).happened.has_crashed {
            process.tasks.shutdown().await;
            problems.append(&mut process.judge.reports().problems);
            // What packets met when the process ended is followed no further.
            lock(&world).kernel.take_history();
            process = Process::start(&world, &config, &cluster).await;
        }
        problems.extend(cluster.wrong_health(&process.watches));
    }
    // Everything is as it should be soon, whatever happened.
    cluster.mend();
    {
        let mut world = lock(&world);
        world.happened.faults.clear();
        world.unreadable = false;
        world.changing = None;
    }
    sleep(CONVERGED).await;
    assert!(!process.inputs.is_closed(), "the runner has ended");
    let (started, reads) = (process.judge.reports().started, lock(&world).reads);
    let mut tracker = Tracker::new(config);
    tracker.set_capabilities(PROFILE.capabilities, PROFILE.mode);
    tracker.set_interface_addresses(local_addresses());
    let told: Vec<Event> = {
        let told = process.told.lock().expect("no panic");
        problems.extend(cluster.difference(&told.objects));
        told.events.clone()
    };
    for kind in Kind::ALL {
        let heard = process.watches.heard(kind);
        let is_heard = heard.is_some_and(|heard| heard < Duration::from_secs(90));
        assert!(is_heard && process.watches.is_synced(kind), "{kind} was heard from {heard:?} ago");
    }
    final_objects(&told).into_iter().for_each(|object| drop(tracker.apply(Event::Apply(object))));
    tracker.resolve();
    {
        let reports = process.judge.reports();
        problems.extend(reports.problems.iter().cloned());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        let last = reports.synced.as_ref().expect("a sync");
        assert_invariants(last);
        assert_eq!(last, tracker.state(), "what was synced is what is known");
        let present = [lock(&world).kernel.ruleset()];
        assert!(process.health(UNHEALTHY_AFTER / 10).healthy(), "nothing has waited for long");
        process
            .judge
            .follow_packets(&present, None, last)
            .expect("the kernel does as is asked for");
    }
    // Nothing waits, and nothing is done for nothing.
    let requests = cluster.server.requests().len();
    sleep(Duration::from_secs(3600)).await;
    let idle = process.judge.reports().started - started;
    assert!(idle <= 12, "{idle} syncs in an hour without an event");
    assert!(lock(&world).reads <= reads + 2, "tables are read for nothing");
    let requests = cluster.server.requests().len() - requests;
    assert!(requests <= REQUESTS_AN_HOUR, "{requests} requests for nothing");
    // Another process finds nothing to do.
    process.tasks.shutdown().await;
    let remembered = lock(&world).remembered;
    lock(&world).kernel.take_history();
    let mut again = Process::start(&world, &NodeConfig::new(NODE), &cluster).await;
    sleep(Duration::from_secs(5)).await;
    let history = lock(&world).kernel.take_history();
    again.tasks.shutdown().await;
    let last = |process: &Process| process.judge.reports().synced.clone();
    if last(&process) != last(&again) {
        // The older process knows what an object was before it could not be read.
        return lock(&world).happened.seen.clone();
    }
    lock(&world).happened.seen.insert("a restart had the same to sync");
    let afresh = lock(&world).remembered;
    let is_kept = remembered.iter().zip(afresh).all(|(kept, needed)| *kept <= needed);
    let is_kept = is_kept && remembered.last() == afresh.last();
    assert!(is_kept, "what is remembered grows: {remembered:?}, and {afresh:?} is needed");
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
    let [first, .., last] = &history[..] else { return lock(&world).happened.seen.clone() };
    assert_eq!(elements(first), elements(last), "a restart changes no element");
    lock(&world).happened.seen.clone()
}

#[test]
fn any_story_ends_well() {
    let story = prop_oneof![
        1 => vec(calm_step().boxed(), 1..60),
        3 => vec(arbitrary_step().boxed(), 1..60),
    ];
    let sometimes = SOMETIMES.into_iter().chain(TROUBLES.map(|(name, _)| name));
    let stories = (0..6usize, story);
    live_through(CASES, &stories, sometimes, async |(first, steps)| live(first, steps).await);
}
