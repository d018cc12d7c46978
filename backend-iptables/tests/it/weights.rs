//! Weights of endpoints, as probabilities of the rules that draw one.

use std::sync::Arc;

use switchyard_core::{
    model::IpFamily,
    state::{Pool, State},
};
use switchyard_iptables::{IptablesConfig, render};

use crate::golden::state;

/// The sample with these weights: of the first, second and third endpoint of each pool.
fn weighted(weights: [u32; 3]) -> State {
    let mut state = state();
    let give = |pool: &mut Pool| {
        let mut endpoints = pool.to_vec();
        for (endpoint, weight) in endpoints.iter_mut().zip(weights) {
            endpoint.weight = weight;
        }
        *pool = endpoints.into();
    };
    for port in state.service_ports.values_mut() {
        let port = Arc::make_mut(port);
        give(&mut port.cluster);
        give(&mut port.local);
    }
    state
}

/// The probabilities in the chain that a rule of KUBE-SERVICES with this text leads to.
fn probabilities(rules: &str, comment: &str) -> Vec<String> {
    let to = rules.lines().find(|line| line.starts_with("-A KUBE-S") && line.contains(comment));
    let chain = to.and_then(|rule| rule.rsplit(' ').next()).expect("a rule");
    let rules = rules.lines().filter(|line| line.starts_with(&format!("-A {chain} ")));
    let draws = rules.filter_map(|rule| rule.split_once("--probability "));
    draws.map(|(_, rest)| rest.split(' ').next().expect("a number").to_owned()).collect()
}

fn rendered(state: &State) -> String {
    render(&IptablesConfig::default(), state, IpFamily::V4)
}

#[test]
fn an_endpoint_is_drawn_by_its_weight_among_those_that_are_left() {
    let rules = rendered(&weighted([5, 3, 2]));
    for comment in ["ns/plain:http cluster IP", "ns/sticky:http cluster IP"] {
        assert_eq!(probabilities(&rules, comment), ["0.50000000000", "0.60000000009"], "{comment}");
    }
    // 99 of 100, then one of two.
    let rules = rendered(&weighted([198, 1, 1]));
    let drawn = probabilities(&rules, "ns/plain:http cluster IP");
    assert_eq!(drawn, ["0.99000000022", "0.50000000000"]);
    let rules = rendered(&weighted([u32::MAX, u32::MAX, 1]));
    let drawn = probabilities(&rules, "ns/plain:http cluster IP");
    assert_eq!(drawn, ["0.50000000000", "0.99999999953"], "the last endpoint is still drawn");
    assert_eq!(rendered(&weighted([1, 1, 1])), rendered(&state()));
}
