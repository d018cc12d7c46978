//! What a start finds, and what is left of Services that are gone.

use packet_rig::{Rig, case::MANIFESTS};

use super::{C, D, WEB, addresses, apply, is_selected, servers, start, wait, web, weights};

const EXTERNAL: &str = "externalIPs: [198.51.100.10], ";

/// A Service alone, with other addresses than [`web`].
const OTHER: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: other}\n\
                     spec: {clusterIP: 10.96.0.20, ports: [{port: 80}]}\n";

fn entries(rig: &Rig, set: &str) -> usize {
    let node = &rig.topology.node().namespace;
    let text = node.output("ipset", &["list", set], "").unwrap();
    text.lines().skip_while(|line| *line != "Members:").skip(1).count()
}

/// Nothing of a Service that is deleted stays, be it deleted while the program runs or while it does
/// not: with its external address left on the node, traffic to that address would end here.
#[test]
fn nothing_of_a_deleted_service_stays() {
    if !is_selected() {
        return;
    }
    let mut rig = start("deleted", &web("", EXTERNAL, &[C]), "");
    let both = ["10.96.0.10/32", "198.51.100.10/32"];
    wait(&rig, "addresses are bound", || {
        let mut found = addresses(&rig);
        found.sort();
        found == both
    });
    assert_eq!((servers(&rig).len(), entries(&rig, "KUBE-IPVS-IPS")), (2, 2));
    apply(&rig, OTHER);
    wait(&rig, "the addresses go", || addresses(&rig) == ["10.96.0.20/32"]);
    wait(&rig, "the virtual servers go", || servers(&rig).len() == 1);
    wait(&rig, "the entries go", || {
        entries(&rig, "KUBE-IPVS-IPS") == 1
            && entries(&rig, "KUBE-EXTERNAL-IP") == 0
            && entries(&rig, "KUBE-CLUSTER-IP") == 0
    });

    apply(&rig, &web("", EXTERNAL, &[C]));
    wait(&rig, "the addresses are back", || addresses(&rig).len() == 2);
    rig.proxy.kill();
    rig.write(MANIFESTS, OTHER).unwrap();
    rig.start_again().unwrap();
    wait(&rig, "the addresses go at the start", || addresses(&rig) == ["10.96.0.20/32"]);
    wait(&rig, "the virtual servers go", || servers(&rig).len() == 1);
}

/// An endpoint that was draining when the program ended takes connections again if it is there at the
/// next start.
#[test]
fn weights_are_reconciled_at_the_start() {
    if !is_selected() {
        return;
    }
    let mut rig = start("restart", &web("", "", &[C, D]), "");
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

    // One that left meanwhile keeps its connections, and gets no others.
    rig.proxy.kill();
    rig.write(MANIFESTS, &web("", "", &[D])).unwrap();
    rig.start_again().unwrap();
    wait(&rig, "one drains", || weights(&rig, WEB) == [0, 1]);
    kept.iter_mut().for_each(|kept| drop(kept.ask().unwrap()));
}

/// A start that finds everything as it should be changes nothing.
#[test]
fn a_restart_changes_nothing() {
    if !is_selected() {
        return;
    }
    let manifests = web("", EXTERNAL, &[C, D]);
    let mut rig = start("same", &manifests, "");
    rig.proxy.kill();
    // The log of the second process follows that of the first.
    let before = rig.proxy.log().len();
    rig.start_again().unwrap();
    let synced = || {
        let log = rig.proxy.log();
        log[before..].lines().find(|line| line.contains("\"Synced\"")).map(str::to_owned)
    };
    wait(&rig, "the sync is logged", || synced().is_some());
    assert!(synced().unwrap().contains("added=0 removed=0 bytes=0"), "{}", rig.proxy.log());
}
