//! Slow start: endpoints that just became ready get a growing share.

use std::time::{Duration, Instant};

use switchyard_core::{
    proxier::{Capabilities, Mode},
    testing::{Builder, service},
    track::Reason,
};

use crate::support::{Cluster, fields, pool, slice_of_web, web};

const SLOW_START: &str = "switchyard/slow-start";

fn asking() -> Builder {
    web().annotation(SLOW_START, "100s")
}

fn endpoints(last: &[u8]) -> Builder {
    slice_of_web("a", last.iter().copied())
}

/// A cluster with a clock, which starts at 0 seconds.
struct Clocked {
    cluster: Cluster,
    start: Instant,
}

impl Clocked {
    fn new() -> Self {
        Self::with(Capabilities::KUBE_PROXY.with_weights())
    }

    fn with(capabilities: Capabilities) -> Self {
        let mut this = Self { cluster: Cluster::new(), start: Instant::now() };
        this.cluster.tracker.set_capabilities(capabilities, Mode::NFTABLES);
        this.pass(0);
        this
    }

    /// Sets the clock to so many seconds after the start, and resolves.
    fn pass(&mut self, seconds: u64) -> &mut Self {
        self.cluster.tracker.advance(self.start + Duration::from_secs(seconds));
        self.cluster.events([]);
        self
    }

    /// Sets the clock, and applies objects.
    fn at(&mut self, seconds: u64, builders: &[Builder]) -> &mut Self {
        self.pass(seconds);
        assert_eq!(self.cluster.apply(builders), []);
        self
    }

    /// The shares of the endpoints, by the last parts of their addresses.
    fn shares(&self) -> String {
        pool(&self.cluster.port("web", "").cluster).replace("10.1.0.", "").replace(":80*", "")
    }

    /// The time at which the next step is, in seconds after the start.
    fn next(&self) -> Option<u64> {
        let next = self.cluster.tracker.next_step()?;
        Some(next.duration_since(self.start).as_secs())
    }
}

#[test]
fn the_share_grows_in_ten_steps() {
    let mut web = Clocked::new();
    web.at(0, &[asking(), endpoints(&[1, 2])]);
    assert_eq!((web.shares().as_str(), web.next()), ("1 2", None), "not when the program starts");
    web.at(1000, &[endpoints(&[1, 2, 3])]);
    assert_eq!((web.shares().as_str(), web.next()), ("1=10 2=10 3", Some(1010)));
    let shares: Vec<String> = (1..10).map(|step| web.pass(1000 + step * 10).shares()).collect();
    assert_eq!(
        shares,
        [
            "1=10 2=10 3=2",
            "1=10 2=10 3=3",
            "1=10 2=10 3=4",
            "1=10 2=10 3=5",
            "1=10 2=10 3=6",
            "1=10 2=10 3=7",
            "1=10 2=10 3=8",
            "1=10 2=10 3=9",
            "1 2 3",
        ]
    );
    assert_eq!(web.next(), None);
}

#[test]
fn only_steps_touch_the_service() {
    let mut web = Clocked::new();
    let other = service("other", "10.0.0.2").port("", "TCP", 80).annotation(SLOW_START, "1h");
    web.at(0, &[asking(), endpoints(&[1]), other]).at(0, &[endpoints(&[1, 2])]);
    web.cluster.take_changes();
    assert_eq!(web.pass(9).cluster.take_changes(), [""; 0]);
    assert_eq!(web.next(), Some(10));
    assert_eq!(web.pass(10).cluster.take_changes(), ["ns/web (TCP, IPv4)"]);
    assert_eq!((web.shares().as_str(), web.next()), ("1=10 2=2", Some(20)));
    // A clock that was not asked for a while.
    assert_eq!(web.pass(75).cluster.take_changes(), ["ns/web (TCP, IPv4)"]);
    assert_eq!((web.shares().as_str(), web.next()), ("1=10 2=8", Some(80)));
    assert_eq!(web.pass(5000).cluster.take_changes(), ["ns/web (TCP, IPv4)"]);
    assert_eq!((web.shares().as_str(), web.next()), ("1 2", None));
}

#[test]
fn weights_are_multiplied() {
    let mut web = Clocked::new();
    let weighted = |last: &[u8]| endpoints(last).annotation("switchyard/weights", "10.1.0.1=3");
    web.at(0, &[asking(), weighted(&[1])]);
    web.at(0, &[weighted(&[1, 2]).annotation("switchyard/weights", "10.1.0.1=3,10.1.0.2=7")]);
    assert_eq!(web.shares(), "1=30 2=7");
    assert_eq!(web.pass(90).shares(), "1=3 2=7");
}

#[test]
fn several_endpoints_ramp_each_from_its_own_start() {
    let mut web = Clocked::new();
    web.at(0, &[asking(), endpoints(&[1])]).at(0, &[endpoints(&[1, 2])]);
    web.at(45, &[endpoints(&[1, 2, 3])]);
    assert_eq!((web.shares().as_str(), web.next()), ("1=10 2=5 3", Some(50)));
    assert_eq!((web.pass(55).shares().as_str(), web.next()), ("1=10 2=6 3=2", Some(60)));
    assert_eq!(web.pass(90).shares(), "1=10 2=10 3=5");
    // One that goes and comes back starts again.
    web.at(95, &[endpoints(&[1, 2])]);
    assert_eq!((web.shares().as_str(), web.next()), ("1 2", None));
    web.at(96, &[endpoints(&[1, 2, 3])]);
    assert_eq!(web.shares(), "1=10 2=10 3");
}

#[test]
fn where_nothing_was_ready_nothing_happens() {
    let mut web = Clocked::new();
    web.at(0, &[asking()]).at(10, &[endpoints(&[1, 2])]);
    assert_eq!((web.shares().as_str(), web.next()), ("1 2", None));
    // All are new: equal shares, which are no change.
    web.at(20, &[endpoints(&[3, 4])]);
    assert_eq!(web.shares(), "3 4");
    web.cluster.take_changes();
    assert_eq!(web.pass(40).cluster.take_changes(), [""; 0]);
}

#[test]
fn an_endpoint_that_gets_a_weight_is_new() {
    let mut web = Clocked::new();
    let drained = endpoints(&[1, 2]).annotation("switchyard/weights", "10.1.0.2=0");
    web.at(0, &[asking(), drained]).at(5, &[endpoints(&[1, 2])]);
    assert_eq!(web.shares(), "1=10 2");
}

#[test]
fn it_ends_with_the_annotation_or_the_service() {
    let mut web = Clocked::new();
    web.at(0, &[asking(), endpoints(&[1])]).at(0, &[endpoints(&[1, 2])]);
    web.at(5, &[crate::support::web()]);
    assert_eq!((web.shares().as_str(), web.next()), ("1 2", None));
    // What is there when the Service begins to ask is not new.
    web.at(6, &[asking()]).at(7, &[endpoints(&[1, 2, 3])]);
    assert_eq!((web.shares().as_str(), web.next()), ("1=10 2=10 3", Some(17)));
    web.cluster.delete(&[asking()]);
    assert_eq!(web.next(), None);
    web.at(8, &[asking()]);
    assert_eq!(web.shares(), "1 2 3");
}

#[test]
fn another_window_counts_from_the_same_start() {
    let mut web = Clocked::new();
    web.at(0, &[asking(), endpoints(&[1])]).at(0, &[endpoints(&[1, 2])]);
    web.at(20, &[crate::support::web().annotation(SLOW_START, "40s")]);
    assert_eq!((web.shares().as_str(), web.next()), ("1=10 2=6", Some(24)));
}

#[test]
fn without_a_clock_there_is_no_slow_start() {
    let mut cluster = Cluster::new();
    cluster.tracker.set_capabilities(Capabilities::KUBE_PROXY.with_weights(), Mode::NFTABLES);
    cluster.apply(&[asking(), endpoints(&[1])]);
    cluster.apply(&[endpoints(&[1, 2])]);
    assert_eq!(pool(&cluster.port("web", "").cluster), "10.1.0.1:80* 10.1.0.2:80*");
    assert_eq!(cluster.tracker.next_step(), None);
}

#[test]
fn times_are_those_of_go_in_whole_numbers() {
    for (good, millis) in
        [("1s", 100), ("1h", 360_000), (" 2m ", 12_000), ("1m30s", 9_000), ("1500ms", 150)]
    {
        let mut web = Clocked::new();
        web.at(0, &[crate::support::web().annotation(SLOW_START, good), endpoints(&[1])]);
        web.at(0, &[endpoints(&[1, 2])]);
        let first = web.cluster.tracker.next_step().unwrap().duration_since(web.start);
        assert_eq!(first, Duration::from_millis(millis), "{good}");
    }
    for bad in [
        "",
        "30",
        "s",
        "0s",
        "999ms",
        "1h1s",
        "30 s",
        "+30s",
        "1.5s",
        "-1s",
        "30S",
        "1d",
        "30s5",
        "99999999999999999999s",
        "soon",
    ] {
        let mut web = Clocked::new();
        let problems = web
            .cluster
            .apply(&[crate::support::web().annotation(SLOW_START, bad), endpoints(&[1])]);
        assert_eq!(
            fields(&problems),
            ["Service ns/web: metadata.annotations[switchyard/slow-start]"]
        );
        assert_eq!(problems[0].reason, Reason::Invalid);
        assert!(problems[0].message.starts_with(&format!("`{bad}` is no time")), "{problems:?}");
        web.at(1, &[endpoints(&[1, 2])]);
        assert_eq!(web.shares(), "1 2", "{bad}");
    }
}

#[test]
fn a_backend_without_weights_has_no_slow_start() {
    let mut web = Clocked::with(Capabilities::KUBE_PROXY);
    let problems = web.cluster.apply(&[asking(), endpoints(&[1])]);
    let [problem] = problems.as_slice() else { panic!("{problems:?}") };
    assert_eq!(problem.reason, Reason::Unsupported);
    assert_eq!(problem.field, "metadata.annotations[switchyard/slow-start]");
    assert_eq!(
        problem.message,
        "shares cannot grow in nftables mode; new endpoints get their full share at once"
    );
    assert_eq!(web.cluster.tracker.unsupported().v4, 1);
    web.at(1, &[endpoints(&[1, 2])]);
    assert_eq!((web.shares().as_str(), web.next()), ("1 2", None));
}
