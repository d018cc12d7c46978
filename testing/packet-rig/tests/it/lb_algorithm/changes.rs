//! Algorithms, weights and endpoints change under load: no connection is lost.

use std::{thread, time::Duration};

use packet_rig::case::MANIFESTS;

use super::cluster::{Weighted, even, service, service_of, settle, slices, slices_of, start};
use crate::traffic::{Route, Traffic};

/// The time between two changes.
const PAUSE: Duration = Duration::from_millis(120);

/// The traffic in the meantime: the place of the clients, and their target. Endpoints of the
/// Service `lasting` change their weights, and stay.
const LOAD: [Route; 5] = [
    ("client", "tcp://10.96.0.10:80"),
    ("b", "tcp://[fd00:10:96::10]:80"),
    ("node-1", "tcp://192.168.10.1:30080"),
    ("client", "udp://10.96.0.20:80"),
    ("b", "udp://10.96.0.20:80"),
];

/// The algorithm of both Services, the endpoints of `web`, and the weights of the endpoints of
/// `lasting`.
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
    let lasting: Vec<Weighted> = lasting.iter().copied().enumerate().collect();
    let spec = "clusterIP: 10.96.0.20, ports: [{name: u, port: 80, protocol: UDP}]";
    let services = service(*lb_algorithm) + &service_of("lasting", *lb_algorithm, spec);
    services + &slices(web) + &slices_of("lasting", &lasting)
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
        for ((from, to), report) in load.assert_nothing_lost() {
            // A kept connection stays where it began, whatever the weights.
            let endpoints = report.persistent.endpoints;
            assert_eq!(endpoints.len(), 1, "{from} to {to}: {endpoints:?}");
        }
        assert!(!rig.proxy.log().contains("Sync failed"), "{}", rig.proxy.log());
    }
}
