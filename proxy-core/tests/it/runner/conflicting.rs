//! Removal of the leftovers of other modes.

use super::*;

/// A mode whose leftovers can be removed only at the third attempt.
struct Stubborn(AtomicU32);

impl Backend for Stubborn {
    fn profile(&self) -> Profile {
        Profile::new(Mode::IPTABLES)
    }

    fn probe(&self) -> Result<Probed, ProxierError> {
        Err(ProxierError::unusable(Mode::IPTABLES, "not here"))
    }

    fn clean_up(&self, keep: Option<Mode>) -> Result<(), ProxierError> {
        assert_eq!(keep, Some(RECORDER), "the mode that serves");
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Err(ProxierError::backend(Mode::IPTABLES, "locked", "busy")),
            _ => Ok(()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn conflicting_backends_go_after_the_first_success_and_are_tried_again_without_changes() {
    let stubborn = Arc::new(Stubborn(AtomicU32::new(0)));
    let leftovers: Vec<Arc<dyn Backend>> = vec![stubborn.clone()];
    let running = start_runner(
        RunnerConfig::default(),
        |log, _| log.outcomes = [false].into(),
        |runner| runner.replacing(leftovers),
    );
    let attempts = || stubborn.0.load(Ordering::SeqCst);
    running.list(&[web(1)]).await;
    pass(100).await;
    assert_eq!(attempts(), 0, "until this mode serves, the other one does");
    pass(1_000).await;
    assert_eq!(attempts(), 1);
    pass(60_000).await;
    assert_eq!(attempts(), 2, "nothing was to be synced");
    pass(600_000).await;
    assert_eq!(attempts(), 3);
    assert_eq!(running.times().len(), 2);
    assert_eq!(running.log.lock().unwrap().stays, ["iptables iptables: locked"; 2]);
}

#[tokio::test(start_paused = true)]
async fn conflicting_backends_serve_a_family_that_is_left_out_for_a_while() {
    for refused_for in [30_000, 200_000] {
        let leftovers = Arc::new(Stubborn(AtomicU32::new(2)));
        let backends: Vec<Arc<dyn Backend>> = vec![leftovers.clone()];
        let (running, seen) = refusals::start_refusing(
            |seen| seen.refuses_family = true,
            |runner| runner.replacing(backends),
        );
        let removals = || leftovers.0.load(Ordering::SeqCst) - 2;
        running.list(&[web(1)]).await;
        pass(refused_for.min(59_000)).await;
        assert_eq!(removals(), 0);
        if refused_for < 60_000 {
            seen.lock().unwrap().refuses_family = false;
            // The next attempt is due after 51 s.
            pass(21_500).await;
        } else {
            pass(1_500).await;
        }
        assert_eq!(removals(), 1, "{refused_for}");
    }
}
