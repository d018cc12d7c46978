//! Spreads, weights and endpoints change, and the proxy is killed, under load: no connection is lost.

use std::{thread, time::Duration};

use packet_rig::{Rig, case::MANIFESTS};

use super::{
    choices,
    cluster::{Weighted, even, service, settle, slices, slices_of, start},
    hashing_backends,
};
use crate::traffic::{Route, Traffic};

/// The metric of the bytes sent to the kernel.
const SENT: &str = "switchyard_transaction_bytes_sum";

/// The time between two changes.
const PAUSE: Duration = Duration::from_millis(120);

/// The traffic meanwhile: the place of the clients, and their target. Endpoints of the Service `lasting`
/// change their weights, and stay.
const LOAD: [Route; 5] = [
    ("client", "tcp://10.96.0.10:80"),
    ("b", "tcp://[fd00:10:96::10]:80"),
    ("node-1", "tcp://192.168.10.1:30080"),
    ("client", "udp://10.96.0.20:80"),
    ("b", "udp://10.96.0.20:80"),
];

/// The algorithm of both Services, the endpoints of `web`, and the weights of the endpoints of `lasting`.
type Phase = (Option<&'static str>, Vec<Weighted>, [u16; 3]);

fn phases() -> Vec<Phase> {
    let weighted = |weights: &[u16]| weights.iter().copied().enumerate().collect();
    vec![
        (None, even(0..3), [1, 1, 1]),
        // Weights alone.
        (None, weighted(&[7, 2, 1]), [5, 1, 0]),
        (None, weighted(&[0, 1, 0]), [0, 0, 3]),
        // Spreads alone.
        (Some("maglev"), weighted(&[0, 1, 0]), [0, 0, 3]),
        (Some("random"), weighted(&[0, 1, 0]), [0, 0, 3]),
        (Some("round-robin"), even(0..5), [1, 2, 3]),
        (Some("source-hash"), even(0..5), [1, 2, 3]),
        // Endpoints, and tables of another size.
        (Some("maglev"), even(2..6), [0, 1, 1]),
        (Some("maglev"), even(0..12), [1, 1, 0]),
        (Some("maglev"), even([11]), [4, 0, 0]),
        (Some("round-robin"), even(0..2), [1, 0, 0]),
        (None, even(0..4), [1, 1, 1]),
    ]
}

fn manifests((lb_algorithm, web, lasting): &Phase) -> String {
    manifests_of([*lb_algorithm, *lb_algorithm], web, lasting)
}

/// The manifests with an algorithm of each Service.
fn manifests_of(algorithms: [Option<&str>; 2], web: &[Weighted], lasting: &[u16; 3]) -> String {
    let lasting: Vec<Weighted> = lasting.iter().copied().enumerate().collect();
    let annotations =
        algorithms[1].map(|lb_algorithm| format!("switchyard/lb-algorithm: {lb_algorithm}"));
    let other = format!(
        "
---
apiVersion: v1
kind: Service
metadata: {{name: lasting, annotations: {{{}}}}}
spec: {{clusterIP: 10.96.0.20, ports: [{{name: u, port: 80, protocol: UDP}}]}}",
        annotations.unwrap_or_default()
    );
    service(algorithms[0]) + &slices(web) + &other + &slices_of("lasting", &lasting)
}

/// Ends the traffic. A kept connection stays where it began, whatever the weights.
fn assert_nothing_lost(load: Traffic) {
    for ((from, to), report) in load.assert_nothing_lost() {
        let endpoints = report.persistent.endpoints;
        assert_eq!(endpoints.len(), 1, "{from} to {to}: {endpoints:?}");
    }
}

#[test]
fn changes_lose_no_connection() {
    let _calm = crate::stay_calm();
    for backend in crate::backends() {
        let phases = phases();
        let mut rig = start(backend, "changes", manifests(&phases[0]), &[]);
        settle(&mut rig, 1);
        let load = Traffic::start(&rig, &LOAD, 1);
        for (call, phase) in (2..).zip(&phases[1..]) {
            rig.write(MANIFESTS, &manifests(phase)).unwrap();
            settle(&mut rig, call);
            thread::sleep(PAUSE);
        }
        assert_nothing_lost(load);
        assert!(!rig.proxy.log().contains("Sync failed"), "{}", rig.proxy.log());
    }
}

/// The kernel is sent nothing, and every client has the endpoint that it had.
#[test]
fn a_restart_changes_nothing_and_loses_nothing() {
    let _calm = crate::stay_calm();
    let algorithms = [Some("maglev"), Some("round-robin")];
    let manifests = manifests_of(algorithms, &[(0, 7), (1, 2), (2, 1), (5, 0)], &[3, 1, 0]);
    for backend in crate::backends() {
        let mut rig = start(backend, "restart", manifests.clone(), &[]);
        // A history that a new process does not know.
        rig.write(MANIFESTS, &manifests_of(algorithms, &even(0..9), &[1, 1, 1])).unwrap();
        settle(&mut rig, 1);
        rig.write(MANIFESTS, &manifests).unwrap();
        settle(&mut rig, 2);
        // What has become superfluous goes at the first restart.
        rig.start_again().unwrap();
        thread::sleep(Duration::from_millis(500));
        let clients = |rig: &Rig| match hashing_backends().contains(&backend) {
            true => choices(rig, "udp://10.96.0.10:80", 60),
            false => Vec::new(),
        };
        let before = clients(&rig);
        let load = Traffic::start(&rig, &LOAD, 1);
        for _ in 0..2 {
            rig.proxy.kill();
            thread::sleep(PAUSE);
            rig.start_again().unwrap();
            // Long enough for a second look at anything.
            thread::sleep(Duration::from_millis(700));
            let sent: f64 = rig.proxy.metric(SENT).unwrap().iter().sum();
            assert_eq!(sent, 0.0, "{backend}: {}", rig.proxy.log());
        }
        assert_nothing_lost(load);
        assert_eq!(clients(&rig), before, "{backend}");
    }
}
