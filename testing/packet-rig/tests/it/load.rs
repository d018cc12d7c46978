//! Tests of the load generator: the server that it talks to is taken away.

use std::{thread, time::Duration};

use packet_rig::{EchoServer, LoadGenerator, LoadPlan, Probe, Protocol, Target, Topology};

const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

#[test]
fn nothing_is_lost_while_nothing_happens() {
    let _calm = crate::stay_calm();
    let topology = Topology::new().unwrap();
    let pod = topology.place("a").unwrap();
    let _server = EchoServer::start(&pod.namespace, "a", 8080, &BOTH).unwrap();
    for target in ["tcp://10.244.1.10:8080", "udp://[fd00:10:244:1::10]:8080"] {
        let target: Target = target.parse().unwrap();
        let plan = LoadPlan { persistent: 3, ..LoadPlan::new(&topology.node().namespace, target) };
        let load = LoadGenerator::start(&plan);
        thread::sleep(Duration::from_millis(600));
        let report = load.finish().unwrap();
        assert_eq!(report.new_connections.failed(), 0, "{report:?}");
        assert!(report.new_connections.attempts > 20, "{report:?}");
        assert_eq!(report.new_connections.endpoints["a"], report.new_connections.attempts);
        assert!(report.new_connections.latency(0.99).unwrap() < Duration::from_secs(1));
        assert_eq!(report.persistent.failed(), 0, "{report:?}");
        assert!(report.persistent.attempts >= 9, "{report:?}");
    }
}

#[test]
fn what_is_lost_is_counted() {
    let _calm = crate::stay_calm();
    let topology = Topology::new().unwrap();
    let pod = topology.place("a").unwrap();
    let server = EchoServer::start(&pod.namespace, "a", 8080, &BOTH).unwrap();
    let target = "tcp://10.244.1.10:8080".parse().unwrap();
    let plan = LoadPlan::new(&topology.node().namespace, target);
    // A link that has just been made may lose a first packet, which is sent again a second later.
    assert_eq!(Probe::new(target).run(&plan.namespace).unwrap().endpoint(), Some("a"));
    let load = LoadGenerator::start(&plan);
    thread::sleep(Duration::from_millis(400));
    drop(server);
    thread::sleep(Duration::from_millis(400));
    let report = load.finish().unwrap();
    assert!(report.new_connections.failed() > 0, "{report:?}");
    assert!(report.new_connections.endpoints["a"] > 0, "{report:?}");
    assert_eq!(report.persistent.failed(), 4, "each connection breaks once: {report:?}");
}

#[test]
fn it_ends_by_itself() {
    let _calm = crate::stay_calm();
    let topology = Topology::new().unwrap();
    let target = "tcp://10.244.1.10:9".parse().unwrap();
    let plan = LoadPlan {
        duration: Duration::from_millis(200),
        persistent: 0,
        ..LoadPlan::new(&topology.node().namespace, target)
    };
    let load = LoadGenerator::start(&plan);
    thread::sleep(Duration::from_millis(500));
    let before = load.finish().unwrap().new_connections;
    assert_eq!(before.attempts, before.failures["refused"]);
}
