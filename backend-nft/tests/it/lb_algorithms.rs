//! Spreads and weights as the kernel holds them: which slots a change rewrites, and that the number
//! of Services does not matter. Where connections go is shown by the packet cases.

use std::collections::BTreeMap;

use switchyard_core::{
    objects::Event,
    testing::{endpoint, service, slice},
};
use switchyard_nft::{NftConfig, render};

use crate::common::{Node, config, nft, open, ruleset, start, with_node};

/// The chain of the Service itself.
const OWN_CHAIN: &str = "service-LW7NZXBU-ns/spread/tcp/http";

/// The Service `spread` with this algorithm.
fn asking(lb_algorithm: &str) -> Event {
    service("spread", "10.96.0.7,fd00:10:96::7")
        .port("http", "TCP", 80)
        .annotation("switchyard/lb-algorithm", lb_algorithm)
        .apply()
}

/// The endpoints 10.244.0.N with their weights.
fn weighted(weights: &[(u8, u16)]) -> Event {
    let text: Vec<String> = weights.iter().map(|(n, w)| format!("10.244.0.{n}={w}")).collect();
    let made = slice("spread", "a")
        .port("http", "TCP", 80)
        .annotation("switchyard/weights", text.join(","));
    let endpoints = weights.iter().map(|(n, _)| endpoint(&format!("10.244.0.{n}"), "elsewhere"));
    endpoints.fold(made, |made, endpoint| made.endpoint(endpoint)).apply()
}

/// The endpoints 10.244.0.N, all with the same weight.
fn even(numbers: impl IntoIterator<Item = u8>) -> Event {
    let weights: Vec<(u8, u16)> = numbers.into_iter().map(|number| (number, 1)).collect();
    weighted(&weights)
}

/// The last byte of the endpoint's address in each slot, as nft lists the slots.
fn slots() -> Vec<u8> {
    let listed = nft("list map ip kube-proxy tcp-endpoints");
    let mut slots = BTreeMap::new();
    for element in listed.split("10.96.0.7 . 80 . ").skip(1) {
        let (slot, rest) = element.split_once(" : 10.244.0.").expect("an endpoint");
        let (number, _) = rest.split_once(" . 80").expect("a port");
        // nft prints the number of a slot as it lies in memory.
        let slot = slot.strip_prefix("0x").map_or(slot.parse(), |hex| u32::from_str_radix(hex, 16));
        slots.insert(slot.expect("a number"), number.parse().expect("a number"));
    }
    slots.into_values().collect()
}

fn counts(slots: &[u8]) -> BTreeMap<u8, usize> {
    let mut counts = BTreeMap::new();
    slots.iter().for_each(|endpoint| *counts.entry(*endpoint).or_default() += 1);
    counts
}

#[test]
fn weights_are_numbers_of_slots() {
    with_node(|mut proxy| {
        proxy.sync([asking("random"), weighted(&[(1, 7), (2, 3)])]);
        assert_eq!(counts(&slots()), [(1, 7), (2, 3)].into());
        assert!(ruleset().contains("goto lb/10"));

        // One slot more: a slot, a verdict, a chain with three rules.
        let report = proxy.sync([weighted(&[(1, 7), (2, 4)])]);
        assert_eq!(counts(&slots()), [(1, 7), (2, 4)].into());
        assert_eq!((report.added, report.removed), (1 + 1 + 1 + 3, 1));

        // Without weights, everything is as if there never had been any.
        proxy.sync([even([1, 2])]);
        assert_eq!(slots(), [1, 2]);
        assert!(ruleset().contains("goto lb/2"));
        assert_eq!(proxy.restart(open()).added, 0);
    });
}

#[test]
fn a_table_is_rewritten_only_where_it_differs() {
    with_node(|mut proxy| {
        proxy.sync([asking("maglev"), even(1..=5)]);
        let before = slots();
        assert_eq!(before.len(), 1021);
        let report = proxy.sync([even(1..=4)]);
        let after = slots();
        let differ = before.iter().zip(&after).filter(|(before, after)| before != after).count();
        assert!(differ <= 1021 / 5 + 1021 / 50, "{differ} slots");
        assert_eq!((report.added, report.removed), (differ, differ));
        assert!(!after.contains(&5));

        // Another weight moves few slots, too.
        let report = proxy.sync([weighted(&[(1, 1), (2, 1), (3, 1), (4, 2)])]);
        assert_eq!(counts(&slots())[&4], 1021 * 2 / 5 + 1);
        assert!(report.added <= 1021 * 2 / 5 - 1021 / 4 + 1021 / 20, "{report:?}");
    });
}

#[test]
fn a_service_changes_its_algorithm() {
    with_node(|mut proxy| {
        proxy.sync([asking("random"), even(1..=3)]);
        let rules = |chain| nft(&format!("list chain ip kube-proxy {chain}"));
        let before = ruleset();
        for (lb_algorithm, chain, rule) in [
            ("maglev", "mg/1021", "jhash ip saddr . tcp sport mod 1021 seed 0x53575944"),
            ("source-hash", "sh/1021", "jhash ip saddr mod 1021 seed 0x53575944"),
            ("round-robin", OWN_CHAIN, "numgen inc mod 3"),
        ] {
            proxy.sync([asking(lb_algorithm)]);
            assert!(rules(chain).contains(rule), "{}", rules(chain));
            let services = nft("list map ip kube-proxy service-ips");
            assert!(services.contains(&format!("goto {chain}")), "{services}");
        }
        assert_eq!(slots(), [1, 2, 3], "taking turns needs no table");
        proxy.sync([asking("random")]);
        // What is left of the other algorithms goes with the next comparison.
        proxy.full();
        assert_eq!(ruleset(), before);
    });
}

#[test]
fn every_service_that_takes_turns_has_a_counter() {
    with_node(|mut proxy| {
        proxy.sync([asking("round-robin"), even(1..=3)]);
        let mut other = service("other", "10.96.0.8")
            .port("http", "TCP", 80)
            .annotation("switchyard/lb-algorithm", "round-robin")
            .node_port(30080);
        other = other.set("spec.type", "NodePort");
        let slice = slice("other", "a")
            .port("http", "TCP", 80)
            .endpoint(endpoint("10.244.0.9", "elsewhere"));
        proxy.sync([other.apply(), slice.apply()]);
        assert_eq!(ruleset().matches("numgen inc mod 3").count(), 1);
        assert_eq!(ruleset().matches("numgen inc mod 1 ").count(), 2, "cluster IP and node port");
    });
}

/// The chains of a node with so many Services that all ask for Maglev.
fn chains(services: u16) -> usize {
    let mut proxy: Node = start(config());
    let events = (0..services).flat_map(|number| {
        let name = format!("s{number}");
        let [high, low] = number.to_be_bytes();
        let service = service(&name, &format!("10.96.{high}.{low}"))
            .port("http", "TCP", 80)
            .annotation("switchyard/lb-algorithm", "maglev");
        let slice =
            slice(&name, "a").port("http", "TCP", 80).endpoint(endpoint("10.244.0.9", "elsewhere"));
        [service.apply(), slice.apply()]
    });
    proxy.apply(events);
    let rendered = render(&NftConfig::default(), proxy.tracker.state()).to_string();
    rendered.lines().filter(|line| line.starts_with("add chain")).count()
}

#[test]
fn chains_do_not_depend_on_the_number_of_services() {
    assert_eq!(chains(10), chains(1_000));
}
