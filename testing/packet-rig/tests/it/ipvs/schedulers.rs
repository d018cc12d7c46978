//! Schedulers: by the configuration, and by the annotations of Services.

use super::{C, D, WEB, apply, servers, start, wait, web, weights};

fn scheduler(rig: &packet_rig::Rig) -> String {
    let found = servers(rig).into_iter().find(|server| server.at == WEB);
    found.map(|server| server.scheduler).unwrap_or_default()
}

#[test]
fn a_service_chooses_its_scheduler() {
    let Some(rig) = start("schedulers", &web("", "", &[C, D]), "ipvs: {scheduler: wlc}") else {
        return;
    };
    wait(&rig, "the configured one", || scheduler(&rig) == "wlc");
    for (lb_algorithm, name) in [
        ("round-robin", "rr"),
        ("source-hash", "sh"),
        ("maglev", "mh"),
        ("least-connections", "wlc"),
        ("shortest-expected-delay", "sed"),
        ("never-queue", "nq"),
        ("locality-least-connections", "lblc"),
        ("locality-least-connections-replicated", "lblcr"),
        ("destination-hash", "dh"),
        ("weighted-failover", "fo"),
        ("weighted-overflow", "ovf"),
        // No scheduler draws at random; the nearest takes turns.
        ("random", "rr"),
    ] {
        apply(&rig, &web(&format!("switchyard/lb-algorithm: {lb_algorithm}"), "", &[C, D]));
        wait(&rig, lb_algorithm, || scheduler(&rig) == name);
        assert_eq!(weights(&rig, WEB), [1, 1]);
    }
    let log = rig.proxy.log();
    assert!(log.contains("`random` cannot be programmed in ipvs mode"), "{log}");
}

/// A scheduler that knows weights takes the place of one that does not, and stays: a change refuses
/// connections for a while.
#[test]
fn weights_are_real_weights() {
    let Some(rig) = start("weights", &web("", "", &[C, D]), "") else { return };
    wait(&rig, "equal weights", || scheduler(&rig) == "rr" && weights(&rig, WEB) == [1, 1]);
    let weighed = |weights: &str| {
        let manifests = web("", "", &[C, D]);
        let slice = "metadata: {name: web-4, ";
        manifests
            .replace(slice, &format!("{slice}annotations: {{switchyard/weights: \"{weights}\"}}, "))
    };
    apply(&rig, &weighed("10.244.2.10=30,10.244.2.11=10"));
    wait(&rig, "three to one", || scheduler(&rig) == "wrr" && weights(&rig, WEB) == [3, 1]);
    apply(&rig, &web("", "", &[C, D]));
    wait(&rig, "equal again", || scheduler(&rig) == "wrr" && weights(&rig, WEB) == [1, 1]);
}

#[test]
fn an_unknown_scheduler_is_an_error_and_not_the_end() {
    let Some(rig) = start("unknown", &web("", "", &[C]), "ipvs: {scheduler: fastest}") else {
        return;
    };
    wait(&rig, "another one", || scheduler(&rig) == "rr");
    let log = rig.proxy.log();
    assert!(log.contains("`fastest` is no scheduler of the kernel"), "{log}");
}
