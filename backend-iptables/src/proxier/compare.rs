//! A comparison that changes nothing: what the tables lack of a Service, or have besides.

use std::collections::{HashMap, HashSet};

use switchyard_core::{
    model::{IpFamily, ServiceName},
    proxier::Drift,
    state::State,
};
use switchyard_kernel::xtables::{Changes, Dump, Table};

use super::full::{add_firewall, compare_chain, compare_jumps};
use crate::layout::{Context, SharedChain, fixed, service_port::PortRules};

/// Finds the chains of a Service, and those that all Services share, that do not hold what they
/// should of `state`. What shared chains lack of other Services is no matter of this one.
pub(super) fn find(
    state: &State,
    service: &ServiceName,
    context: &Context<'_>,
    dump: &Dump,
    drift: &mut Drift,
) {
    let mut found = Changes::default();
    for (table, chain) in fixed::chains(context) {
        compare_chain(&mut found, dump, table, chain);
    }
    compare_jumps(&mut found, dump, fixed::jumps(context.settings));
    let mut shared: HashMap<SharedChain, HashSet<String>> = HashMap::new();
    let mut missing: HashMap<SharedChain, Vec<String>> = HashMap::new();
    for (id, port) in state.service_ports.iter().filter(|(id, _)| id.family == context.family) {
        let rules = PortRules::new(port, context);
        if id.name.service == *service {
            for (table, chain) in rules.chains {
                compare_chain(&mut found, dump, table, chain);
            }
            for (chain, rule) in &rules.shared {
                missing.entry(*chain).or_default().push(rule.clone());
            }
        }
        for (chain, rule) in rules.shared {
            shared.entry(chain).or_default().insert(rule);
        }
    }
    let of_service = state.of_service(service);
    let own = fixed::health_checks(&of_service.health_checks, context.family);
    let health = fixed::health_checks(&state.health_checks, context.family);
    // Another Service may stand for the port.
    let own = own.into_iter().filter(|rule| health.contains(rule));
    missing.entry(SharedChain::FilterNodePorts).or_default().extend(own);
    shared.entry(SharedChain::FilterNodePorts).or_default().extend(health);
    for which in SharedChain::all(context.settings) {
        let (table, name) = (which.table(), which.name(context.settings.names));
        let tail = fixed::tail(which, context);
        let known: HashSet<&String> =
            shared.get(&which).into_iter().flatten().chain(&tail).collect();
        let held = dump.chain(table, name).unwrap_or_default();
        let wanted = missing.get(&which).into_iter().flatten();
        let lacking = wanted.filter(|rule| !held.contains(rule));
        // Rules come before the last ones, which answer what is left.
        let unended = tail.iter().filter(|_| !held.ends_with(&tail));
        let strange = held.iter().filter(|rule| !known.contains(rule));
        for rule in lacking.chain(unended).chain(strange) {
            found.append_rule(table, name, rule);
        }
    }
    if context.serves_localhost() {
        add_firewall(&mut found, dump, context.loopback());
    }
    for (table, chain) in found.unexpected(&Changes::default()) {
        drift.found(|| describe(context.family, table, chain));
    }
}

pub(super) fn describe(family: IpFamily, table: Table, chain: &str) -> String {
    format!("the {family} chain {chain} in {} was missing, altered or added", table.name())
}
