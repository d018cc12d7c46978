//! Connections to endpoints that leave.

use std::{thread, time::Duration};

use packet_rig::{Outcome, Probe, Rig, wait::scaled};

use super::{C, D, WEB, apply, start, wait, wait_for, web, weights};

/// A connection from a port of the client.
fn probe(source_port: u16) -> Probe {
    Probe { source_port, ..Probe::new("tcp://10.96.0.10:80".parse().unwrap()) }
}

fn endpoint(rig: &Rig, probe: &Probe) -> String {
    let outcome: Outcome = probe.run(&rig.topology.client().namespace).unwrap();
    outcome.endpoint().unwrap_or_else(|| panic!("{outcome:?}")).to_owned()
}

/// A connection goes on when its endpoint leaves, while new connections go elsewhere. The real
/// server goes with the last connection.
#[test]
fn a_connection_outlives_its_endpoint() {
    let Some(rig) = start("drain", &web("", "", &[C]), "ipvs: {tcpFinTimeout: 1s}") else { return };
    let client = &rig.topology.client().namespace;
    // Connections from a chosen port end by a reset, which the kernel remembers for ten seconds
    // only.
    let mut ports = 41_000..;
    let mut next = move || probe(ports.next().unwrap());
    let first = next();
    let mut kept = client.run(|| first.converse().unwrap()).unwrap();
    assert!(kept.ask().unwrap().contains('c'));
    apply(&rig, &web("", "", &[D]));
    wait(&rig, "the endpoint has no new connections", || weights(&rig, WEB) == [0, 1]);
    for _ in 0..5 {
        assert_eq!(endpoint(&rig, &next()), "d");
    }
    thread::sleep(scaled(Duration::from_secs(4)));
    assert!(kept.ask().unwrap().contains('c'), "the connection goes on");
    assert_eq!(weights(&rig, WEB), [0, 1]);

    // The endpoint comes back, with all that belongs to it.
    apply(&rig, &web("", "", &[C, D]));
    wait(&rig, "the endpoint is back", || weights(&rig, WEB) == [1, 1]);
    let mut seen: Vec<String> = (0..6).map(|_| endpoint(&rig, &next())).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["c", "d"]);
    kept.ask().unwrap();

    apply(&rig, &web("", "", &[D]));
    wait(&rig, "the endpoint drains again", || weights(&rig, WEB) == [0, 1]);
    drop(kept);
    let patience = Duration::from_secs(60);
    wait_for(patience, &rig, "the last connection has ended", || weights(&rig, WEB) == [1]);
}

/// A port that the client uses again leads to an endpoint that takes new connections, not to that
/// of the connection before (kubernetes issue 81775).
#[test]
fn a_reused_port_does_not_lead_to_an_endpoint_that_left() {
    let Some(rig) = start("port-reuse", &web("", "", &[C]), "") else { return };
    for port in 40_000..40_010 {
        assert_eq!(endpoint(&rig, &probe(port)), "c");
    }
    apply(&rig, &web("", "", &[D]));
    wait(&rig, "the endpoint has no new connections", || weights(&rig, WEB) == [0, 1]);
    for port in 40_000..40_010 {
        assert_eq!(endpoint(&rig, &probe(port)), "d");
    }
}
