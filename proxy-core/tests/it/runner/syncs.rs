//! The time at which a sync is due, and what the observer gets to know of it.

use super::*;

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
async fn changes_are_resolved_once_for_a_sync() {
    let running = start(SECOND);
    running.list(&[web(1)]).await;
    pass(100).await;
    // Each takes the address of another Service, which is found when it is resolved.
    for port in 81..85 {
        running.apply(&[web(1).port("", "UDP", port), web(2)]).await;
        pass(100).await;
        running.apply(&[service("s2", "10.0.0.1").port("", "UDP", port)]).await;
        pass(100).await;
    }
    pass(1_000).await;
    assert_eq!(running.times(), [0, 1_000]);
    assert_eq!(running.told()[1].latency, Some(Duration::from_millis(900)));
    let log = running.log.lock().unwrap();
    assert_eq!(log.rejected.len(), 1, "{:?}", log.rejected);
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
    running.send(Input::Compare).await;
    pass(3_600_600).await;
    assert_eq!(running.times()[3..], [3_601_000, 7_201_000]);
}

#[tokio::test(start_paused = true)]
async fn interface_addresses_and_the_node_are_taken_in() {
    let running = start(SECOND);
    running.list(&[]).await;
    pass(2_000).await;
    running.send(Input::InterfaceAddresses(vec!["192.0.2.1".parse().unwrap()])).await;
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
    assert_eq!(log.eligible, [false, true]);
    assert_eq!(log.changed, [Kind::Node; 4]);
}

#[tokio::test(start_paused = true)]
async fn another_configuration_of_the_node_is_a_sync_of_what_differs() {
    let running = start(SECOND);
    let shop = web(2).set("spec.externalIPs", serde_json::json!(["192.0.2.1"]));
    running.list(&[web(1), shop]).await;
    pass(2_000).await;
    let same = NodeConfig::new(NODE);
    running.send(Input::Node(same.clone())).await;
    pass(2_000).await;
    assert_eq!(running.times(), [0], "nothing differs");
    let mut gated = same;
    gated.external_ips = false;

    running.send(Input::Node(gated)).await;
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
    let mut config = RunnerConfig::default();
    config.pace = SECOND;

    running.send(Input::Timing(config)).await;
    pass(2_000).await;
    assert_eq!(running.times(), [0, 12_000]);
    // And a longer pace from the next sync on.
    running
        .send(Input::Timing({
            let mut made = config;
            made.pace = hour;
            made
        }))
        .await;
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
    config.longest_retry = short;
    config.pace = Pace::Fixed(Duration::ZERO);

    running.send(Input::Timing(config)).await;
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
    let of_s1 = slice("s1", "1").annotation(TRIGGER, "t1").port("", "TCP", 80);
    let endpoints = ["10.1.0.1", "127.0.0.1"].map(|ip| endpoint(ip, "node-2"));
    running.apply(&[endpoints.into_iter().fold(of_s1, Builder::endpoint)]).await;
    pass(5_000).await;
    let told = running.told();
    assert_eq!(told.len(), 2);
    assert_eq!(told[0].latency, Some(Duration::from_millis(50)));
    // It came at 500 ms and waited for the pace (1,050 ms), then for the sync.
    assert_eq!(told[1].latency, Some(Duration::from_millis(600)));
    assert_eq!(told[1].trigger_times, ["t1"]);
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
    assert_eq!(task.await.unwrap().profile().mode, RECORDER);
    assert_eq!(log.lock().unwrap().asked.len(), 1);
    // Also while it waits to repeat a failed sync.
    let running = start_with(SECOND, |log, _| log.outcomes = vec![false; 100].into());
    running.list(&[web(1)]).await;
    pass(100).await;
    let Running { inputs, task, .. } = running;
    drop(inputs);
    assert_eq!(task.await.unwrap().profile().mode, RECORDER);
}

#[tokio::test(start_paused = true)]
async fn a_tracker_that_knows_a_cluster_is_synced_without_being_told_more() {
    let running = start_with(SECOND, |_, tracker| {
        tracker.apply(list(Kind::Service, [web(1)]));
        tracker.apply(Event::Listed(Kind::EndpointSlice));
    });
    pass(1).await;
    assert_eq!(running.asked().len(), 1);
    assert_eq!(running.asked()[0].ports, ["ns/s1"]);
}

/// A comparison reads everything, and would find nothing. What is not watched is looked at.
#[tokio::test(start_paused = true)]
async fn what_is_watched_is_compared_once_a_day() {
    for (is_watched, hours, comparisons) in [(false, 3, 3), (true, 20, 1), (true, 29, 2)] {
        let watched = |runner: Runner| runner.watched(is_watched);
        let running = start_runner(RunnerConfig::default(), |_, _| {}, watched);
        running.list(&[web(1)]).await;
        pass((hours * 3600 - 1800) * 1000).await;
        running.apply(&[web(2)]).await;
        pass(1_000).await;
        let full = running.asked().iter().filter(|asked| asked.is_full).count();
        assert_eq!(full, comparisons, "{is_watched}");
        assert!(running.asked().len() > hours as usize, "each hour, and for the change");
    }
}

#[tokio::test(start_paused = true)]
async fn periods_may_be_endless() {
    let mut config = RunnerConfig::default();
    config.pace = Pace::Fixed(Duration::MAX);
    config.longest_retry = Duration::MAX;
    config.full_period = Duration::MAX;
    config.resync_at_most_every = Duration::MAX;
    config.suspect_at_most_every = Duration::MAX;
    let running = start_runner(config, |_, _| {}, identity);
    running.list(&[web(1)]).await;
    pass(100_000).await;
    assert_eq!(running.asked().len(), 1);
    drop(running.inputs);
    running.task.await.unwrap();
}
