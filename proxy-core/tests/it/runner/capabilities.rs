//! Unsupported features are reported to the observer, once.

use switchyard_core::{
    model::{
        IpFamily, LbAlgorithm, PerFamily, Protocol, ServiceName, ServicePortId, ServicePortName,
    },
    proxier::{Capabilities, DegradedPort},
    testing::NAMESPACE,
};

use super::*;

/// A backend that can do maglev, and cannot serve the Service `odd`.
struct Able(Arc<Mutex<Vec<LbAlgorithm>>>);

fn degraded(service: &str, reason: &str) -> DegradedPort {
    let name = ServicePortName {
        service: ServiceName::new(NAMESPACE, service),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    DegradedPort { port: ServicePortId { name, family: IpFamily::V4 }, reason: reason.to_owned() }
}

#[async_trait]
impl Proxier for Able {
    fn profile(&self) -> Profile {
        Profile {
            capabilities: Capabilities::KUBE_PROXY.with(LbAlgorithm::Maglev),
            ..Profile::new(RECORDER)
        }
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let mut report = SyncReport::default();
        let mut algorithms = self.0.lock().unwrap();
        for port in change.ports().filter_map(|change| change.after) {
            algorithms.push(port.lb_algorithm);
            if &*port.id.name.service.name == "odd" {
                report.degraded.push(degraded("odd", "odd"));
            }
        }
        Ok(report)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}

/// The reports that an observer received.
#[derive(Debug, Default)]
struct Heard {
    problems: Vec<String>,
    /// The degraded ports of each sync, how many of them by the backend, and the ports of IPv4 that
    /// do not get what they ask for.
    syncs: Vec<(Vec<DegradedPort>, usize, usize)>,
    replaced: Vec<String>,
}

struct Listener(Arc<Mutex<Heard>>);

impl Observer for Listener {
    fn on_event(&self, event: &EngineEvent<'_>) {
        let mut heard = self.0.lock().unwrap();
        match event {
            EngineEvent::Rejected(problem) => heard.problems.push(problem.to_string()),
            EngineEvent::Synced(outcome) => {
                let PerFamily { v4, v6 } = outcome.unsupported;
                assert_eq!(v6, 0);
                let own = outcome.degraded_by_backend;
                assert_eq!(*own, outcome.report.degraded[..own.len()]);
                heard.syncs.push((outcome.report.degraded.clone(), own.len(), v4));
            }
            EngineEvent::DefaultAlgorithmReplaced { mode, asked, used } => {
                heard.replaced.push(format!("{mode}: {asked} -> {used}"));
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_backend_cannot_do_is_in_the_report_and_reported_once() {
    let (algorithms, heard) = (Arc::default(), Arc::new(Mutex::new(Heard::default())));
    let runner = Runner::new(
        Tracker::new(NodeConfig::new(NODE)),
        Box::new(Able(Arc::clone(&algorithms))),
        RunnerConfig::default(),
        Arc::new((Listener(heard.clone()), ())),
    );
    let (inputs, receiver) = mpsc::channel(100);
    let task = tokio::spawn(runner.run(receiver, pending()));
    let running = Running { inputs, log: Arc::default(), task };
    let asks = |n, lb_algorithm: &str| web(n).annotation("switchyard/lb-algorithm", lb_algorithm);
    running.list(&[asks(1, "maglev"), asks(2, "least-connections")]).await;
    pass(1).await;
    let odd =
        service("odd", "10.0.0.9").port("", "TCP", 80).annotation("switchyard/lb-algorithm", "sed");
    running.apply(&[odd, asks(3, "never-queue")]).await;
    pass(10_000).await;
    running.inputs.send(Input::Compare).await.unwrap();
    pass(10_000).await;

    let text = |lb_algorithm: &str| {
        format!(
            "`{lb_algorithm}` cannot be programmed in recorder mode; connections are spread by `random` instead"
        )
    };
    let heard = heard.lock().unwrap();
    let (second, third) =
        (degraded("s2", &text("least-connections")), degraded("s3", &text("never-queue")));
    assert_eq!(
        heard.syncs,
        [
            (vec![second.clone()], 0, 1),
            (vec![degraded("odd", "odd"), third.clone()], 1, 2),
            (vec![second, third], 0, 2),
        ]
    );
    assert_eq!(heard.replaced, [""; 0]);
    let problem = |service: &str, text| {
        format!("Service ns/{service}: metadata.annotations[switchyard/lb-algorithm]: {text}")
    };
    let [first, invalid, last] = heard.problems.as_slice() else { panic!("{:?}", heard.problems) };
    assert_eq!(*first, problem("s2", text("least-connections")));
    assert!(invalid.starts_with("Service ns/odd: "), "{invalid}");
    assert_eq!(*last, problem("s3", text("never-queue")));
    let mut used = algorithms.lock().unwrap().clone();
    used.sort_unstable();
    assert_eq!(
        used,
        [LbAlgorithm::Random, LbAlgorithm::Random, LbAlgorithm::Random, LbAlgorithm::Maglev]
    );
    running.task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_default_that_cannot_be_programmed_is_reported_once() {
    let heard = Arc::new(Mutex::new(Heard::default()));
    let config = |lb_algorithm| {
        let mut config = NodeConfig::new(NODE);
        config.lb_algorithm = Some(lb_algorithm);
        config
    };
    let runner = Runner::new(
        Tracker::new(config(LbAlgorithm::SourceHash)),
        Box::new(Able(Arc::default())),
        RunnerConfig::default(),
        Arc::new((Listener(heard.clone()), ())),
    );
    let (inputs, receiver) = mpsc::channel(100);
    let task = tokio::spawn(runner.run(receiver, pending()));
    let running = Running { inputs, log: Arc::default(), task };
    running.list(&[web(1), web(2)]).await;
    pass(10_000).await;
    running.apply(&[web(3)]).await;
    pass(10_000).await;
    assert_eq!(heard.lock().unwrap().replaced, ["recorder: source-hash -> maglev"]);
    for lb_algorithm in [LbAlgorithm::Maglev, LbAlgorithm::RoundRobin] {
        running.inputs.send(Input::Node(config(lb_algorithm))).await.unwrap();
        pass(10_000).await;
    }
    let heard = heard.lock().unwrap();
    assert_eq!(heard.replaced[1..], ["recorder: round-robin -> random"]);
    assert_eq!(heard.problems, [""; 0]);
    assert!(heard.syncs.iter().all(|(degraded, _, count)| degraded.is_empty() && *count == 0));
    running.task.abort();
}
