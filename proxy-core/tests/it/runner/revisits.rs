//! Syncs that the backend asks for.

use super::*;

fn after(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[tokio::test(start_paused = true)]
async fn a_backend_is_revisited_though_nothing_changed() {
    let running = start_with(SECOND, |log, _| log.revisits = [after(60), after(90)].into());
    running.list(&[web(1)]).await;
    pass(1_000_000).await;
    let asked = running.asked();
    assert_eq!(running.times(), [0, 60_000, 150_000]);
    for asked in &asked[1..] {
        assert_eq!((&asked.ports[..], asked.is_full, asked.size), (&[][..], false, 1));
    }
    // Nothing changed: no change waited, and no sync was outstanding.
    let told = running.told();
    assert!(told[0].latency.is_some());
    assert_eq!((told[1].latency, told[2].latency), (None, None));
    assert_eq!(running.log.lock().unwrap().requested, 1, "the lists");
}

#[tokio::test(start_paused = true)]
async fn each_report_replaces_the_one_before() {
    let running = start_with(SECOND, |log, _| {
        log.revisits = [after(60), after(100), None].into();
    });
    running.list(&[web(1)]).await;
    pass(50_000).await;
    running.apply(&[web(2)]).await;
    pass(99_000).await;
    assert_eq!(running.times(), [0, 50_000], "not at 60 s");
    running.apply(&[web(3)]).await;
    pass(1_000_000).await;
    assert_eq!(running.times(), [0, 50_000, 149_000], "the last one asks for nothing");
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_the_retry_serves() {
    let running = start_with(Pace::Fixed(Duration::ZERO), |log, _| {
        log.revisits = [after(1), after(5)].into();
        log.outcomes = [true, false, false].into();
    });
    running.list(&[web(1)]).await;
    pass(100_000).await;
    // The second failure is repeated 400 ms later, and the report of that sync counts.
    assert_eq!(running.times(), [0, 1_000, 1_200, 1_600, 6_600]);
    assert!(!running.asked()[1].is_full && running.asked()[3].is_full);
}

#[tokio::test(start_paused = true)]
async fn revisits_keep_the_pace_and_do_not_replace_the_period() {
    let running = start_with(SECOND, |log, _| {
        log.revisits = vec![Some(Duration::from_millis(10)); 3].into();
        log.revisits.push_back(Some(Duration::MAX));
    });
    running.list(&[web(1)]).await;
    pass(3_700_000).await;
    assert_eq!(running.times(), [0, 1_000, 2_000, 3_000, 3_600_000]);
    assert!(running.asked()[4].is_full);
}

/// A look that a backend takes by itself holds up no change.
#[tokio::test(start_paused = true)]
async fn a_change_after_a_revisit_does_not_wait() {
    let running = start_with(SECOND, |log, _| log.revisits = [after(60)].into());
    running.list(&[web(1)]).await;
    pass(60_010).await;
    running.apply(&[web(2)]).await;
    pass(10).await;
    running.apply(&[web(3)]).await;
    pass(10_000).await;
    assert_eq!(running.times(), [0, 60_000, 60_010, 61_010]);
}
