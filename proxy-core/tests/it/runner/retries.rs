//! Syncs that failed are repeated.

use super::*;

/// Starts a runner that has synced `web(1)`, and fails ten times with `web(2)`.
async fn start_failing() -> Running {
    let running = start_with(Pace::Fixed(Duration::ZERO), |_, _| {});
    running.list(&[web(1)]).await;
    pass(1_000).await;
    running.log.lock().unwrap().outcomes = vec![false; 10].into();
    running.apply(&[web(2)]).await;
    running
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_repeated_in_full_with_growing_delays_and_loses_nothing() {
    let running = start_failing().await;
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
    let running = start_failing().await;
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
async fn what_changes_nothing_hastens_no_retry() {
    let running = start_failing().await;
    // Failed last at 12,600 ms: the next is due at 25,400.
    pass(13_000).await;
    for _ in 0..100 {
        running.apply(&[web(2), node(NODE, "192.0.2.1")]).await;
        running.send(Input::InterfaceAddresses(Vec::new())).await;
        pass(100).await;
    }
    assert_eq!(running.times().last(), Some(&13_600));
    pass(2_500).await;
    assert_eq!(running.times().last(), Some(&26_400));
    running.send(Input::Compare).await;
    pass(1_100).await;
    assert_eq!(running.times().last(), Some(&27_500), "asked for");
}

#[tokio::test(start_paused = true)]
async fn constant_changes_do_not_keep_up_a_fast_pace_of_retries() {
    let running = start_with(Pace::Fixed(Duration::ZERO), |log, _| {
        log.outcomes = vec![false; 1_000].into();
    });
    running.list(&[]).await;
    for n in 0..600u32 {
        let [_, _, c, d] = n.to_be_bytes();
        let ip = format!("10.1.{c}.{d}");
        running.apply(&[service("busy", &ip).port("", "TCP", 80)]).await;
        pass(500).await;
    }
    let times = running.times();
    let waits: Vec<u128> = times.windows(2).map(|pair| (pair[1] - pair[0]) / 1_000).collect();
    // Delays of whole seconds: each hastened one is twice as long as the one before, until the full
    // delay is shorter.
    let round = [1, 2, 4, 8, 16, 30];
    let first = waits.iter().rposition(|&wait| wait == 30).expect("a full delay") - 5;
    assert_eq!(waits[first..first + 6], round, "{waits:?}");
    assert!(times.len() < 45, "{waits:?}");
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
async fn a_full_sync_that_fails_is_not_repeated_without_delay() {
    let running = start(Pace::Fixed(Duration::ZERO));
    running.list(&[web(1)]).await;
    pass(3_599_000).await;
    running.log.lock().unwrap().outcomes = vec![false; 4].into();
    pass(10_000).await;
    assert_eq!(running.times(), [0, 3_600_000, 3_600_200, 3_600_600, 3_601_400, 3_603_000]);
}
