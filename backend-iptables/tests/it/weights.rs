//! Weights of endpoints, as probabilities of the rules that draw one. Each test with a kernel runs
//! once with each flavour.

use std::sync::Arc;

use switchyard_core::{
    config::NodeConfig,
    model::{IpFamily, LbAlgorithm},
    proxier::Proxier,
    state::{Pool, State},
    testing::{NODE, OwnedTransition, sync_first},
};
use switchyard_iptables::{Flavour, IptablesConfig, render};

use crate::{
    common::{Tables, in_namespace, proxier, start},
    golden::state,
};

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

#[test]
fn the_backend_draws_at_random_and_by_weight() {
    let capabilities = proxier(Flavour::Nft).profile().capabilities;
    assert!(capabilities.has_weights());
    let can: Vec<LbAlgorithm> = LbAlgorithm::ALL
        .into_iter()
        .filter(|lb_algorithm| capabilities.most_endpoints(*lb_algorithm) > 0)
        .collect();
    assert_eq!(can, [LbAlgorithm::Random]);
}

/// After each change of weights, the tables are those of a sync from nothing, a restart finds
/// nothing to do, and only the chains that draw were written.
#[test]
fn changes_of_weights_alone_are_synced() {
    const WEIGHTS: [[u32; 3]; 7] = [
        [1, 1, 1],
        [5, 3, 2],
        [2, 3, 5],
        [1, u32::MAX, 1],
        [u32::MAX, 1, 1],
        [65_535, 65_534, 1],
        [1, 1, 1],
    ];
    let both = |flavour| Tables::both(flavour).map(|tables| sorted(&tables.save()));
    for flavour in Flavour::ALL {
        in_namespace(move || {
            let mut node = start(flavour, NodeConfig::new(NODE));
            let mut before = weighted(WEIGHTS[0]);
            sync_first(&mut node.proxier, &before).expect("a sync");
            for weights in &WEIGHTS[1..] {
                let after = weighted(*weights);
                let mut change = OwnedTransition::to(after.clone());
                for (id, port) in &before.service_ports {
                    change = change.port(id.clone(), Some(port.clone()));
                }
                let report = node.runtime.block_on(node.proxier.sync(&change.get()));
                let report = report.expect("a sync");
                let rules: u64 = report.rules.iter().map(|count| count.written).sum();
                // The chains that draw, of both families; all chains have over a hundred.
                assert_eq!(rules, 18, "{weights:?}: {report:?}");
                let tables = both(flavour);
                let kernel = Tables::v4(flavour).save();
                for comment in ["ns/plain:http cluster IP", "ns/sticky:http cluster IP"] {
                    let wanted = probabilities(&rendered(&after), comment);
                    assert_eq!(probabilities(&kernel, comment), wanted, "{weights:?}");
                }
                let report = sync_first(&mut proxier(flavour), &after).expect("a restart");
                assert_eq!(report.bytes, 0, "{weights:?}");
                let afresh = in_namespace(|| {
                    sync_first(&mut proxier(flavour), &after).expect("a sync from nothing");
                    both(flavour)
                });
                assert_eq!(tables, afresh, "{weights:?}");
                before = after;
            }
        });
    }
}

/// The lines of a listing in order: rules of Service ports may be in any.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}
