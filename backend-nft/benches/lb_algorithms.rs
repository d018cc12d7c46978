//! The cost of algorithms beside random selection: to program Services, and when an endpoint leaves
//! or gets another weight.
//!
//! `cargo bench -p switchyard-nft --bench lb_algorithms`, as root: everything happens in network
//! namespaces of its own threads. Times are medians.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "benches fail by panics")]

use std::time::Duration;

use switchyard_core::{
    config::NodeConfig,
    model::LbAlgorithm,
    objects::Event,
    testing::{
        NODE, Stepped,
        bench::{median, show, time},
        endpoint, service, slice,
    },
};
use switchyard_nft::NftProxier;
use test_netns::in_namespace;

const ROUNDS: usize = 3;

/// Numbers of Services, and of endpoints of each.
const CLUSTERS: [(u16, u16); 5] = [(100, 5), (1_000, 5), (1, 20), (1, 200), (1, 1_600)];

fn main() {
    for (services, endpoints) in CLUSTERS {
        println!("{services} Services x {endpoints} endpoints, nftables by netlink");
        let [first, leaves, weighs] = ["first programming", "an endpoint leaves", "another weight"];
        println!("{:<14}{first:>20}{leaves:>28}{weighs:>28}", "");
        for lb_algorithm in [
            LbAlgorithm::Random,
            LbAlgorithm::RoundRobin,
            LbAlgorithm::SourceHash,
            LbAlgorithm::Maglev,
        ] {
            let rounds: Vec<_> = (0..ROUNDS)
                .map(|_| in_namespace(|| measure(services, endpoints, lb_algorithm)))
                .collect();
            let step = |of: fn(&Round) -> &Step| {
                let time = median(rounds.iter().map(|round| of(round).time).collect());
                format!("{} ({} elements)", show(time, 3), of(&rounds[0]).changed)
            };
            let first = median(rounds.iter().map(|round| round.first).collect());
            println!(
                "{:<14}{:>20}{:>28}{:>28}",
                lb_algorithm.as_str(),
                show(first, 3),
                step(|round| &round.leaves),
                step(|round| &round.weighs)
            );
        }
    }
}

#[derive(Default)]
struct Round {
    first: Duration,
    leaves: Step,
    weighs: Step,
}

/// One sync of a change of the first Service.
#[derive(Default)]
struct Step {
    time: Duration,
    changed: usize,
}

fn measure(services: u16, endpoints: u16, lb_algorithm: LbAlgorithm) -> Round {
    let proxier = NftProxier::open(Default::default()).expect("netlink is there");
    let mut node = Stepped::new(NodeConfig::new(NODE), proxier);
    node.apply(
        (0..services)
            .flat_map(|number| [asking(number, lb_algorithm), slice_of(number, 0, endpoints, 1)]),
    );
    let first = time(|| drop(node.try_sync().expect("synced")));
    let mut change = |event: Event| {
        let mut changed = 0;
        let time = time(|| {
            let report = node.sync([event]);
            changed = report.added + report.removed;
        });
        Step { time, changed }
    };
    let leaves = change(slice_of(0, 1, endpoints, 1));
    let weighs = change(slice_of(0, 1, endpoints, 2));
    Round { first, leaves, weighs }
}

fn asking(number: u16, lb_algorithm: LbAlgorithm) -> Event {
    let [high, low] = number.to_be_bytes();
    service(&format!("s{number}"), &format!("10.96.{high}.{low}"))
        .port("http", "TCP", 80)
        .annotation("switchyard/lb-algorithm", lb_algorithm.as_str())
        .apply()
}

/// The slice of a Service: these endpoints, the last of which has this weight.
fn slice_of(number: u16, first: u16, end: u16, weight: u16) -> Event {
    let address = |n: u16| format!("10.244.{}.{}", n >> 8, n & 0xff);
    let made = slice(&format!("s{number}"), "a")
        .port("http", "TCP", 80)
        .annotation("switchyard/weights", format!("{}={weight}", address(end)));
    let endpoints = (first + 1..=end).map(|n| endpoint(&address(n), "elsewhere"));
    endpoints.fold(made, |made, endpoint| made.endpoint(endpoint)).apply()
}
