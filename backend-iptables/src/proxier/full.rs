//! A sync of everything: reads what the kernel holds, whoever put it there, and changes what
//! differs.

use std::collections::{HashMap, HashSet};

use proxy_core::state::State;

use crate::{
    layout::{
        Chain, Context, SharedChain, Table,
        fixed::{self, Jump},
        names::{self, chain},
        service_port::PortRules,
        text,
    },
    tool::{dump::Dump, input::Changes},
};

/// What makes tables that hold `dump` hold what they should, in the family of `context`.
pub(crate) fn plan(state: &State, context: &Context<'_>, dump: &Dump) -> Changes {
    let mut changes = Changes::default();
    for (table, chain) in fixed::chains(context) {
        compare_chain(&mut changes, dump, table, chain);
    }
    let mut shared: HashMap<SharedChain, Vec<String>> = HashMap::new();
    let mut wanted: HashSet<String> = HashSet::new();
    let mut ports: Vec<_> =
        state.service_ports.iter().filter(|(id, _)| id.family == context.family).collect();
    // For people, who read the chains; it costs little.
    ports.sort_unstable_by(|a, b| a.0.cmp(b.0));
    for (_, port) in ports {
        let rules = PortRules::of(port, context);
        for (shared_chain, rule) in rules.shared {
            shared.entry(shared_chain).or_default().push(rule);
        }
        for chain in rules.chains {
            wanted.insert(chain.name.clone());
            compare_chain(&mut changes, dump, Table::Nat, chain);
        }
    }
    let health = fixed::health_checks(&state.health_checks, context.family);
    shared.entry(SharedChain::FilterNodePorts).or_default().extend(health);
    for which in SharedChain::ALL {
        let rules = shared.remove(&which).unwrap_or_default();
        compare_shared(&mut changes, dump, which, rules, fixed::tail(which, context));
    }
    compare_jumps(&mut changes, dump, fixed::jumps());
    add_firewall(&mut changes, dump, context);
    remove_stale(&mut changes, dump, &wanted);
    changes
}

fn compare_chain(changes: &mut Changes, dump: &Dump, table: Table, chain: Chain) {
    changes.own(table, chain.rules.len() as i64);
    if dump.chain(table, &chain.name) != Some(&chain.rules) {
        changes.write_chain(table, chain);
    }
}

/// The rules of Service ports may be in any order: no two match the same packet, but for those
/// that only one Service port has, which are always written together.
fn compare_shared(
    changes: &mut Changes,
    dump: &Dump,
    which: SharedChain,
    mut rules: Vec<String>,
    tail: Vec<String>,
) {
    changes.own(which.table(), (rules.len() + tail.len()) as i64);
    let is_same = dump.chain(which.table(), which.name()).is_some_and(|known| {
        if known.len() != rules.len() + tail.len() {
            return false;
        }
        let (head, end) = known.split_at(rules.len());
        let sorted = |rules: &[String]| {
            let mut sorted: Vec<_> = rules.to_vec();
            sorted.sort_unstable();
            sorted
        };
        end == tail && sorted(head) == sorted(&rules)
    });
    if !is_same {
        rules.extend(tail);
        let chain = Chain { name: which.name().to_owned(), rules };
        changes.write_chain(which.table(), chain);
    }
}

/// Other versions of the program may print our jumps in other words; those are replaced, so that
/// there is always one, and only one.
fn compare_jumps(changes: &mut Changes, dump: &Dump, jumps: Vec<Jump>) {
    for jump in jumps {
        let rules = dump.chain(jump.table, jump.from).unwrap_or_default();
        let mut is_there = false;
        for rule in rules.iter().filter(|rule| text::target(rule) == Some(jump.to)) {
            if !is_there && *rule == jump.rule {
                is_there = true;
            } else {
                changes.delete_rule(jump.table, jump.from, rule);
            }
        }
        if !is_there {
            changes.insert_rule(jump.table, jump.from, &jump.rule);
        }
    }
}

/// Adds what is missing to a chain that we share with the kubelet, and never takes anything.
fn add_firewall(changes: &mut Changes, dump: &Dump, context: &Context<'_>) {
    let Some(rule) = fixed::firewall_rule(context) else { return };
    let table = Table::Filter;
    match dump.chain(table, chain::FIREWALL) {
        None => {
            let chain = Chain { name: chain::FIREWALL.to_owned(), rules: vec![rule] };
            changes.write_chain(table, chain);
        }
        Some(rules) if rules.contains(&rule) => {}
        Some(_) => changes.append_rule(table, chain::FIREWALL, &rule),
    }
    for jump in fixed::firewall_jumps() {
        let rules = dump.chain(table, jump.from).unwrap_or_default();
        if !rules.iter().any(|rule| text::target(rule) == Some(jump.to)) {
            changes.insert_rule(table, jump.from, &jump.rule);
        }
    }
}

/// Deletes chains of Service ports and endpoints that are gone. Those that somebody else's chain
/// leads to cannot be deleted, and must not keep everything else from being programmed.
fn remove_stale(changes: &mut Changes, dump: &Dump, wanted: &HashSet<String>) {
    let is_ours = |name: &str| {
        names::is_of_service_port(name) || name == chain::SERVICES || name == chain::NODE_PORTS
    };
    let held = held_by_others(dump, Table::Nat, is_ours);
    for (name, rules) in dump.chains(Table::Nat) {
        if !names::is_of_service_port(name) || wanted.contains(name) {
            continue;
        }
        if !held.contains(name) {
            changes.remove_chain(Table::Nat, name);
        } else if !rules.is_empty() {
            changes.empty_chain(Table::Nat, name);
        }
    }
}

/// The chains that rules of chains lead to that are not ours.
pub(crate) fn held_by_others(
    dump: &Dump,
    table: Table,
    is_ours: impl Fn(&str) -> bool,
) -> HashSet<&str> {
    dump.chains(table)
        .filter(|(name, _)| !is_ours(name))
        .flat_map(|(_, rules)| rules.iter().filter_map(|rule| text::target(rule)))
        .collect()
}
