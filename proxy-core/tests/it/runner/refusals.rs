//! What a backend names as refused is left out, so that all else is synced at once, and is tried again with
//! growing delays.

use std::convert::identity;

use switchyard_core::{
    model::{IpFamily, PerFamily},
    proxier::{RefusedParts, Skipped},
};

use super::*;

/// A backend whose kernel refuses the Service `s2`, or a family.
struct Refusing {
    start: Instant,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    refuses_port: bool,
    pub(super) refuses_family: bool,
    /// When syncs were made, in milliseconds, and the Services in each.
    attempts: Vec<(u128, Vec<String>)>,
    /// Whether each attempt compared everything, and programmed IPv6.
    modes: Vec<(bool, bool)>,
    problems: Vec<String>,
    skipped: Vec<Vec<String>>,
    refused: Vec<usize>,
    failed: usize,
}

#[async_trait]
impl Proxier for Refusing {
    fn mode(&self) -> Mode {
        RECORDER
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        let mut seen = self.seen.lock().unwrap();
        let ports = &change.after().service_ports;
        let mut names: Vec<_> = ports.keys().map(|id| id.name.service.name.to_string()).collect();
        names.sort();
        seen.attempts.push((self.start.elapsed().as_millis(), names));
        seen.modes.push((change.compare(), change.programs(IpFamily::V6)));
        let mut parts = RefusedParts::default();
        if seen.refuses_port {
            let wanted = ports.keys().filter(|id| &*id.name.service.name == "s2");
            parts.ports =
                wanted.map(|id| Skipped { port: id.clone(), reason: "full".into() }).collect();
        }
        if seen.refuses_family && change.programs(IpFamily::V6) {
            parts.families = PerFamily { v4: None, v6: Some("broken".into()) };
        }
        match parts.is_empty() {
            true => Ok(SyncReport::default()),
            false => Err(ProxierError::backend(RECORDER, "refused", "full").of_parts(parts)),
        }
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}

struct Listener(Arc<Mutex<Seen>>);

impl Observer for Listener {
    fn rejected(&self, problem: &Problem) {
        self.0.lock().unwrap().problems.push(problem.to_string());
    }

    fn synced(&self, outcome: &SyncOutcome<'_>) {
        let names = outcome.report.skipped.iter().map(|s| s.port.name.service.name.to_string());
        let mut seen = self.0.lock().unwrap();
        seen.skipped.push(names.collect());
        seen.refused.push(outcome.refused.v4);
    }

    fn sync_failed(&self, _: &ProxierError, _: &Transition<'_>, _: Duration) {
        self.0.lock().unwrap().failed += 1;
    }
}

pub(super) fn start_refusing(
    refuses: impl FnOnce(&mut Seen),
    prepare: impl FnOnce(Runner) -> Runner,
) -> (Running, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    refuses(&mut seen.lock().unwrap());
    let mut config = RunnerConfig::default();
    config.pace = Pace::Fixed(Duration::ZERO);
    let runner = Runner::new(
        Tracker::new(NodeConfig::new(NODE)),
        Box::new(Refusing { start: Instant::now(), seen: seen.clone() }),
        config,
        Arc::new(Listener(seen.clone())),
    );
    let (inputs, receiver) = mpsc::channel(100);
    let task = tokio::spawn(prepare(runner).run(receiver, pending()));
    (Running { inputs, log: Arc::default(), task }, seen)
}

#[tokio::test(start_paused = true)]
async fn a_refused_port_is_left_out_and_tried_again() {
    let (running, seen) = start_refusing(|seen| seen.refuses_port = true, identity);
    running.list(&[web(1), web(2), web(3)]).await;
    pass(100).await;
    // Its own changes do not hasten it, and others are synced at once.
    running.apply(&[service("s2", "10.0.0.2").port("", "TCP", 81), web(4)]).await;
    pass(200_000).await;
    {
        let seen = seen.lock().unwrap();
        let times: Vec<u128> = seen.attempts.iter().map(|(at, _)| *at).collect();
        let with: Vec<u128> = seen
            .attempts
            .iter()
            .filter(|(_, names)| names.contains(&"s2".to_owned()))
            .map(|(at, _)| *at)
            .collect();
        // Each attempt that is refused is followed by one without the port, at once.
        let growing = [0, 200, 600, 1_400, 3_000, 6_200, 12_600, 25_400, 51_000, 102_200, 162_200];
        assert_eq!(with, growing, "{times:?}");
        assert_eq!(seen.failed, 0);
        assert!(seen.skipped.iter().all(|names| names.contains(&"s2".to_owned())));
        assert_eq!(seen.problems.len(), 1, "{:?}", seen.problems);
        assert!(seen.problems[0].starts_with("Service ns/s2: spec.ports: the node refuses"));
    }
    seen.lock().unwrap().refuses_port = false;
    pass(61_000).await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen.skipped.last(), Some(&Vec::new()));
    assert_eq!(seen.refused.last(), Some(&0));
    let (_, last) = seen.attempts.last().unwrap();
    assert_eq!(last, &["s1", "s2", "s3", "s4"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_family_is_left_out_and_compared_when_it_is_tried_again() {
    let (running, seen) = start_refusing(|seen| seen.refuses_family = true, identity);
    running.list(&[web(1)]).await;
    pass(150).await;
    running.apply(&[web(2)]).await;
    pass(10).await;
    seen.lock().unwrap().refuses_family = false;
    pass(1_000).await;
    running.apply(&[web(3)]).await;
    pass(10).await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen.failed, 0);
    assert_eq!(
        seen.modes,
        [
            // The first sync, and the same without IPv6.
            (true, true),
            (true, false),
            (false, false),
            (true, true),
            (false, true),
        ]
    );
    let problem = "the node refuses all of IPv6: broken; IPv6 is left as it is and tried again";
    assert_eq!(seen.problems, [format!("Node {NODE}: {problem}")]);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_another_program_hastens_a_family() {
    let (running, seen) = start_refusing(|seen| seen.refuses_family = true, identity);
    running.list(&[web(1)]).await;
    pass(20_000).await;
    seen.lock().unwrap().refuses_family = false;
    let by = Some("a firewall".to_owned());
    running.inputs.send(Input::Disturbed(Disturbance::Changed { by })).await.unwrap();
    pass(1_500).await;
    assert_eq!(seen.lock().unwrap().modes.last(), Some(&(true, true)), "before 25.4 s");
}
