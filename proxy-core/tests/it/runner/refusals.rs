//! Parts that a backend names as refused are withheld, so that all else is synced at once, and is
//! tried again with growing delays.

use std::collections::HashSet;

use switchyard_core::{model::IpFamily, proxier::RefusedParts, runner::Query};

use super::*;

/// A backend whose kernel refuses some Services, or a family.
struct Refusing {
    start: Instant,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    refused_services: HashSet<String>,
    pub(super) refuses_family: bool,
    /// Whether IPv4 is broken: a refusal names it if there is another family.
    breaks_v4: bool,
    /// Whether refusals name no Service.
    is_mute: bool,
    /// Whether a refusal names one Service, and takes a while.
    is_slow: bool,
    /// Whether syncs of IPv6 take two minutes.
    hangs: bool,
    /// The time when syncs were made, in milliseconds, and the Services in each.
    attempts: Vec<(u128, Vec<String>)>,
    /// Whether each attempt compared everything, and programmed IPv6.
    modes: Vec<(bool, bool)>,
    /// Whether each attempt was a repair of what a monitor had reported.
    repairs: Vec<bool>,
    problems: Vec<String>,
    degraded: Vec<Vec<DegradedPort>>,
    refused: Vec<PerFamily<usize>>,
    failed: usize,
}

#[async_trait]
impl Proxier for Refusing {
    fn profile(&self) -> Profile {
        Profile::new(RECORDER)
    }

    async fn sync(&mut self, change: &Transition<'_>) -> Result<SyncReport, ProxierError> {
        if self.seen.lock().unwrap().is_slow {
            sleep(Duration::from_millis(200)).await;
        }
        if self.seen.lock().unwrap().hangs && change.programs(IpFamily::V6) {
            sleep(Duration::from_secs(120)).await;
        }
        let mut seen = self.seen.lock().unwrap();
        let ports = &change.after().service_ports;
        let mut names: Vec<_> = ports.keys().map(|id| id.name.service.name().to_owned()).collect();
        names.sort();
        seen.attempts.push((self.start.elapsed().as_millis(), names));
        seen.modes.push((change.is_resync(), change.programs(IpFamily::V6)));
        seen.repairs.push(change.is_repair());
        let mut parts = RefusedParts::default();
        let reason = format!("line {}: full", seen.attempts.len());
        parts.ports = ports
            .keys()
            .filter(|id| seen.refused_services.contains(id.name.service.name()))
            .map(|id| DegradedPort { port: id.clone(), reason: reason.clone() })
            .take(if seen.is_slow { 1 } else { usize::MAX })
            .collect();
        if seen.breaks_v4 && change.programs(IpFamily::V4) {
            if !change.programs(IpFamily::V6) {
                return Err(ProxierError::backend(RECORDER, "refused", "broken"));
            }
            parts.families.v4 = Some("broken".into());
        }
        if seen.is_mute && !parts.is_empty() {
            return Err(ProxierError::backend(RECORDER, "refused", "full"));
        }
        if seen.refuses_family && change.programs(IpFamily::V6) {
            parts.families.v6 = Some("broken".into());
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

impl Seen {
    fn note(&mut self, event: &EngineEvent<'_>) {
        match event {
            EngineEvent::Rejected(problem) => self.problems.push(problem.to_string()),
            EngineEvent::Synced(outcome) => {
                self.degraded.push(outcome.report.degraded.clone());
                self.refused.push(outcome.refused);
            }
            EngineEvent::SyncFailed { .. } => self.failed += 1,
            _ => {}
        }
    }

    fn refuse(&mut self, services: impl IntoIterator<Item = String>) {
        self.refused_services = services.into_iter().collect();
    }

    /// Whether the last attempt had a Service.
    fn has(&self, service: &str) -> bool {
        self.attempts.last().is_some_and(|(_, names)| names.iter().any(|name| name == service))
    }
}

/// Returns a Service of each name, at its own address.
fn services(names: &[String]) -> Vec<Builder> {
    let addresses = (0..).map(|n| format!("10.1.{}.{}", n / 200, n % 200 + 1));
    let services = names.iter().zip(addresses).map(|(name, ip)| service(name, &ip));
    services.map(|made| made.port("", "TCP", 80)).collect()
}

pub(super) fn start_refusing(
    refuses: impl FnOnce(&mut Seen),
    prepare: impl FnOnce(Runner) -> Runner,
) -> (Running, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    refuses(&mut seen.lock().unwrap());
    let watched = seen.clone();
    let mut config = RunnerConfig::default();
    config.pace = Pace::Fixed(Duration::ZERO);
    let runner = Runner::new(
        Tracker::new(NodeConfig::new(NODE)),
        Box::new(Refusing { start: Instant::now(), seen: seen.clone() }),
        config,
        Arc::new(move |event: &EngineEvent<'_>| watched.lock().unwrap().note(event)),
    );
    (Running::new(prepare(runner), Arc::default()), seen)
}

#[tokio::test(start_paused = true)]
async fn a_refused_port_is_left_out_and_tried_again() {
    let (running, seen) = start_refusing(|seen| seen.refuse(["s2".into()]), identity);
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
        assert!(seen.degraded.iter().all(|degraded| degraded[0].port.name.service.name() == "s2"));
        // The number in the reason is the newest, and makes no new problem.
        let newest = format!("line {}: full", seen.attempts.len() - 1);
        assert_eq!(seen.degraded.last().unwrap()[0].reason, newest);
        assert_eq!(seen.problems.len(), 1, "{:?}", seen.problems);
        assert!(seen.problems[0].starts_with("Service ns/s2: spec.ports: the node refuses"));
    }
    seen.lock().unwrap().refuse([]);
    pass(61_000).await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen.degraded.last(), Some(&Vec::new()));
    assert_eq!(seen.refused.last(), Some(&PerFamily::default()));
    let (_, last) = seen.attempts.last().unwrap();
    assert_eq!(last, &["s1", "s2", "s3", "s4"]);
}

/// The backend has taken what its monitor reported with the attempt that failed.
#[tokio::test(start_paused = true)]
async fn a_repair_of_which_a_part_is_refused_becomes_a_comparison() {
    let (running, seen) = start_refusing(|_| {}, identity);
    running.list(&[web(1)]).await;
    pass(2_000).await;
    seen.lock().unwrap().refuse(["s2".into()]);
    running.send(changed()).await;
    running.apply(&[web(2)]).await;
    pass(100).await;
    let seen = seen.lock().unwrap();
    let attempts: Vec<_> = seen.modes.iter().map(|mode| mode.0).zip(seen.repairs.clone()).collect();
    assert_eq!(attempts, [(true, false), (true, true), (true, false)], "{:?}", seen.attempts);
}

#[tokio::test(start_paused = true)]
async fn each_refused_port_gets_its_turn_and_all_come_back_soon() {
    let names: Vec<String> = (0..300).map(|n| format!("s{n:03}")).collect();
    let (running, seen) = start_refusing(|seen| seen.refuse(names.clone()), identity);
    let mut config = RunnerConfig::default();
    config.pace = Pace::Fixed(Duration::from_secs(10));
    running.send(Input::Timing(config)).await;
    running.list(&services(&names)).await;
    pass(100_000).await;
    // Eight in ten seconds, so that the last one has to wait for all others.
    seen.lock().unwrap().refused_services.remove("s299");
    pass(500_000).await;
    {
        let mut seen = seen.lock().unwrap();
        assert!(seen.has("s299"), "{:?}", seen.attempts.last());
        // The first sync, and each further one with the attempt that is refused.
        assert!(seen.attempts.len() <= 2 + 2 * 60, "{}", seen.attempts.len());
        assert_eq!(seen.failed, 0);
        seen.refuse([]);
    }
    // Until one is due; and 8, 16, 32, 64, 128, and the rest.
    pass(75_000 + 6 * 10_000).await;
    assert_eq!(seen.lock().unwrap().refused.last(), Some(&PerFamily::default()));
}

#[tokio::test(start_paused = true)]
async fn a_family_that_is_left_out_does_not_hold_up_ports_of_the_other() {
    let v6: Vec<String> = (0..20).map(|n| format!("s{n:02}")).collect();
    let all = v6.iter().cloned().chain(["z".to_owned()]);
    let (running, seen) = start_refusing(|seen| seen.refuse(all), identity);
    let services = v6.iter().enumerate().map(|(n, name)| service(name, &format!("fd00::1:{n}")));
    let services = services.chain([service("z", "10.0.0.9")]);
    running.list(&services.map(|made| made.port("", "TCP", 80)).collect::<Vec<_>>()).await;
    pass(100).await;
    {
        let mut seen = seen.lock().unwrap();
        seen.refuse(["z".to_owned()]);
        seen.refuses_family = true;
    }
    pass(10_000).await;
    seen.lock().unwrap().refuse([]);
    pass(20_000).await;
    {
        let mut seen = seen.lock().unwrap();
        assert!(seen.has("z"));
        assert_eq!(seen.refused.last(), Some(&PerFamily { v4: 0, v6: 20 }));
        seen.refuses_family = false;
    }
    pass(60_000).await;
    assert_eq!(seen.lock().unwrap().refused.last(), Some(&PerFamily::default()));
}

#[tokio::test(start_paused = true)]
async fn what_makes_a_sync_fail_when_it_is_tried_again_is_left_out() {
    let (running, seen) = start_refusing(|seen| seen.refuse(["s2".into()]), identity);
    running.list(&[web(1), web(2)]).await;
    pass(100).await;
    seen.lock().unwrap().is_mute = true;
    pass(250).await;
    running.apply(&[web(3)]).await;
    pass(100_000).await;
    {
        let seen = seen.lock().unwrap();
        assert!(seen.has("s3") && !seen.has("s2"), "{:?}", seen.attempts.last());
        // One for each attempt with growing delays.
        assert!((5..=12).contains(&seen.failed), "{}", seen.failed);
    }
    seen.lock().unwrap().refuse([]);
    pass(61_000).await;
    assert!(seen.lock().unwrap().has("s2"));
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
async fn a_family_that_hangs_is_tried_less_often() {
    let hang = |seen: &mut Seen| (seen.refuses_family, seen.hangs) = (true, true);
    let (running, seen) = start_refusing(hang, identity);
    running.list(&[web(1)]).await;
    pass(10_000_000).await;
    let tries = |seen: &Seen| seen.modes.iter().filter(|(_, with_v6)| *with_v6).count();
    // 7 minutes each.
    assert!((22..=26).contains(&tries(&seen.lock().unwrap())), "{:?}", seen.lock().unwrap().modes);
    (seen.lock().unwrap().refuses_family, seen.lock().unwrap().hangs) = (false, false);
    running.send(Input::Compare).await;
    pass(1_000).await;
    assert_eq!(seen.lock().unwrap().modes.last(), Some(&(true, true)));
}

#[tokio::test(start_paused = true)]
async fn a_family_comes_back_while_the_other_fails() {
    let (running, seen) = start_refusing(|seen| seen.refuses_family = true, identity);
    running.list(&[web(1), web(2)]).await;
    pass(100).await;
    {
        let mut seen = seen.lock().unwrap();
        assert_eq!(seen.degraded.len(), 1);
        (seen.refuses_family, seen.breaks_v4) = (false, true);
    }
    running.apply(&[web(3)]).await;
    pass(10_000).await;
    let refusal = |family| {
        format!(
            "Node {NODE}: the node refuses all of {family}: broken; {family} is left as it is and \
             tried again"
        )
    };
    {
        let seen = seen.lock().unwrap();
        assert!(seen.degraded.len() > 1, "{:?}", seen.modes);
        assert_eq!(seen.modes.last().map(|(_, has_v6)| *has_v6), Some(true));
        // Each family once, however often it is tried.
        assert_eq!(seen.problems, ["IPv6", "IPv4"].map(refusal));
    }
    let (sender, mut problems) = mpsc::unbounded_channel();
    let all = move |tracker: &Tracker| {
        sender.send(tracker.problems().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    };
    running.send(Input::Query(Query::new(all))).await;
    assert_eq!(problems.recv().await, Some(vec![refusal("IPv4")]));
}

#[tokio::test(start_paused = true)]
async fn new_refusals_do_not_hold_up_what_was_refused_before() {
    let old: Vec<String> = (0..200).map(|n| format!("s{n:03}")).collect();
    let new = (0..200).map(|n| format!("t{n:03}"));
    let (running, seen) =
        start_refusing(|seen| seen.refuse(old.iter().cloned().chain(new)), identity);
    running.list(&services(&old)).await;
    pass(100).await;
    seen.lock().unwrap().refused_services.remove("s199");
    for n in 0..200 {
        let made = service(&format!("t{n:03}"), &format!("10.2.0.{}", n + 1));
        running.apply(&[made.port("", "TCP", 80)]).await;
        pass(1_000).await;
    }
    assert!(seen.lock().unwrap().has("s199"));
}

#[tokio::test(start_paused = true)]
async fn many_that_are_tried_at_once_and_refused_do_not_make_a_sync_fail() {
    let names: Vec<String> = (0..200).map(|n| format!("s{n:03}")).collect();
    let (running, seen) = start_refusing(|seen| seen.refuse(names.clone()), identity);
    running.list(&services(&names)).await;
    pass(100).await;
    // 8, 16 and 32 are taken, and then none.
    seen.lock().unwrap().refuse(names[56..].iter().cloned());
    seen.lock().unwrap().is_slow = true;
    pass(60_000).await;
    assert_eq!(seen.lock().unwrap().failed, 0);
    assert!(seen.lock().unwrap().has("s055"));
    running.apply(&[web(1)]).await;
    pass(4_000).await;
    assert!(seen.lock().unwrap().has("s1"));
    {
        let mut seen = seen.lock().unwrap();
        seen.refuse([]);
        seen.is_slow = false;
    }
    pass(120_000).await;
    assert_eq!(seen.lock().unwrap().refused.last(), Some(&PerFamily::default()));
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_ever_takes_a_small_part_of_the_time() {
    let names: Vec<String> = (0..40).map(|n| format!("s{n:03}")).collect();
    let (running, seen) = start_refusing(|seen| seen.refuse(names.clone()), identity);
    running.list(&services(&names)).await;
    pass(5_000).await;
    let attempts = |seen: &Mutex<Seen>| seen.lock().unwrap().attempts.len() as u32;
    let before = attempts(&seen);
    seen.lock().unwrap().is_slow = true;
    pass(600_000).await;
    let busy = Duration::from_millis(200) * (attempts(&seen) - before);
    assert!(busy > Duration::from_secs(10), "each is tried: {busy:?}");
    assert!(busy < Duration::from_secs(75), "{busy:?} of ten minutes");
}

#[tokio::test(start_paused = true)]
async fn a_first_sync_that_is_refused_one_by_one_goes_on_without_growing_delays() {
    let names: Vec<String> = (0..300).map(|n| format!("s{n:03}")).collect();
    let (running, seen) = start_refusing(|seen| seen.refuse(names.clone()), identity);
    seen.lock().unwrap().is_slow = true;
    let all: Vec<_> = services(&names).into_iter().chain([web(1)]).collect();
    running.list(&all).await;
    // Each refusal takes a fifth of a second, and twelve syncs of five seconds are needed.
    pass(65_000).await;
    let seen = seen.lock().unwrap();
    assert!((11..=13).contains(&seen.failed), "{}", seen.failed);
    assert_eq!(seen.degraded.first().map(Vec::len), Some(300));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_another_program_hastens_a_family() {
    let (running, seen) = start_refusing(|seen| seen.refuses_family = true, identity);
    running.list(&[web(1)]).await;
    pass(20_000).await;
    seen.lock().unwrap().refuses_family = false;
    running.send(changed()).await;
    pass(1_500).await;
    assert_eq!(seen.lock().unwrap().modes.last(), Some(&(true, true)), "before 25.4 s");
}

#[tokio::test(start_paused = true)]
async fn constant_changes_of_another_program_do_not_keep_up_a_fast_pace() {
    let (running, seen) = start_refusing(|seen| seen.refuses_family = true, identity);
    running.list(&[web(1)]).await;
    for _ in 0..400 {
        running.send(changed()).await;
        pass(1_000).await;
    }
    let seen = seen.lock().unwrap();
    let tried = seen.modes.iter().filter(|(_, with_v6)| *with_v6).count();
    // Twice as often as without: 0.2, 0.4, 0.8 ... 60 s.
    assert!((10..=32).contains(&tried), "{tried} of {}", seen.modes.len());
}
