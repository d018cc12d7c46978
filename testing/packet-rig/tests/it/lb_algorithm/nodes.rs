//! Nodes that know the same endpoints choose alike.

use std::collections::BTreeSet;

use super::{
    choices,
    cluster::{Weighted, even, service, service_of, settle, slices, slices_of, start},
    hashing_backends, hashing_modes,
};
use packet_rig::{Rig, backend, case::MANIFESTS};

/// The endpoints that all nodes know in the end.
const ENDPOINTS: [Weighted; 5] = [(0, 1), (2, 3), (5, 1), (7, 2), (10, 1)];

/// The Service `web` with this algorithm, and `by-address`, for clients' addresses.
fn services(lb_algorithm: &str) -> String {
    let spec = "clusterIP: 10.96.0.20, ports: [{name: u, port: 80, protocol: UDP}]";
    service(Some(lb_algorithm)) + &service_of("by-address", Some("source-hash"), spec)
}

fn endpoints(of: &[Weighted]) -> String {
    slices(of) + &slices_of("by-address", of)
}

/// A node that has known nothing else.
fn plain(backend: &str) -> Rig {
    start(backend, "plain", services("maglev") + &endpoints(&ENDPOINTS), &[])
}

/// A node that has seen the endpoints, their weights and the algorithm in other ways before, and
/// was restarted in between.
fn eventful(backend: &str) -> Rig {
    let reversed: Vec<Weighted> = ENDPOINTS.into_iter().rev().collect();
    let mut rig = start(backend, "eventful", endpoints(&even([11, 10])), &[]);
    rig.write("service.yaml", &services("random")).unwrap();
    settle(&mut rig, 1);
    rig.write(MANIFESTS, &endpoints(&even(0..12))).unwrap();
    rig.write("service.yaml", &services("maglev")).unwrap();
    settle(&mut rig, 2);
    rig.write(MANIFESTS, &endpoints(&even([10, 3, 2]))).unwrap();
    settle(&mut rig, 3);
    rig.start_again().unwrap();
    rig.write(MANIFESTS, &endpoints(&reversed)).unwrap();
    settle(&mut rig, 4);
    rig
}

/// For 5,100 addresses and ports of IPv4, 1,700 of IPv6 and of TCP, and 17 addresses.
#[test]
fn all_nodes_choose_alike() {
    let _calm = crate::stay_calm();
    let mut nodes: Vec<(&str, Rig)> = Vec::new();
    nodes.extend(hashing_modes().into_iter().map(|backend| (backend, plain(backend))));
    nodes.extend(hashing_backends().into_iter().map(|backend| (backend, eventful(backend))));
    for (to, ports, reached) in [
        ("udp://10.96.0.10:80", 300, 5..=5),
        ("udp://[fd00:10:96::10]:80", 100, 5..=5),
        ("tcp://192.168.10.1:30080", 100, 5..=5),
        ("udp://10.96.0.20:80", 4, 2..=5),
    ] {
        let chosen: Vec<(&str, Vec<String>)> = nodes
            .iter()
            .map(|(backend, rig)| (backend::mode(backend), choices(rig, to, ports)))
            .collect();
        for (mode, endpoints) in &chosen {
            let (_, first) = chosen.iter().find(|(other, _)| other == mode).unwrap();
            let differ = endpoints.iter().zip(first).filter(|(one, other)| one != other).count();
            assert_eq!(differ, 0, "{to}: of {} clients", endpoints.len());
            let all: BTreeSet<&String> = endpoints.iter().collect();
            assert!(reached.contains(&all.len()), "{to}: {all:?}");
            if ports == 4 {
                assert!(endpoints.chunks(4).all(|ports| ports.iter().all(|one| *one == ports[0])));
            }
        }
    }
}
