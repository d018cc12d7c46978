//! The runner, on a paused clock, with a backend that writes down what it is asked.

mod capabilities;
mod conflicting;
mod external_changes;
mod lists;
mod node_wait;
mod refusals;
mod retries;
mod revisits;
mod syncs;

use std::{
    collections::{BTreeSet, VecDeque},
    convert::identity,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    model::PerFamily,
    objects::{Event, Kind},
    proxier::{
        Backend, Capabilities, DegradedPort, ExternalChange, Mode, Probed, Profile, Proxier,
        ProxierError, SyncReport,
    },
    runner::{EngineEvent, Input, Pace, Runner, RunnerConfig, SyncOutcome},
    testing::{Builder, NODE, endpoint, list, node, service, slice},
    track::{NodeFacts, Tracker},
    transition::Transition,
};
use tokio::{
    sync::mpsc::{self, Sender},
    task::JoinHandle,
    time::{Instant, sleep},
};

const RECORDER: Mode = Mode::new("recorder");
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The calls of the backend, and when.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    /// Milliseconds since the start.
    at: u128,
    ports: Vec<String>,
    is_full: bool,
    /// The number of ports the state had.
    size: usize,
}

/// An observed success.
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
    /// The frontends that lead to endpoints, in each call.
    served: Vec<BTreeSet<String>>,
    told: Vec<Told>,
    failed: Vec<String>,
    requested: usize,
    changed: Vec<Kind>,
    rejected: Vec<String>,
    eligible: Vec<bool>,
    comparisons: usize,
    stays: Vec<String>,
    /// Results of the next syncs; after them, all succeed.
    outcomes: VecDeque<bool>,
    /// The time that a sync takes.
    takes: Duration,
    /// The most objects of a list that are synced at once; all by default.
    most_listed: Option<usize>,
    /// The requeue delays of the next successful syncs; after them, none asks to be revisited.
    revisits: VecDeque<Option<Duration>>,
    asks_to_be_revisited: bool,
    capabilities: Capabilities,
    /// The Service that the backend cannot serve as asked.
    degrades: &'static str,
    /// The degraded ports of each sync, how many of them by the backend, and the number of those
    /// that do not get what they ask for.
    degraded: Vec<(Vec<DegradedPort>, usize, PerFamily<usize>)>,
    replaced_defaults: Vec<String>,
    /// Syncs, and events of the wait for the Node.
    lines: Arc<Mutex<Vec<String>>>,
}

struct Recorder {
    start: Instant,
    log: Arc<Mutex<Log>>,
}

#[async_trait]
impl Proxier for Recorder {
    fn profile(&self) -> Profile {
        let log = self.log.lock().unwrap();
        let most_listed = log.most_listed.unwrap_or(usize::MAX);
        Profile { most_listed, capabilities: log.capabilities, ..Profile::new(RECORDER) }
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let mut report = SyncReport::default();
        let (takes, succeeds) = {
            let mut log = self.log.lock().unwrap();
            log.add("sync".to_owned());
            let at = self.start.elapsed().as_millis();
            for port in change.ports().filter_map(|change| change.after) {
                if *port.id.name.service.name() == *log.degrades {
                    let (port, reason) = (port.id.clone(), "odd".to_owned());
                    report.degraded.push(DegradedPort { port, reason });
                }
            }
            log.asked.push(Asked {
                at,
                ports: change.ports().map(|port| port.id.name.to_string()).collect(),
                is_full: change.is_resync(),
                size: change.after().service_ports.len(),
            });
            let ports = change.after().service_ports.values();
            let served = ports.filter(|port| !port.cluster.is_empty()).flat_map(|port| {
                port.frontends.iter().map(|at| format!("{:?} {}", at.at, at.port))
            });
            log.served.push(served.collect());
            let succeeds = log.outcomes.pop_front().unwrap_or(true);
            report.requeue_after = succeeds.then(|| log.revisits.pop_front()).flatten().flatten();
            log.asks_to_be_revisited |= report.requeue_after.is_some();
            (log.takes, succeeds)
        };
        sleep(takes).await;
        match succeeds {
            true => {
                report.added = 7;
                Ok(report)
            }
            false => Err(ProxierError::backend(RECORDER, "no", "never")),
        }
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}

fn facts(node: Option<&NodeFacts>) -> String {
    node.map_or("no Node".to_owned(), |node| format!("{:?} {:?}", node.addresses, node.pod_cidrs))
}

impl Log {
    fn add(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    fn note(&mut self, event: &EngineEvent<'_>) {
        match event {
            EngineEvent::Rejected(problem) => self.rejected.push(problem.to_string()),
            EngineEvent::Received(Event::Apply(object)) => self.changed.push(object.key().kind),
            EngineEvent::Received(Event::Delete(key)) => self.changed.push(key.kind),
            EngineEvent::DefaultAlgorithmReplaced { mode, asked, used } => {
                self.replaced_defaults.push(format!("{mode}: {asked} -> {used}"));
            }
            EngineEvent::ResyncRequested => self.comparisons += 1,
            EngineEvent::LeftoversStay { mode, error } => {
                self.stays.push(format!("{mode} {error}"));
            }
            EngineEvent::SyncRequested => self.requested += 1,
            EngineEvent::Synced(outcome) => {
                let SyncOutcome { change, report, .. } = outcome;
                assert_eq!(report.added, 7);
                let own = outcome.degraded_by_backend;
                assert_eq!(*own, report.degraded[..own.len()]);
                self.degraded.push((report.degraded.clone(), own.len(), outcome.unsupported));
                assert!(change.ports().len() <= change.after().service_ports.len() + 1);
                self.told.push(Told {
                    duration: outcome.duration,
                    latency: outcome.latency,
                    trigger_times: outcome
                        .trigger_times
                        .iter()
                        .map(|trigger| trigger.time.clone())
                        .collect(),
                    no_local_internal: outcome.no_local_endpoints.v4.internal,
                });
            }
            EngineEvent::SyncFailed { error, change, .. } => {
                assert!(!change.is_empty() || self.asks_to_be_revisited);
                self.failed.push(error.to_string());
            }
            EngineEvent::WaitingFor(missing) => {
                self.add(format!("waiting for {}", missing.as_str()));
            }
            EngineEvent::GaveUp { missing, node } => {
                self.add(format!("gave up {}: {}", missing.as_str(), facts(*node)));
            }
            EngineEvent::NodeRefused(node) => self.add(format!("refused: {}", facts(*node))),
            EngineEvent::NodeChanged(node) => self.add(format!("changed: {}", facts(*node))),
            EngineEvent::NodeEligible(is_eligible) => self.eligible.push(*is_eligible),
            _ => {}
        }
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
    let mut config = RunnerConfig::default();
    config.pace = pace;
    start_runner(config, prepare, identity)
}

fn start_runner(
    config: RunnerConfig,
    prepare: impl FnOnce(&mut Log, &mut Tracker),
    adapt: impl FnOnce(Runner) -> Runner,
) -> Running {
    let log = Arc::new(Mutex::new(Log::default()));
    let mut tracker = Tracker::new(NodeConfig::new(NODE));
    prepare(&mut log.lock().unwrap(), &mut tracker);
    let proxier = Box::new(Recorder { start: Instant::now(), log: log.clone() });
    let watched = log.clone();
    let observer = move |event: &EngineEvent<'_>| watched.lock().unwrap().note(event);
    Running::new(adapt(Runner::new(tracker, proxier, config, Arc::new(observer))), log)
}

impl Running {
    fn new(runner: Runner, log: Arc<Mutex<Log>>) -> Self {
        let (inputs, receiver) = mpsc::channel(10_000);
        Self { inputs, log, task: tokio::spawn(runner.run(receiver, pending())) }
    }

    async fn send(&self, input: impl Into<Input>) {
        self.inputs.send(input.into()).await.unwrap();
    }

    async fn apply(&self, builders: &[Builder]) {
        for builder in builders {
            self.send(builder.apply()).await;
        }
    }

    /// Lists Services and slices, so that syncs begin.
    async fn list(&self, services: &[Builder]) {
        self.send(list(Kind::Service, services)).await;
        self.send(list(Kind::EndpointSlice, &[] as &[Builder])).await;
    }

    fn asked(&self) -> Vec<Asked> {
        self.log.lock().unwrap().asked.clone()
    }

    /// The time when syncs were made, in milliseconds.
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

fn changed() -> Input {
    Input::ExternallyChanged(ExternalChange::Changed { by: None })
}
