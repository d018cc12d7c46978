//! State found by a start.

use packet_rig::case::MANIFESTS;

use super::{C, D, WEB, apply, start, wait, web, weights};

/// An endpoint that was draining when the program ended takes connections again if it is there at
/// the next start.
#[test]
fn weights_are_reconciled_at_the_start() {
    let Some(mut rig) = start("restart", &web("", "", &[C, D]), "") else { return };
    let node = rig.topology.node().namespace.clone();
    let target = "tcp://10.96.0.10:80".parse().unwrap();
    let connect = || node.run(|| packet_rig::Probe::new(target).converse().unwrap()).unwrap();
    let mut kept: Vec<_> = (0..2).map(|_| connect()).collect();
    kept.iter_mut().for_each(|kept| drop(kept.ask().unwrap()));
    apply(&rig, &web("", "", &[D]));
    wait(&rig, "one drains", || weights(&rig, WEB) == [0, 1]);
    rig.proxy.kill();
    rig.write(MANIFESTS, &web("", "", &[C, D])).unwrap();
    rig.start_again().unwrap();
    wait(&rig, "both take connections", || weights(&rig, WEB) == [1, 1]);
    kept.iter_mut().for_each(|kept| drop(kept.ask().unwrap()));

    // One that left in the meantime keeps its connections, and gets no others.
    rig.proxy.kill();
    rig.write(MANIFESTS, &web("", "", &[D])).unwrap();
    rig.start_again().unwrap();
    wait(&rig, "one drains", || weights(&rig, WEB) == [0, 1]);
    kept.iter_mut().for_each(|kept| drop(kept.ask().unwrap()));
}
