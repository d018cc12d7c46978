//! Slow start, by the runner's clock.

use switchyard_core::proxier::Capabilities;

use super::*;

/// Writes down the weights of the pools, and when they were programmed.
struct Weighing {
    start: Instant,
    log: Arc<Mutex<Vec<(u64, String)>>>,
}

#[async_trait]
impl Proxier for Weighing {
    fn profile(&self) -> Profile {
        Profile { capabilities: Capabilities::KUBE_PROXY.with_weights(), ..Profile::new(RECORDER) }
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        for port in change.ports().filter_map(|change| change.after) {
            let weights: Vec<String> =
                port.cluster.iter().map(|endpoint| endpoint.weight.to_string()).collect();
            let at = self.start.elapsed().as_secs();
            self.log.lock().unwrap().push((at, weights.join(":")));
        }
        Ok(SyncReport::default())
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}

fn endpoints(last: &[u8]) -> Builder {
    let made = slice("s1", "a").port("", "TCP", 80);
    last.iter().fold(made, |made, n| made.endpoint(endpoint(&format!("10.1.0.{n}"), NODE)))
}

#[tokio::test(start_paused = true)]
async fn a_new_endpoint_gets_its_share_by_and_by() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let proxier = Weighing { start: Instant::now(), log: log.clone() };
    let runner = Runner::new(
        Tracker::new(NodeConfig::new(NODE)),
        Box::new(proxier),
        RunnerConfig::default(),
        Arc::new(()),
    );
    let (inputs, receiver) = mpsc::channel(100);
    let task = tokio::spawn(runner.run(receiver, pending()));
    let running = Running { inputs, log: Arc::default(), task };
    let objects = vec![endpoints(&[1]).object()];
    running.send(Event::Replace { kind: Kind::EndpointSlice, objects, malformed: vec![] }).await;
    let objects = vec![web(1).annotation("switchyard/slow-start", "50s").object()];
    running.send(Event::Replace { kind: Kind::Service, objects, malformed: vec![] }).await;
    pass(100_000).await;
    running.apply(&[endpoints(&[1, 2])]).await;
    // No further input comes.
    pass(200_000).await;
    let grown: Vec<(u64, String)> = [
        (0, "1"),
        (100, "10:1"),
        (105, "10:2"),
        (110, "10:3"),
        (115, "10:4"),
        (120, "10:5"),
        (125, "10:6"),
        (130, "10:7"),
        (135, "10:8"),
        (140, "10:9"),
        (145, "1:1"),
    ]
    .map(|(at, weights)| (at, weights.to_owned()))
    .into();
    assert_eq!(*log.lock().unwrap(), grown);
    running.task.abort();
}
