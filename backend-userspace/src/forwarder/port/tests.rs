//! State that outlives changes of the pools.

use std::time::Duration;

use switchyard_core::{
    model::{LbAlgorithm, Protocol},
    testing::pool,
};

use super::*;
use crate::forwarder::testing;

fn address(i: u8) -> SocketAddr {
    ([10, 0, 0, i], 80).into()
}

fn ends(client: u8) -> Ends {
    Ends { client: ([192, 0, 2, client], 4711).into(), destination: address(99), is_shown: false }
}

fn resolved(
    lb_algorithm: LbAlgorithm,
    affinity: Option<u64>,
    cluster: &[u8],
) -> Arc<ResolvedServicePort> {
    let endpoints: Vec<SocketAddr> = cluster.iter().map(|&last| address(last)).collect();
    Arc::new(ResolvedServicePort {
        local: pool(&endpoints[..1]),
        affinity: affinity.map(Duration::from_secs),
        lb_algorithm,
        ..testing::resolved(Protocol::Udp, &endpoints)
    })
}

fn choose(port: &Port, client: u8, at: Instant) -> SocketAddr {
    port.choose_at(at, PoolKind::Cluster, ends(client), &[]).unwrap().address
}

#[test]
fn a_client_stays_with_its_endpoint() {
    let port =
        Port::new(&resolved(LbAlgorithm::RoundRobin, Some(100), &[1, 2, 3]), &Arc::default());
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let first = choose(&port, 1, start);
    assert!((0..10).all(|_| choose(&port, 1, start) == first));
    assert_ne!(choose(&port, 2, start), first, "the next one's turn");
    assert_eq!(choose(&port, 1, after(99)), first);
    assert_eq!(choose(&port, 1, after(190)), first, "use refreshes");
    let later = choose(&port, 1, after(300));
    assert_ne!(later, first, "the time is over, and it is another one's turn");
}

#[test]
fn affinity_holds_across_pools_and_changes() {
    let port =
        Port::new(&resolved(LbAlgorithm::RoundRobin, Some(100), &[1, 2, 3]), &Arc::default());
    let now = Instant::now();
    let local = port.choose_at(now, PoolKind::Local, ends(1), &[]).unwrap().address;
    assert_eq!(local, address(1));
    assert!((0..5).all(|_| choose(&port, 1, now) == local), "whichever pool");
    port.update(&resolved(LbAlgorithm::RoundRobin, Some(100), &[1, 4, 5]));
    assert!((0..5).all(|_| choose(&port, 1, now) == local), "whatever changes besides");
    port.update(&resolved(LbAlgorithm::RoundRobin, Some(100), &[4, 5]));
    assert_ne!(choose(&port, 1, now), local);

    // An endpoint that is not in the pool asked for is not used.
    let client = (2..).find(|&client| choose(&port, client, now) == address(5)).unwrap();
    let local = port.choose_at(now, PoolKind::Local, ends(client), &[]).unwrap().address;
    assert_eq!(local, address(4));
}

#[test]
fn affinity_ends_with_the_endpoint_and_with_the_setting() {
    let port =
        Port::new(&resolved(LbAlgorithm::WeightedFailover, Some(100), &[1, 2]), &Arc::default());
    let now = Instant::now();
    assert_eq!(choose(&port, 1, now), address(1));
    port.update(&resolved(LbAlgorithm::WeightedFailover, Some(100), &[2, 3]));
    port.update(&resolved(LbAlgorithm::WeightedFailover, Some(100), &[1, 2, 3]));
    assert!(port.affinity().endpoint(ends(1).client.ip(), Duration::MAX, now).is_none());

    choose(&port, 1, now);
    port.update(&resolved(LbAlgorithm::WeightedFailover, None, &[1, 2]));
    assert!(port.affinity().endpoint(ends(1).client.ip(), Duration::MAX, now).is_none());
}

#[test]
fn a_failure_moves_the_client_for_good() {
    let port =
        Port::new(&resolved(LbAlgorithm::RoundRobin, Some(100), &[1, 2, 3]), &Arc::default());
    let now = Instant::now();
    let first = choose(&port, 1, now);
    port.failed_at(now, first, ends(1).client.ip());
    let next = port.choose_at(now, PoolKind::Cluster, ends(1), &[first]).unwrap().address;
    assert_ne!(next, first);
    assert!((0..10).all(|_| choose(&port, 1, now) == next));
    port.failed_at(now, first, ends(1).client.ip());
    assert_eq!(choose(&port, 1, now), next, "the failure of another endpoint");
}

#[test]
fn affinity_does_not_send_clients_to_an_endpoint_that_is_left_out() {
    let port =
        Port::new(&resolved(LbAlgorithm::RoundRobin, Some(100), &[1, 2, 3]), &Arc::default());
    let now = Instant::now();
    let first = choose(&port, 1, now);
    for other in [7, 8] {
        port.failed_at(now, first, ends(other).client.ip());
    }
    assert_ne!(choose(&port, 1, now), first);
}

#[test]
fn endpoints_that_fail_are_left_out_of_both_pools_until_they_answer() {
    let port = Port::new(&resolved(LbAlgorithm::RoundRobin, None, &[1, 2, 3, 4]), &Arc::default());
    let now = Instant::now();
    let left_out = [(); 3].map(|()| port.failed_at(now, address(1), ends(1).client.ip()));
    assert_eq!(left_out, [false, true, false], "once");
    let is_used = |at| (0..20).any(|_| choose(&port, 1, at) == address(1));
    assert!(!is_used(now));
    port.update(&resolved(LbAlgorithm::Random, None, &[1, 2, 3, 4, 5]));
    assert!(!is_used(now), "a change of the pool says nothing of its endpoints");
    let local = port.choose_at(now, PoolKind::Local, ends(1), &[]);
    assert_eq!(local.unwrap().address, address(1), "a pool of one");
    let due = now + Duration::from_secs(1);
    let tries = (0..200).filter(|_| choose(&port, 1, due) == address(1)).count();
    assert_eq!(tries, 1);
    port.succeeded(address(1));
    assert!((0..200).any(|_| choose(&port, 1, now) == address(1)));

    for _ in 0..2 {
        port.failed_at(now, address(1), ends(1).client.ip());
    }
    port.update(&resolved(LbAlgorithm::RoundRobin, None, &[2, 3, 4, 5]));
    port.update(&resolved(LbAlgorithm::RoundRobin, None, &[1, 2, 3, 4, 5]));
    assert!(is_used(now), "another endpoint may have the address");
}

#[test]
fn connections_of_an_endpoint_that_comes_back_count() {
    let port = Port::new(&resolved(LbAlgorithm::LeastConnections, None, &[1]), &Arc::default());
    let now = Instant::now();
    let held = port.choose_at(now, PoolKind::Cluster, ends(1), &[]);
    port.update(&resolved(LbAlgorithm::LeastConnections, None, &[2]));
    port.update(&resolved(LbAlgorithm::LeastConnections, None, &[1, 2]));
    assert!((0..10).all(|_| choose(&port, 1, now) == address(2)));
    drop(held);
    assert!((0..10).any(|_| choose(&port, 1, now) == address(1)));
}

#[test]
fn the_only_endpoint_is_never_left_out() {
    let port = Port::new(&resolved(LbAlgorithm::RoundRobin, None, &[1]), &Arc::default());
    let failed = || port.failed_at(Instant::now(), address(1), ends(1).client.ip());
    assert_eq!([(); 4].map(|()| failed()), [false; 4]);
}

#[test]
fn an_endpoint_that_comes_back_while_it_has_connections_is_used_at_once() {
    let port = Port::new(&resolved(LbAlgorithm::RoundRobin, None, &[1, 2]), &Arc::default());
    let now = Instant::now();
    let _held = [(); 2].map(|()| port.choose_at(now, PoolKind::Cluster, ends(1), &[]));
    for _ in 0..2 {
        port.failed_at(now, address(1), ends(1).client.ip());
    }
    port.update(&resolved(LbAlgorithm::RoundRobin, None, &[2]));
    port.update(&resolved(LbAlgorithm::RoundRobin, None, &[1, 2]));
    assert!((0..4).any(|_| choose(&port, 1, now) == address(1)), "it may be another endpoint");
}
