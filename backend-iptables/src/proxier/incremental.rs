//! A sync of what changed, trusting what we remember of the kernel.

use std::collections::{BTreeMap, HashMap};

use proxy_core::{
    model::{IpFamily, ServicePortId},
    state::{Delta, State},
};

use super::Memory;
use crate::{
    layout::{Chain, Context, Settings, SharedChain, Table, fixed, service_port::PortRules},
    tool::input::Changes,
};

/// With more rules to delete from it, a shared chain is written anew: each has to be looked for.
const MANY: usize = 64;

/// What changes a family's tables from what is remembered to what they should hold.
pub(crate) fn plan(
    settings: &Settings,
    family: IpFamily,
    memory: &Memory,
    state: &State,
    delta: &Delta,
) -> Changes {
    let before = Context { family, settings, node: &memory.node };
    let after = Context { family, settings, node: &state.node };
    let node_differs = memory.node.local_pods.of(family) != state.node.local_pods.of(family)
        || memory.node.node_ports.of(family) != state.node.node_ports.of(family);
    let mut update = Update::default();
    if node_differs {
        let known = memory.ports.keys().chain(state.service_ports.keys());
        let ids: std::collections::BTreeSet<_> = known.chain(&delta.service_ports).collect();
        ids.into_iter().for_each(|id| update.compare_port(memory, state, id, &before, &after));
        for which in SharedChain::ALL {
            update.compare_tail(which, &before, &after);
        }
    } else {
        for id in &delta.service_ports {
            update.compare_port(memory, state, id, &before, &after);
        }
    }
    if delta.health_checks {
        let rules = |checks| {
            let rules = fixed::health_checks(checks, family).into_iter();
            rules.map(|rule| (SharedChain::FilterNodePorts, rule)).collect()
        };
        update.compare_shared(rules(&memory.health_checks), rules(&state.health_checks));
    }
    update.finish(state, &after)
}

#[derive(Default)]
struct Update {
    changes: Changes,
    shared: BTreeMap<SharedChain, SharedUpdate>,
}

/// How a shared chain changes.
#[derive(Default)]
struct SharedUpdate {
    delete: Vec<String>,
    insert: Vec<String>,
    append: Vec<String>,
}

impl Update {
    fn compare_port(
        &mut self,
        memory: &Memory,
        state: &State,
        id: &ServicePortId,
        before: &Context<'_>,
        after: &Context<'_>,
    ) {
        if id.family != after.family {
            return;
        }
        let old = memory.ports.get(id).map(|port| PortRules::of(port, before)).unwrap_or_default();
        let new =
            state.service_ports.get(id).map(|port| PortRules::of(port, after)).unwrap_or_default();
        self.compare_chains(old.chains, new.chains);
        self.compare_shared(old.shared, new.shared);
    }

    fn compare_chains(&mut self, old: Vec<Chain>, new: Vec<Chain>) {
        let rules = |chains: &[Chain]| chains.iter().map(|c| c.rules.len() as i64).sum::<i64>();
        self.changes.own(Table::Nat, rules(&new) - rules(&old));
        let mut old: HashMap<String, Vec<String>> =
            old.into_iter().map(|chain| (chain.name, chain.rules)).collect();
        for chain in new {
            if old.remove(&chain.name).as_ref() != Some(&chain.rules) {
                self.changes.write_chain(Table::Nat, chain);
            }
        }
        for name in old.into_keys() {
            self.changes.remove_chain(Table::Nat, &name);
        }
    }

    fn compare_shared(&mut self, old: Vec<(SharedChain, String)>, new: Vec<(SharedChain, String)>) {
        let (gone, come): (Vec<_>, Vec<_>) = (
            old.iter().filter(|rule| !new.contains(rule)).cloned().collect(),
            new.iter().filter(|rule| !old.contains(rule)).cloned().collect(),
        );
        for (which, _) in &old {
            self.changes.own(which.table(), -1);
        }
        for (which, _) in &new {
            self.changes.own(which.table(), 1);
        }
        for (which, rule) in gone {
            self.shared.entry(which).or_default().delete.push(rule);
        }
        // Each is inserted above the one before.
        for (which, rule) in come.into_iter().rev() {
            self.shared.entry(which).or_default().insert.push(rule);
        }
    }

    fn compare_tail(&mut self, which: SharedChain, before: &Context<'_>, after: &Context<'_>) {
        let (old, new) = (fixed::tail(which, before), fixed::tail(which, after));
        if old != new {
            self.changes.own(which.table(), new.len() as i64 - old.len() as i64);
            let update = self.shared.entry(which).or_default();
            update.delete.extend(old);
            update.append.extend(new);
        }
    }

    fn finish(mut self, state: &State, after: &Context<'_>) -> Changes {
        let rewritten: Vec<SharedChain> = self
            .shared
            .iter()
            .filter(|(_, update)| update.delete.len() > MANY)
            .map(|(which, _)| *which)
            .collect();
        if !rewritten.is_empty() {
            self.rewrite(&rewritten, state, after);
        }
        for (which, update) in self.shared {
            let (table, name) = (which.table(), which.name());
            for rule in &update.delete {
                self.changes.delete_rule(table, name, rule);
            }
            for rule in &update.insert {
                self.changes.insert_rule(table, name, rule);
            }
            for rule in &update.append {
                self.changes.append_rule(table, name, rule);
            }
        }
        self.changes
    }

    /// Writes shared chains anew.
    fn rewrite(&mut self, rewritten: &[SharedChain], state: &State, after: &Context<'_>) {
        let mut rules: BTreeMap<SharedChain, Vec<String>> =
            rewritten.iter().map(|which| (*which, Vec::new())).collect();
        let ports = state.service_ports.values().filter(|port| port.id.family == after.family);
        for (which, rule) in ports.flat_map(|port| PortRules::of(port, after).shared) {
            if let Some(rules) = rules.get_mut(&which) {
                rules.push(rule);
            }
        }
        if let Some(rules) = rules.get_mut(&SharedChain::FilterNodePorts) {
            rules.extend(fixed::health_checks(&state.health_checks, after.family));
        }
        for (which, mut rules) in rules {
            rules.extend(fixed::tail(which, after));
            let chain = Chain { name: which.name().to_owned(), rules };
            self.changes.write_chain(which.table(), chain);
            self.shared.remove(&which);
        }
    }
}
