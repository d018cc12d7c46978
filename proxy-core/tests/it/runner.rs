//! The runner, on a paused clock, with a backend that writes down what it is asked.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use proxy_core::{
    config::NodeConfig,
    objects::{Event, Kind},
    proxier::{Proxier, ProxierError, SyncReport},
    runner::{Input, Observer, Pace, Runner, RunnerConfig, SyncOutcome},
    state::{Delta, State},
    testing::{Builder, NODE, endpoint, node, service, slice},
    track::{Problem, Tracker},
};
use tokio::{
    sync::mpsc::{self, Sender},
    task::JoinHandle,
    time::{Instant, sleep},
};

const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What the backend was asked, and when.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    /// Milliseconds since the start.
    at: u128,
    ports: Vec<String>,
    is_full: bool,
    /// How many ports the state had.
    size: usize,
}

/// What the observer was told of a success.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    duration: Duration,
    latency: Option<Duration>,
    trigger_times: Vec<String>,
    no_local_internal: usize,
}

#[derive(Debug, Default)]
struct Log {
    asked: Vec<Asked>,
    told: Vec<Told>,
    failed: Vec<String>,
    requested: usize,
    changed: Vec<Kind>,
    rejected: Vec<String>,
    eligible: Vec<bool>,
    /// Results of the next syncs; after them, all succeed.
    outcomes: VecDeque<bool>,
    /// How long a sync takes.
    takes: Duration,
}

struct Recorder {
    start: Instant,
    log: Arc<Mutex<Log>>,
}

#[async_trait]
impl Proxier for Recorder {
    fn mode(&self) -> &'static str {
        "recorder"
    }

    async fn sync(&mut self, state: &State, delta: &Delta) -> Result<SyncReport, ProxierError> {
        let (takes, succeeds) = {
            let mut log = self.log.lock().unwrap();
            log.asked.push(Asked {
                at: self.start.elapsed().as_millis(),
                ports: delta.service_ports.iter().map(|id| id.name.to_string()).collect(),
                is_full: delta.full,
                size: state.service_ports.len(),
            });
            (log.takes, log.outcomes.pop_front().unwrap_or(true))
        };
        sleep(takes).await;
        match succeeds {
            true => Ok(SyncReport { added: 7, ..SyncReport::default() }),
            false => Err(ProxierError::Backend {
                mode: "recorder",
                message: "no".to_owned(),
                source: None,
            }),
        }
    }

    async fn cleanup(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}

struct Watcher(Arc<Mutex<Log>>);

impl Observer for Watcher {
    fn rejected(&self, problem: &Problem) {
        self.0.lock().unwrap().rejected.push(problem.to_string());
    }

    fn changed(&self, kind: Kind) {
        self.0.lock().unwrap().changed.push(kind);
    }

    fn sync_requested(&self) {
        self.0.lock().unwrap().requested += 1;
    }

    fn synced(&self, outcome: &SyncOutcome<'_>) {
        assert_eq!(outcome.report.added, 7);
        assert!(outcome.delta.service_ports.len() <= outcome.state.service_ports.len() + 1);
        self.0.lock().unwrap().told.push(Told {
            duration: outcome.duration,
            latency: outcome.latency,
            trigger_times: outcome.trigger_times.to_vec(),
            no_local_internal: outcome.no_local_endpoints.v4.internal,
        });
    }

    fn sync_failed(&self, error: &ProxierError, delta: &Delta, _duration: Duration) {
        assert!(!delta.is_empty());
        self.0.lock().unwrap().failed.push(error.to_string());
    }

    fn node_eligible(&self, is_eligible: bool) {
        self.0.lock().unwrap().eligible.push(is_eligible);
    }
}

/// A runner on a task, and what it does.
struct Running {
    inputs: Sender<Input>,
    log: Arc<Mutex<Log>>,
    task: JoinHandle<Box<dyn Proxier>>,
}

fn start(pace: Pace) -> Running {
    start_with(pace, |_, _| {})
}

fn start_with(pace: Pace, prepare: impl FnOnce(&mut Log, &mut Tracker)) -> Running {
    let log = Arc::new(Mutex::new(Log::default()));
    let mut tracker = Tracker::new(NodeConfig::new(NODE));
    prepare(&mut log.lock().unwrap(), &mut tracker);
    let proxier = Box::new(Recorder { start: Instant::now(), log: log.clone() });
    let config = RunnerConfig { pace, ..RunnerConfig::default() };
    let runner = Runner::new(tracker, proxier, config, Arc::new(Watcher(log.clone())));
    let (inputs, receiver) = mpsc::channel(10_000);
    Running { inputs, log, task: tokio::spawn(runner.run(receiver)) }
}

impl Running {
    async fn send(&self, event: Event) {
        self.inputs.send(Input::Event(event)).await.unwrap();
    }

    async fn apply(&self, builders: &[Builder]) {
        for builder in builders {
            self.send(builder.apply()).await;
        }
    }

    /// Lists Services and slices, so that syncs begin.
    async fn list(&self, services: &[Builder]) {
        for (kind, builders) in [(Kind::Service, services), (Kind::EndpointSlice, &[])] {
            let objects = builders.iter().map(Builder::object).collect();
            self.send(Event::Replace { kind, objects, malformed: Vec::new() }).await;
        }
    }

    fn asked(&self) -> Vec<Asked> {
        self.log.lock().unwrap().asked.clone()
    }

    /// When syncs were made, in milliseconds.
    fn times(&self) -> Vec<u128> {
        self.asked().iter().map(|asked| asked.at).collect()
    }

    fn told(&self) -> Vec<Told> {
        self.log.lock().unwrap().told.clone()
    }
}

fn web(n: u8) -> Builder {
    service(&format!("s{n}"), &format!("10.0.0.{n}")).port("", "TCP", 80)
}

async fn pass(millis: u64) {
    sleep(Duration::from_millis(millis)).await;
}

const SECOND: Pace = Pace::Fixed(Duration::from_secs(1));

#[tokio::test(start_paused = true)]
async fn nothing_is_synced_before_the_lists_are_there() {
    let running = start(SECOND);
    running.apply(&[web(1)]).await;
    running.inputs.send(Input::Resync).await.unwrap();
    pass(10_000).await;
    let objects = vec![web(1).object()];
    let kind = Kind::Service;
    running.send(Event::Replace { kind, objects, malformed: Vec::new() }).await;
    pass(10_000).await;
    assert_eq!(running.asked(), []);
    assert_eq!(running.log.lock().unwrap().requested, 0);
    let kind = Kind::EndpointSlice;
    running.send(Event::Replace { kind, objects: Vec::new(), malformed: Vec::new() }).await;
    pass(1).await;
    let first = Asked { at: 20_000, ports: vec!["ns/s1".to_owned()], is_full: true, size: 1 };
    assert_eq!(running.asked(), [first]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_runner_syncs_at_once_and_then_keeps_its_pace() {
    let running = start(SECOND);
    running.list(&[]).await;
    pass(5_000).await;
    // Idle: at once.
    running.apply(&[web(1)]).await;
    pass(100).await;
    assert_eq!(running.times(), [0, 5_000]);
    // All that comes within the second is one sync, at its end.
    for n in 2..7 {
        running.apply(&[web(n)]).await;
        pass(100).await;
    }
    pass(2_000).await;
    assert_eq!(running.times(), [0, 5_000, 6_000]);
    let last = running.asked().pop().unwrap();
    assert_eq!(last.ports, ["ns/s2", "ns/s3", "ns/s4", "ns/s5", "ns/s6"]);
    assert!(!last.is_full);
    // What changes nothing is no sync.
    running.apply(&[web(1), web(2), slice("unknown", "1")]).await;
    pass(10_000).await;
    assert_eq!(running.times().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_pace_counts_from_the_end_of_a_sync() {
    let running = start_with(SECOND, |log, _| log.takes = Duration::from_millis(300));
    running.list(&[]).await;
    pass(100).await;
    // Comes during the sync.
    running.apply(&[web(1)]).await;
    pass(5_000).await;
    assert_eq!(running.times(), [0, 1_300]);
    assert_eq!(running.told()[0].duration, Duration::from_millis(300));
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_pace_is_twenty_times_the_sync_up_to_its_longest() {
    let pace = Pace::Adaptive { longest: Duration::from_secs(1) };
    for (takes, waits) in [(0, 0), (5, 100), (20, 400), (300, 1_000)] {
        let running = start_with(pace, |log, _| log.takes = Duration::from_millis(takes));
        running.list(&[]).await;
        pass(1).await;
        running.apply(&[web(1)]).await;
        pass(5_000).await;
        // With syncs that take no time, the second one starts when the change comes.
        let expected = (takes + waits).max(1);
        assert_eq!(running.times(), [0, u128::from(expected)], "{takes} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_one_sync() {
    let running = start(Pace::Adaptive { longest: Duration::from_secs(1) });
    running.list(&[]).await;
    pass(1_000).await;
    for n in 1..=250 {
        // Without giving the runner a turn.
        running.inputs.try_send(Input::Event(web(n).apply())).unwrap();
    }
    pass(1_000).await;
    assert_eq!(running.asked().len(), 2);
    assert_eq!(running.asked()[1].ports.len(), 250);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_repeated_in_full_with_growing_delays_and_loses_nothing() {
    let running = start_with(Pace::Fixed(Duration::ZERO), |_, _| {});
    running.list(&[web(1)]).await;
    pass(1_000).await;
    running.log.lock().unwrap().outcomes = vec![false; 10].into();
    running.apply(&[web(2)]).await;
    pass(100).await;
    // Comes while a retry is due soon: goes along.
    running.apply(&[web(3)]).await;
    running.send(web(1).delete()).await;
    pass(200_000).await;
    let asked = running.asked();
    let waits: Vec<u128> = asked.windows(2).map(|pair| pair[1].at - pair[0].at).skip(1).collect();
    assert_eq!(waits, [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
    assert_eq!(asked[1].ports, ["ns/s2"]);
    assert!(!asked[1].is_full);
    for asked in &asked[2..] {
        assert_eq!(asked.ports, ["ns/s1", "ns/s2", "ns/s3"]);
        assert!(asked.is_full);
        assert_eq!(asked.size, 2);
    }
    let log = running.log.lock().unwrap();
    assert_eq!(log.failed, vec!["recorder: no"; 10]);
    assert_eq!(log.told.len(), 2);
    // From the arrival of the oldest change to the success, failures included.
    let since: u128 = waits.iter().sum();
    assert_eq!(log.told[1].latency.map(|latency| latency.as_millis()), Some(since));
}

#[tokio::test(start_paused = true)]
async fn what_may_be_the_remedy_is_tried_within_a_second() {
    let running = start_with(Pace::Fixed(Duration::ZERO), |_, _| {});
    running.list(&[web(1)]).await;
    pass(1_000).await;
    running.log.lock().unwrap().outcomes = vec![false; 10].into();
    running.apply(&[web(2)]).await;
    // Failed at 0, 200, 600, 1,400, 3,000, 6,200 and 12,600 ms: the next is due at 25,400.
    pass(13_000).await;
    assert_eq!(running.times().last(), Some(&13_600));
    running.apply(&[web(3)]).await;
    pass(500).await;
    running.apply(&[web(4)]).await;
    pass(400).await;
    assert_eq!(running.times().last(), Some(&13_600), "not faster either");
    pass(200).await;
    assert_eq!(running.times().last(), Some(&15_000));
}

#[tokio::test(start_paused = true)]
async fn delays_start_small_again_after_a_success_and_keep_the_pace() {
    let running = start(Pace::Fixed(Duration::from_millis(300)));
    running.list(&[web(1)]).await;
    pass(1_000).await;
    for n in 2..4 {
        running.log.lock().unwrap().outcomes = [false, false].into();
        running.apply(&[web(n)]).await;
        pass(10_000).await;
    }
    // 200 ms would be faster than the pace, 400 ms is not.
    let from = |start: u128| [start, start + 300, start + 700];
    assert_eq!(running.times()[1..4], from(1_000));
    assert_eq!(running.times()[4..], from(11_000));
}

#[tokio::test(start_paused = true)]
async fn a_full_sync_is_made_on_a_period() {
    let running = start(SECOND);
    running.list(&[web(1)]).await;
    pass(1_800_000).await;
    running.apply(&[web(2)]).await;
    pass(1_800_500).await;
    assert_eq!(running.times(), [0, 1_800_000, 3_600_000]);
    let full: Vec<bool> = running.asked().iter().map(|asked| asked.is_full).collect();
    assert_eq!(full, [true, false, true]);
    assert_eq!(running.asked()[2].ports, [""; 0]);
    // Nothing asked for it but the period.
    assert_eq!(running.told()[2].latency, None);
    // A resync is full too, and starts the period anew.
    running.inputs.send(Input::Resync).await.unwrap();
    pass(3_600_600).await;
    assert_eq!(running.times()[3..], [3_601_000, 7_201_000]);
}

#[tokio::test(start_paused = true)]
async fn a_full_sync_that_fails_is_not_repeated_without_delay() {
    let running = start(Pace::Fixed(Duration::ZERO));
    running.list(&[web(1)]).await;
    pass(3_599_000).await;
    running.log.lock().unwrap().outcomes = vec![false; 4].into();
    pass(10_000).await;
    assert_eq!(running.times(), [0, 3_600_000, 3_600_200, 3_600_600, 3_601_400, 3_603_000]);
}

#[tokio::test(start_paused = true)]
async fn interface_addresses_and_the_node_are_taken_in() {
    let running = start(SECOND);
    running.list(&[]).await;
    pass(2_000).await;
    running
        .inputs
        .send(Input::InterfaceAddresses(vec!["192.0.2.1".parse().unwrap()]))
        .await
        .unwrap();
    pass(2_000).await;
    assert_eq!(running.times(), [0], "no nodePortAddresses: they do not matter");
    running.apply(&[node("node-1", "192.0.2.1")]).await;
    running.send(node("node-1", "192.0.2.1").delete()).await;
    pass(1).await;
    running.apply(&[node("node-1", "192.0.2.1")]).await;
    pass(1).await;
    running.send(node("node-1", "192.0.2.1").delete()).await;
    pass(1).await;
    let log = running.log.lock().unwrap();
    assert_eq!(log.eligible, [false, true, false]);
    assert_eq!(log.changed, [Kind::Node; 4]);
}

#[tokio::test(start_paused = true)]
async fn another_configuration_of_the_node_is_a_sync_of_what_differs() {
    let running = start(SECOND);
    let shop = web(2).set("spec.externalIPs", serde_json::json!(["192.0.2.1"]));
    running.list(&[web(1), shop]).await;
    pass(2_000).await;
    let same = NodeConfig::new(NODE);
    running.inputs.send(Input::Node(same.clone())).await.unwrap();
    pass(2_000).await;
    assert_eq!(running.times(), [0], "nothing differs");
    let gated = NodeConfig { external_ips: false, ..same };
    running.inputs.send(Input::Node(gated)).await.unwrap();
    pass(2_000).await;
    let second = Asked { at: 4_000, ports: vec!["ns/s2".to_owned()], is_full: false, size: 2 };
    assert_eq!(running.asked()[1..], [second]);
}

#[tokio::test(start_paused = true)]
async fn other_times_count_for_what_waits_already() {
    let hour = Pace::Fixed(Duration::from_secs(3600));
    let running = start(hour);
    running.list(&[web(1)]).await;
    pass(1_000).await;
    running.apply(&[web(2)]).await;
    pass(10_000).await;
    assert_eq!(running.times(), [0]);
    let config = RunnerConfig { pace: SECOND, ..RunnerConfig::default() };
    running.inputs.send(Input::Timing(config)).await.unwrap();
    pass(2_000).await;
    assert_eq!(running.times(), [0, 12_000]);
    // And a longer pace from the next sync on.
    running.inputs.send(Input::Timing(RunnerConfig { pace: hour, ..config })).await.unwrap();
    running.apply(&[web(3), web(4)]).await;
    pass(1_000).await;
    assert_eq!(running.times(), [0, 12_000, 13_000]);
    running.apply(&[web(5)]).await;
    pass(60_000).await;
    assert_eq!(running.times().len(), 3);

    // A failed sync is due again after this at the latest.
    let running = start(Pace::Fixed(Duration::ZERO));
    running.list(&[web(1)]).await;
    pass(1_000).await;
    running.log.lock().unwrap().outcomes = vec![false; 20].into();
    running.apply(&[web(2)]).await;
    pass(13_000).await;
    let short = Duration::from_millis(500);
    let config = RunnerConfig { longest_retry: short, pace: Pace::Fixed(Duration::ZERO), ..config };
    running.inputs.send(Input::Timing(config)).await.unwrap();
    pass(2_100).await;
    let times = running.times();
    assert_eq!(times[times.len() - 4..], [14_500, 15_000, 15_500, 16_000]);
}

#[tokio::test(start_paused = true)]
async fn latencies_trigger_times_and_problems_are_told() {
    let running = start_with(SECOND, |log, _| log.takes = Duration::from_millis(50));
    let local = web(1).set("spec.internalTrafficPolicy", "Local");
    running.list(&[local]).await;
    pass(500).await;
    let of = |time: &str, n: u8| {
        slice("s1", "1")
            .annotation(TRIGGER, time)
            .port("", "TCP", 80)
            .endpoint(endpoint(&format!("10.1.0.{n}"), "node-2"))
            .endpoint(endpoint("127.0.0.1", "node-2"))
    };
    running.apply(&[of("t1", 1)]).await;
    pass(100).await;
    running.apply(&[of("t2", 2)]).await;
    pass(5_000).await;
    let told = running.told();
    assert_eq!(told.len(), 2);
    assert_eq!(told[0].latency, Some(Duration::from_millis(50)));
    // It came at 500 ms and waited for the pace (1,050 ms), then for the sync.
    assert_eq!(told[1].latency, Some(Duration::from_millis(600)));
    assert_eq!(told[1].trigger_times, ["t1"], "t2 changed nothing that is programmed here");
    assert_eq!((told[0].no_local_internal, told[1].no_local_internal), (0, 1));
    let log = running.log.lock().unwrap();
    assert_eq!(log.rejected.len(), 1, "{:?}", log.rejected);
    assert!(log.rejected[0].starts_with("EndpointSlice ns/s1-1: endpoints[1].addresses[0]: "));
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_the_inputs_do_and_gives_the_backend_back() {
    let running = start(SECOND);
    running.list(&[web(1)]).await;
    pass(1).await;
    let Running { inputs, log, task } = running;
    drop(inputs);
    assert_eq!(task.await.unwrap().mode(), "recorder");
    assert_eq!(log.lock().unwrap().asked.len(), 1);
    // Also while it waits to repeat a failed sync.
    let running = start_with(SECOND, |log, _| log.outcomes = vec![false; 100].into());
    running.list(&[web(1)]).await;
    pass(100).await;
    let Running { inputs, task, .. } = running;
    drop(inputs);
    assert_eq!(task.await.unwrap().mode(), "recorder");
}

#[tokio::test(start_paused = true)]
async fn a_tracker_that_knows_a_cluster_is_synced_without_being_told_more() {
    let running = start_with(SECOND, |_, tracker| {
        for (kind, objects) in
            [(Kind::Service, vec![web(1).object()]), (Kind::EndpointSlice, Vec::new())]
        {
            tracker.apply(Event::Replace { kind, objects, malformed: Vec::new() });
        }
    });
    pass(1).await;
    assert_eq!(running.asked().len(), 1);
    assert_eq!(running.asked()[0].ports, ["ns/s1"]);
}

#[tokio::test(start_paused = true)]
async fn periods_may_be_endless() {
    let log = Arc::new(Mutex::new(Log::default()));
    let config = RunnerConfig {
        pace: Pace::Fixed(Duration::MAX),
        longest_retry: Duration::MAX,
        full_period: Duration::MAX,
    };
    let proxier = Box::new(Recorder { start: Instant::now(), log: log.clone() });
    let tracker = Tracker::new(NodeConfig::new(NODE));
    let (inputs, receiver) = mpsc::channel(8);
    let runner = Runner::new(tracker, proxier, config, Arc::new(()));
    let task = tokio::spawn(runner.run(receiver));
    let running = Running { inputs, log, task };
    running.list(&[web(1)]).await;
    pass(100_000).await;
    assert_eq!(running.asked().len(), 1);
    drop(running.inputs);
    running.task.await.unwrap();
}
