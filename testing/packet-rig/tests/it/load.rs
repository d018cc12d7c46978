//! A test of the load generator: the server that it talks to is taken away.

use std::{thread, time::Duration};

use packet_rig::{EchoServer, LoadGenerator, LoadPlan, Probe, Protocol, Topology};

const BOTH: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

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
