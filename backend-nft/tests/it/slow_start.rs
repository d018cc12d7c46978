//! Slow start: what its steps change in the kernel.

use std::time::{Duration, Instant};

use switchyard_core::{
    objects::Event,
    testing::{endpoint, service, slice},
};

use crate::common::{config, in_namespace, start};

/// As many endpoints on another node.
fn endpoints(count: usize) -> Event {
    let made = slice("web", "web-1").port("", "TCP", 80);
    let address = |i: usize| format!("10.244.{}.{}", i / 200, i % 200 + 1);
    let elsewhere = |i| endpoint(&address(i), "node-2");
    (0..count).fold(made, |made, i| made.endpoint(elsewhere(i))).apply()
}

/// Adds one endpoint to so many. Returns the elements that each step adds, and removes.
fn ramp(count: usize) -> Vec<(usize, usize)> {
    let mut proxy = start(config());
    let begin = Instant::now();
    proxy.tracker.advance(begin);
    let asking = service("web", "10.96.0.1")
        .port("", "TCP", 80)
        .annotation("switchyard/slow-start", "10s")
        .apply();
    proxy.sync([asking, endpoints(count)]);
    let first = proxy.sync([endpoints(count + 1)]);
    let mut steps = vec![(first.added, first.removed)];
    for seconds in 1..10 {
        proxy.tracker.advance(begin + Duration::from_secs(seconds));
        let step = proxy.sync([]);
        steps.push((step.added, step.removed));
    }
    assert!(proxy.full().drift.is_none());
    steps
}

#[test]
fn each_step_is_as_small_as_a_slot() {
    for (count, parts) in [(50, 10), (499, 10), (500, 5), (1_000, 2)] {
        in_namespace(|| {
            let steps = ramp(count);
            println!("{count} endpoints: {steps:?}");
            let steps: Vec<_> = steps.into_iter().filter(|step| *step != (0, 0)).collect();
            assert_eq!(steps.len(), parts, "{steps:?}");
            let (inner, others) = (&steps[1..parts - 1], count * (parts - 1));
            // Besides the slot: another number of slots has another chain, and the Service's
            // verdict leads to it.
            let other_number = 16;
            assert!(
                inner.iter().all(|(added, removed)| added + removed <= other_number),
                "{steps:?}"
            );
            let (began, ended) = (steps[0], steps[parts - 1]);
            assert!((others..others + other_number).contains(&began.0), "{steps:?}");
            assert!(began.1 <= 1 && ended.1 <= others + other_number, "{steps:?}");
        });
    }
}
