//! Resyncs after another program changed the rules.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_disturbance_is_compared_at_once_and_then_once_a_second() {
    let running = start_with(Pace::Fixed(Duration::ZERO), |log, _| {
        log.takes = Duration::from_millis(100);
    });
    running.list(&[web(1)]).await;
    pass(10_000).await;
    for _ in 0..20 {
        running.send(changed()).await;
        pass(100).await;
    }
    pass(10_000).await;
    // From the end of one to the start of the next.
    assert_eq!(running.times(), [0, 10_000, 11_100, 12_200]);
    assert!(running.asked().iter().all(|asked| asked.is_full));
    assert_eq!(running.log.lock().unwrap().comparisons, 3);
    // Resyncs that take long are as far apart as they take.
    running.log.lock().unwrap().takes = Duration::from_secs(8);
    running.send(changed()).await;
    pass(100).await;
    running.send(changed()).await;
    pass(60_000).await;
    assert_eq!(running.times()[4..], [22_000, 38_000]);
}

#[tokio::test(start_paused = true)]
async fn a_suspicion_waits_for_its_share_of_the_time() {
    let running = start_with(Pace::Fixed(Duration::ZERO), |log, _| {
        log.takes = Duration::from_secs(1);
    });
    running.list(&[web(1)]).await;
    pass(5_000).await;
    let suspected = || Input::ExternallyChanged(ExternalChange::Suspected);
    running.send(suspected()).await;
    pass(55_000).await;
    assert_eq!(running.times(), [0, 51_000], "a fiftieth of the time");
    let reported = || running.log.lock().unwrap().comparisons;
    assert_eq!(reported(), 0, "what is programmed may be as it was");
    // What is sure does not wait for what is suspected, and is enough for both.
    running.send(suspected()).await;
    pass(1).await;
    running.send(changed()).await;
    pass(200_000).await;
    assert_eq!(running.times()[2..], [60_001]);
    assert_eq!(reported(), 1, "a change is reported, though a suspicion came first");
}
