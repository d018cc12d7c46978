//! A sync of everything: reads what the kernel holds, whichever program put it there, and changes
//! what differs.

use std::collections::{HashMap, HashSet};

use switchyard_core::state::State;
use switchyard_kernel::xtables::{Chain, Changes, Dump, Jump, Table, target};

use crate::layout::{
    Context, SharedChain, fixed,
    names::{self, ChainNames},
    service_port::PortRules,
};

/// The part of the tables that a dump shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Snapshot {
    /// All chains and rules.
    Everything,
    /// The jumps to our chains alone: iptables cannot print the rest. Chains of Service ports that
    /// are gone stay then, where nothing leads to them; and a chain that the kubelet shares is left
    /// as it is.
    Jumps,
}

/// Returns the changes that make tables which hold `dump` hold what they should, in the family of
/// `context`.
pub(crate) fn plan(
    state: &State,
    context: &Context<'_>,
    dump: &Dump,
    snapshot: Snapshot,
) -> Changes {
    let mut changes = Changes::default();
    for (table, chain) in fixed::chains(context) {
        compare_chain(&mut changes, dump, table, chain);
    }
    let mut shared: HashMap<SharedChain, Vec<String>> = HashMap::new();
    let mut wanted: HashMap<Table, HashSet<String>> = HashMap::new();
    let mut ports: Vec<_> =
        state.service_ports.iter().filter(|(id, _)| id.family == context.family).collect();
    // For readers of the chains; sorting costs little.
    ports.sort_unstable_by(|a, b| a.0.cmp(b.0));
    for (_, port) in ports {
        let rules = PortRules::new(port, context);
        for (shared_chain, rule) in rules.shared {
            shared.entry(shared_chain).or_default().push(rule);
        }
        for (table, chain) in rules.chains {
            wanted.entry(table).or_default().insert(chain.name.clone());
            compare_chain(&mut changes, dump, table, chain);
        }
    }
    let health = fixed::health_checks(&state.health_checks, context.family);
    shared.entry(SharedChain::FilterNodePorts).or_default().extend(health);
    for which in SharedChain::all(context.settings) {
        let rules = shared.remove(&which).unwrap_or_default();
        let chain = (which.table(), which.name(context.settings.names));
        compare_shared(&mut changes, dump, chain, rules, fixed::tail(which, context));
    }
    compare_jumps(&mut changes, dump, fixed::jumps(context.settings));
    for Jump { table, from, rule, .. } in fixed::unwanted_jumps(context.settings) {
        if dump.chain(table, from).is_some_and(|rules| rules.contains(&rule)) {
            changes.delete_rule(table, from, &rule);
        }
    }
    if snapshot == Snapshot::Everything {
        if context.serves_localhost() {
            add_firewall(&mut changes, dump, context.loopback());
        }
        for table in [Table::Filter, Table::Nat] {
            let wanted = wanted.remove(&table).unwrap_or_default();
            remove_stale(&mut changes, dump, table, &wanted, context.settings.names);
        }
    }
    changes
}

pub(super) fn compare_chain(changes: &mut Changes, dump: &Dump, table: Table, chain: Chain) {
    changes.count_owned(table, chain.rules.len() as i64);
    if dump.chain(table, &chain.name) != Some(&chain.rules) {
        changes.write_chain(table, chain);
    }
}

/// Whether two chains hold the same rules. The rules of Service ports may be in any order: no two
/// match the same packet, except for rules of one Service port, which are always written together.
fn compare_shared(
    changes: &mut Changes,
    dump: &Dump,
    (table, name): (Table, &str),
    mut rules: Vec<String>,
    tail: Vec<String>,
) {
    changes.count_owned(table, (rules.len() + tail.len()) as i64);
    let is_same = dump.chain(table, name).is_some_and(|known| {
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
        let chain = Chain { name: name.to_owned(), rules };
        changes.write_chain(table, chain);
    }
}

/// Compares the jumps to our chains. Other versions of the program may print jumps in other words;
/// such jumps are replaced, so that there is always exactly one.
pub(super) fn compare_jumps(changes: &mut Changes, dump: &Dump, jumps: Vec<Jump>) {
    for jump in jumps {
        let rules = dump.chain(jump.table, jump.from).unwrap_or_default();
        let mut is_there = false;
        for rule in rules.iter().filter(|rule| target(rule) == Some(jump.to)) {
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

/// Adds missing rules to a chain that is shared with the kubelet, and never removes any.
pub(super) fn add_firewall(changes: &mut Changes, dump: &Dump, loopback: &str) {
    let rule = fixed::firewall_rule(loopback);
    let table = Table::Filter;
    match dump.chain(table, names::FIREWALL) {
        None => {
            let chain = Chain { name: names::FIREWALL.to_owned(), rules: vec![rule] };
            changes.write_chain(table, chain);
        }
        Some(rules) if rules.contains(&rule) => {}
        Some(_) => changes.append_rule(table, names::FIREWALL, &rule),
    }
    for jump in fixed::firewall_jumps() {
        let rules = dump.chain(table, jump.from).unwrap_or_default();
        if !rules.iter().any(|rule| target(rule) == Some(jump.to)) {
            changes.insert_rule(table, jump.from, &jump.rule);
        }
    }
}

/// Deletes chains of Service ports and endpoints that are gone. A chain that another program's
/// chain leads to cannot be deleted, and must not keep everything else from being programmed.
fn remove_stale(
    changes: &mut Changes,
    dump: &Dump,
    table: Table,
    wanted: &HashSet<String>,
    names: &ChainNames,
) {
    // Rules of other programs' chains lead to these.
    let others = dump.chains(table).filter(|(name, _)| !names.has(name));
    let held: HashSet<&str> =
        others.flat_map(|(_, rules)| rules.iter().filter_map(|rule| target(rule))).collect();
    for (name, rules) in dump.chains(table) {
        if !names.is_of_service_port(table, name) || wanted.contains(name) {
            continue;
        }
        if !held.contains(name) {
            changes.remove_chain(table, name);
        } else if !rules.is_empty() {
            changes.empty_chain(table, name);
        }
    }
}
