//! Whom each algorithm chooses.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use switchyard_core::{
    model::LbAlgorithm,
    state::{self, Endpoint},
    testing::proptest_config,
};

use super::*;
use crate::forwarder::ends::Ends;

const LB_ALGORITHMS: [LbAlgorithm; 10] = [
    LbAlgorithm::Random,
    LbAlgorithm::RoundRobin,
    LbAlgorithm::SourceHash,
    LbAlgorithm::Maglev,
    LbAlgorithm::LeastConnections,
    LbAlgorithm::ShortestExpectedDelay,
    LbAlgorithm::NeverQueue,
    LbAlgorithm::DestinationHash,
    LbAlgorithm::WeightedFailover,
    LbAlgorithm::WeightedOverflow,
];

fn address(i: usize) -> SocketAddr {
    SocketAddr::new([10, 0, (i / 250) as u8, (i % 250) as u8].into(), 80)
}

fn endpoints(weights: &[u32]) -> state::Pool {
    let endpoint = |(i, &weight): (usize, &u32)| Endpoint {
        address: address(i),
        is_local: false,
        may_be_local: false,
        weight,
    };
    weights.iter().enumerate().map(endpoint).collect()
}

fn members(endpoints: &state::Pool) -> HashMap<SocketAddr, Arc<Member>> {
    endpoints.iter().map(|e| (e.address, Member::new())).collect()
}

fn pool(weights: &[u32], lb_algorithm: LbAlgorithm) -> Pool {
    let endpoints = endpoints(weights);
    Pool::new(&endpoints, lb_algorithm, &members(&endpoints), None)
}

fn client(i: u32) -> Ends {
    let ip = std::net::Ipv4Addr::from_bits(0xc000_0000 + i / 100);
    Ends {
        client: SocketAddr::new(ip.into(), 1024 + (i % 100) as u16),
        destination: SocketAddr::new(std::net::Ipv4Addr::from_bits(i).into(), 80),
        is_shown: false,
    }
}

/// Chooses once for each client, and lets the connections end or not.
fn shares(pool: &Pool, weights: &[u32], clients: u32, keep: bool) -> Vec<u32> {
    let mut shares: HashMap<SocketAddr, u32> = HashMap::new();
    let mut held = Vec::new();
    for i in 0..clients {
        let (chosen, connection) = pool.choose(client(i), &[], Instant::now()).unwrap();
        *shares.entry(chosen).or_default() += 1;
        if keep {
            held.push(connection);
        }
    }
    (0..weights.len()).map(|i| shares.get(&address(i)).copied().unwrap_or(0)).collect()
}

#[test]
fn connections_are_shared_out_by_weight() {
    for lb_algorithm in LB_ALGORITHMS {
        if matches!(lb_algorithm, LbAlgorithm::WeightedFailover | LbAlgorithm::WeightedOverflow) {
            continue;
        }
        for weights in [[1, 1, 1, 1], [1, 2, 3, 4], [100, 1, 1, 100]] {
            let total = 20_000;
            let shares = shares(&pool(&weights, lb_algorithm), &weights, total, true);
            let sum: u32 = weights.iter().sum();
            for (weight, share) in weights.into_iter().zip(&shares) {
                let wanted = f64::from(total * weight) / f64::from(sum);
                // Hashes have few clients' addresses; the others are exact, or nearly.
                let slack = match lb_algorithm {
                    LbAlgorithm::SourceHash => 0.3 * wanted + 200.0,
                    LbAlgorithm::Random | LbAlgorithm::Maglev | LbAlgorithm::DestinationHash => {
                        6.0 * wanted.sqrt() + 60.0
                    }
                    _ => 3.0,
                };
                let off = (f64::from(*share) - wanted).abs();
                assert!(off <= slack, "{lb_algorithm}: {shares:?} for {weights:?}");
            }
        }
    }
}

#[test]
fn turns_come_without_bursts() {
    let weights = [5, 1, 1];
    let pool = pool(&weights, LbAlgorithm::RoundRobin);
    let heavy = |_| pool.choose(client(0), &[], Instant::now()).unwrap().0 == address(0);
    let turns: Vec<bool> = (0..70).map(heavy).collect();
    let light = turns.split(|heavy| *heavy).map(<[bool]>::len);
    assert_eq!(turns.iter().filter(|heavy| **heavy).count(), 50);
    assert!(light.clone().max() <= Some(2), "{turns:?}");
    for window in turns.windows(8) {
        assert!(!window.iter().all(|heavy| *heavy), "{turns:?}");
    }
}

/// The endpoints that the next connections get.
fn next(pool: &Pool, connections: usize) -> Vec<SocketAddr> {
    (0..connections).map(|_| pool.choose(client(0), &[], Instant::now()).unwrap().0).collect()
}

#[test]
fn the_order_of_turns_survives_changes() {
    let all = endpoints(&[1; 5]);
    let members = members(&all);
    let mut first = Vec::new();
    for _ in 0..50 {
        let before = Pool::new(&all, LbAlgorithm::RoundRobin, &members, None);
        let last = next(&before, 3)[2];
        first.push(last);
        let at = all.iter().position(|e| e.address == last).unwrap();
        let following = all[(at + 1) % 5].address;
        let gone = all[(at + 3) % 5].address;
        let rest: state::Pool = all.iter().copied().filter(|e| e.address != gone).collect();
        let after = Pool::new(&rest, LbAlgorithm::RoundRobin, &members, Some(&before));
        let turns = next(&after, 4);
        assert_eq!(turns[0], following);
        assert_eq!(turns[3], last, "all others had their turns first: {turns:?}");
    }
    first.dedup();
    assert!(first.len() > 1, "the first is random");
}

#[test]
fn the_times_of_weighted_turns_survive_changes() {
    let weights = [10, 1, 1];
    let all = endpoints(&weights);
    let members = members(&all);
    let mut pool = Pool::new(&all, LbAlgorithm::RoundRobin, &members, None);
    let mut counts: HashMap<SocketAddr, usize> = HashMap::new();
    // As many changes as turns: if each began anew, the shares would be random.
    for round in 0..1200 {
        *counts.entry(next(&pool, 1)[0]).or_default() += 1;
        let mut changed = all.to_vec();
        changed.truncate(if round % 2 == 0 { 2 } else { 3 });
        pool = Pool::new(&changed.into(), LbAlgorithm::RoundRobin, &members, Some(&pool));
    }
    let heavy = counts[&address(0)];
    assert!((1000..=1095).contains(&heavy), "{counts:?}");
}

#[test]
fn nodes_choose_alike_by_hashes() {
    for lb_algorithm in [LbAlgorithm::SourceHash, LbAlgorithm::Maglev, LbAlgorithm::DestinationHash]
    {
        let [one, other] = [(); 2].map(|()| pool(&[1, 2, 3, 4, 5], lb_algorithm));
        for i in 0..1000 {
            let [a, b] =
                [&one, &other].map(|p| p.choose(client(i), &[], Instant::now()).unwrap().0);
            assert_eq!(a, b, "{lb_algorithm}");
            let [a, b] =
                [&one, &other].map(|p| p.choose(client(i), &[a], Instant::now()).unwrap().0);
            assert_eq!(a, b, "{lb_algorithm}, the second try");
        }
    }
}

#[test]
fn few_clients_move_when_an_endpoint_goes() {
    let all = endpoints(&[1; 10]);
    let members = members(&all);
    for lb_algorithm in [LbAlgorithm::SourceHash, LbAlgorithm::Maglev, LbAlgorithm::DestinationHash]
    {
        let before = Pool::new(&all, lb_algorithm, &members, None);
        let rest: state::Pool = all.iter().copied().skip(1).collect();
        let after = Pool::new(&rest, lb_algorithm, &members, Some(&before));
        let chosen =
            |pool: &Pool, i: u32| pool.choose(client(i * 50), &[], Instant::now()).unwrap().0;
        let moved = (0..1000)
            .filter(|&i| chosen(&before, i) != address(0))
            .filter(|&i| chosen(&before, i) != chosen(&after, i));
        assert!(moved.count() < 60, "{lb_algorithm}");
    }
}

#[test]
fn weights_order_failover() {
    let pool = pool(&[1, 5, 3], LbAlgorithm::WeightedFailover);
    let choose = |tried: &[SocketAddr]| {
        pool.choose(client(0), tried, Instant::now()).map(|(chosen, _)| chosen)
    };
    assert_eq!(choose(&[]), Some(address(1)));
    assert_eq!(choose(&[address(1)]), Some(address(2)));
    assert_eq!(choose(&[address(1), address(2)]), Some(address(0)));
    assert_eq!(choose(&[address(1), address(2), address(0)]), None);
}

#[test]
fn overflow_fills_endpoints_up_to_their_weights() {
    let pool = pool(&[1, 3, 2], LbAlgorithm::WeightedOverflow);
    let mut held: Vec<_> =
        (0..7).filter_map(|i| pool.choose(client(i), &[], Instant::now())).collect();
    let chosen: Vec<SocketAddr> = held.iter().map(|(chosen, _)| *chosen).collect();
    let expected = [1, 1, 1, 2, 2, 0].map(address);
    assert_eq!(chosen, expected, "and none for the seventh");
    held.remove(1);
    assert_eq!(pool.choose(client(0), &[], Instant::now()).unwrap().0, address(1));
}

#[test]
fn connections_are_counted_as_the_algorithms_say() {
    let hold = |lb_algorithm, weights: &[u32], counts: [usize; 2]| {
        let endpoints = endpoints(weights);
        let members = members(&endpoints);
        let held: Vec<_> = (0..2)
            .flat_map(|i| (0..counts[i]).map(move |_| i))
            .map(|i| members[&address(i)].connect(u32::MAX))
            .collect();
        let pool = Pool::new(&endpoints, lb_algorithm, &members, None);
        let chosen: Vec<_> =
            (0..10).map(|_| pool.choose(client(0), &[], Instant::now()).unwrap().0).collect();
        drop(held);
        assert!(chosen.iter().all(|c| *c == chosen[0]), "{lb_algorithm}: {chosen:?}");
        chosen[0]
    };
    assert_eq!(hold(LbAlgorithm::LeastConnections, &[1, 3], [1, 2]), address(1));
    assert_eq!(hold(LbAlgorithm::LeastConnections, &[1, 3], [0, 1]), address(0));
    assert_eq!(hold(LbAlgorithm::ShortestExpectedDelay, &[1, 3], [0, 1]), address(1));
    assert_eq!(hold(LbAlgorithm::NeverQueue, &[1, 3], [0, 1]), address(0));
    assert_eq!(hold(LbAlgorithm::NeverQueue, &[1, 3], [1, 2]), address(1));
}

/// An event of an endpoint.
#[derive(Clone, Debug)]
enum Event {
    Fails(usize),
    Answers(usize),
    Passes(u64),
    Changes,
    Chooses { client: u32, tried: Vec<usize> },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (0..20usize).prop_map(Event::Fails),
        1 => (0..20usize).prop_map(Event::Answers),
        1 => (0..5000u64).prop_map(Event::Passes),
        1 => Just(Event::Changes),
        5 => (any::<u32>(), prop::collection::vec(0..20usize, 0..20))
            .prop_map(|(client, tried)| Event::Chooses { client, tried }),
    ]
}

proptest! {
    #![proptest_config(proptest_config(256))]

    /// Whatever fails, at most half of a pool is left out; an endpoint is chosen as long as one was
    /// not tried, and none that was tried, or is in no pool.
    #[test]
    fn choices_hold_under_random_failures(
        lb_algorithm in prop::sample::select(&LB_ALGORITHMS[..9]),
        weights in prop::collection::vec(1..50u32, 1..20),
        events in prop::collection::vec(event(), 1..100),
    ) {
        let all = endpoints(&weights);
        let members = members(&all);
        let mut pool = Pool::new(&all, lb_algorithm, &members, None);
        let mut now = Instant::now();
        for event in events {
            match event {
                Event::Fails(i) => {
                    if members.get(&address(i)).is_some_and(|member| member.failed(now)) {
                        pool.leave_out(address(i));
                    }
                }
                Event::Answers(i) => {
                    if members.get(&address(i)).is_some_and(|member| member.succeeded()) {
                        pool.readmit(address(i));
                    }
                }
                Event::Passes(millis) => now += Duration::from_millis(millis),
                Event::Changes => pool = Pool::new(&all, lb_algorithm, &members, Some(&pool)),
                Event::Chooses { client: i, tried } => {
                    let tried: Vec<SocketAddr> = tried.into_iter().map(address).collect();
                    let left_out = pool.left_out();
                    let due: Vec<_> = left_out.iter().filter(|a| members[a].is_due(now)).collect();
                    let untried = all.iter().map(|e| e.address).filter(|a| !tried.contains(a));
                    let untried: Vec<SocketAddr> = untried.collect();
                    match pool.choose(client(i), &tried, now) {
                        None => prop_assert!(untried.is_empty()),
                        Some((chosen, _)) => {
                            prop_assert!(untried.contains(&chosen));
                            let better = untried.iter().any(|a| !left_out.contains(a));
                            let is_fine = !left_out.contains(&chosen) || due.contains(&&chosen);
                            prop_assert!(is_fine || !better, "{chosen} of {left_out:?}");
                        }
                    }
                }
            }
            prop_assert!(pool.left_out().len() <= weights.len() / 2);
        }
    }

    /// With some endpoints left out, the others have the connections in proportion to their
    /// weights.
    #[test]
    fn the_rest_share_in_proportion(weights in prop::collection::vec(1..20u32, 4..8)) {
        for lb_algorithm in [LbAlgorithm::Random, LbAlgorithm::RoundRobin] {
            let endpoints = endpoints(&weights);
            let down = Pool::new(&endpoints, lb_algorithm, &{
                let members = members(&endpoints);
                let now = Instant::now() + Duration::from_secs(3600);
                members[&address(0)].failed(now);
                members[&address(0)].failed(now);
                members
            }, None);
            let shares = shares(&down, &weights, 20_000, false);
            let sum: u32 = weights[1..].iter().sum();
            prop_assert_eq!(shares[0], 0);
            for (weight, share) in weights.iter().zip(&shares).skip(1) {
                let wanted = f64::from(20_000 * weight) / f64::from(sum);
                let off = (f64::from(*share) - wanted).abs();
                prop_assert!(off <= 6.0 * wanted.sqrt() + 20.0, "{:?} for {:?}", shares, weights);
            }
        }
    }
}
