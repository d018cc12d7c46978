//! Chains that somebody flushes are back within a second, and what somebody changes in them a
//! little later; nothing is done if nobody does.

mod common;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use backend_iptables::Flavour;
use common::{Tables, config, in_namespace, proxier};
use proxy_core::{
    objects::{Event, Kind},
    proxier::Proxier,
    runner::{Input, Runner, RunnerConfig},
    testing::web,
    track::Tracker,
};
use tokio::sync::{mpsc, oneshot};

const SECOND: Duration = Duration::from_secs(1);

/// Waits until `holds`, for at most half a minute; returns for how long.
fn time_until(holds: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < 30 * SECOND, "it does not happen");
        thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

fn watch(flavour: Flavour) {
    let (inputs, received) = mpsc::channel(16);
    let proxier = proxier(flavour);
    let monitor = proxier.monitor().expect("the kernel can be asked");
    let runner = Runner::new(
        Tracker::new(config()),
        Box::new(proxier),
        RunnerConfig::default(),
        Arc::new(()),
    );
    let from_monitor = inputs.clone();
    let (stop, stopped) = oneshot::channel::<()>();
    // A thread of this one stays in the namespace.
    let engine = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            tokio::select! {
                _ = runner.run(received) => {}
                () = monitor.run(from_monitor) => {}
                _ = stopped => {}
            }
        });
    });
    let empty = |kind| Event::Replace { kind, objects: Vec::new(), malformed: Vec::new() };
    let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];
    for event in kinds.map(empty).into_iter().chain(web()) {
        inputs.blocking_send(Input::Event(event)).expect("the runner runs");
    }
    let tables = Tables::both(flavour);
    let contents = || tables.map(|tables| tables.save());
    time_until(|| contents()[0].contains("KUBE-SVC-") && contents()[1].contains("KUBE-SERVICES"));
    let whole = contents();

    // What others do to rules of their own is not held against them.
    tables[0].run("-t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE");
    thread::sleep(SECOND);
    tables[0].run("-t nat -D POSTROUTING -s 172.17.0.0/16 -j MASQUERADE");
    assert_eq!(contents(), whole);

    let reload = "*mangle\n:KUBE-PROXY-CANARY - [0:0]\n-X KUBE-PROXY-CANARY\nCOMMIT\n";
    let chain = whole[0]
        .lines()
        .find_map(|line| line.strip_prefix(":KUBE-SVC-")?.split(' ').next())
        .expect("a Service");
    let flush = format!("-t nat -F KUBE-SVC-{chain}");
    let flushes: [(&str, &dyn Fn()); 4] = [
        ("iptables -F", &|| tables[0].run("-F")),
        ("iptables -t nat -F", &|| tables[0].run("-t nat -F")),
        ("ip6tables -t nat -F", &|| tables[1].run("-t nat -F")),
        ("a canary of IPv6", &|| tables[1].restore(reload)),
    ];
    for (what, flush) in flushes {
        flush();
        assert_ne!(contents(), whole, "{what} does something");
        let took = time_until(|| contents() == whole);
        assert!(took < SECOND + Duration::from_millis(500), "{what}: {took:?}");
        println!("{flavour}: {what} is repaired after {took:?}");
        // The runner paces itself after a sync.
        thread::sleep(SECOND);
    }
    // The chains and the jumps to them are there: that one lacks a rule takes longer to notice.
    tables[0].run(&flush);
    assert_ne!(contents(), whole);
    time_until(|| contents() == whole);
    drop(stop);
    engine.join().expect("nothing panics");
}

#[test]
fn legacy_chains_that_others_flush_or_change_are_repaired() {
    in_namespace(|| watch(Flavour::Legacy));
}

#[test]
fn nft_chains_that_others_flush_or_change_are_repaired() {
    in_namespace(|| watch(Flavour::Nft));
}
