//! A sync of changes alone, which trusts that the kernel holds what was synced.

use std::{
    collections::{BTreeMap, HashSet},
    hash::Hash,
};

use switchyard_core::{
    model::IpFamily,
    state::State,
    transition::{Before, PortChange, Transition},
};
use switchyard_kernel::xtables::{Chain, Changes, Table};

use crate::layout::{Context, Settings, SharedChain, fixed, service_port::PortRules};

/// The most rules to delete from a shared chain one by one, each of which the kernel has to look
/// for; with more, the chain is written anew.
const MANY: usize = 64;

/// Plans the changes from a family's tables that hold `before` to tables that hold
/// `change.after()`.
pub(crate) fn plan(
    settings: &Settings,
    family: IpFamily,
    before: Before<'_>,
    change: &Transition<'_>,
) -> Changes {
    let state = change.after();
    let contexts = (
        Context { family, settings, node: before.node() },
        Context { family, settings, node: &state.node },
    );
    let node_differs = before.node().local_pods.get(family) != state.node.local_pods.get(family)
        || before.node().node_ports.get(family) != state.node.node_ports.get(family);
    let mut update = Update::default();
    if node_differs {
        // The rules of every Service port may depend on the node's settings.
        let unchanged = before.ports().filter(|port| !change.has_port(&port.id)).map(|port| {
            let after = state.service_ports.get(&port.id);
            PortChange { id: &port.id, before: Some(port), after }
        });
        let ports: BTreeMap<_, _> =
            change.ports().chain(unchanged).map(|port| (port.id, port)).collect();
        ports.values().for_each(|port| update.compare_port(port, &contexts));
        for which in SharedChain::all(settings) {
            update.compare_tail(which, &contexts.0, &contexts.1);
        }
    } else {
        change.ports().for_each(|port| update.compare_port(&port, &contexts));
    }
    if change.health_checks_changed() {
        let rules = |checks| {
            let rules = fixed::health_checks(checks, family).into_iter();
            rules.map(|rule| (SharedChain::FilterNodePorts, rule)).collect()
        };
        update.compare_shared(rules(before.health_checks()), rules(&state.health_checks));
    }
    update.finish(state, &contexts.1)
}

/// Returns the items that are in `old` alone and those that are in `new` alone, in their order. A
/// Service port may have a hundred thousand rules: one for each of its source ranges.
fn differences<T: Clone + Eq + Hash>(old: &[T], new: &[T]) -> (Vec<T>, Vec<T>) {
    let without = |all: &[T], others: &[T]| {
        let others: HashSet<&T> = others.iter().collect();
        all.iter().filter(|item| !others.contains(item)).cloned().collect()
    };
    (without(old, new), without(new, old))
}

#[derive(Default)]
struct Update {
    changes: Changes,
    shared: BTreeMap<SharedChain, SharedUpdate>,
}

/// The change of a shared chain.
#[derive(Default)]
struct SharedUpdate {
    delete: Vec<String>,
    insert: Vec<String>,
    append: Vec<String>,
}

impl Update {
    fn compare_port(
        &mut self,
        port: &PortChange<'_>,
        (before, after): &(Context<'_>, Context<'_>),
    ) {
        if port.id.family != after.family {
            return;
        }
        let old = port.before.map(|port| PortRules::new(port, before)).unwrap_or_default();
        let new = port.after.map(|port| PortRules::new(port, after)).unwrap_or_default();
        self.compare_chains(old.chains, new.chains);
        self.compare_shared(old.shared, new.shared);
    }

    fn compare_chains(&mut self, old: Vec<(Table, Chain)>, new: Vec<(Table, Chain)>) {
        let mut gone = BTreeMap::new();
        for (table, chain) in old {
            self.changes.count_owned(table, -(chain.rules.len() as i64));
            gone.insert((table, chain.name), chain.rules);
        }
        for (table, chain) in new {
            self.changes.count_owned(table, chain.rules.len() as i64);
            if gone.remove(&(table, chain.name.clone())).as_ref() != Some(&chain.rules) {
                self.changes.write_chain(table, chain);
            }
        }
        for (table, name) in gone.into_keys() {
            self.changes.remove_chain(table, &name);
        }
    }

    fn compare_shared(&mut self, old: Vec<(SharedChain, String)>, new: Vec<(SharedChain, String)>) {
        let (gone, come) = differences(&old, &new);
        for (which, _) in &old {
            self.changes.count_owned(which.table(), -1);
        }
        for (which, _) in &new {
            self.changes.count_owned(which.table(), 1);
        }
        for (which, rule) in gone {
            self.shared.entry(which).or_default().delete.push(rule);
        }
        // Each rule is inserted above the one before.
        for (which, rule) in come.into_iter().rev() {
            self.shared.entry(which).or_default().insert.push(rule);
        }
    }

    fn compare_tail(&mut self, which: SharedChain, before: &Context<'_>, after: &Context<'_>) {
        let (old, new) = (fixed::tail(which, before), fixed::tail(which, after));
        if old != new {
            self.changes.count_owned(which.table(), new.len() as i64 - old.len() as i64);
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
            let (table, name) = (which.table(), which.name(after.settings.names));
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
        for (which, rule) in ports.flat_map(|port| PortRules::new(port, after).shared) {
            if let Some(rules) = rules.get_mut(&which) {
                rules.push(rule);
            }
        }
        if let Some(rules) = rules.get_mut(&SharedChain::FilterNodePorts) {
            rules.extend(fixed::health_checks(&state.health_checks, after.family));
        }
        for (which, mut rules) in rules {
            rules.extend(fixed::tail(which, after));
            let chain = Chain { name: which.name(after.settings.names).to_owned(), rules };
            self.changes.write_chain(which.table(), chain);
            self.shared.remove(&which);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, hash::Hasher, sync::Arc};

    use ipnet::IpNet;
    use switchyard_core::{
        model::{LbAlgorithm, Protocol, ServiceName, ServicePortId, ServicePortName},
        state::{
            Action, Endpoint, Frontend, FrontendAddress, Masquerade, PoolKind, ResolvedServicePort,
        },
        testing::OwnedTransition,
    };
    use switchyard_kernel::xtables::{Dump, testing::Tables};

    use super::{super::full, *};
    use crate::{IptablesConfig, proxier::settings};

    /// A Service port at an address of another device, for these clients alone.
    fn port(action: Action, allowed_sources: Option<Arc<[IpNet]>>) -> ResolvedServicePort {
        let service = ServiceName::new("ns", "web");
        let name = ServicePortName { service, port: Arc::default(), protocol: Protocol::Tcp };
        let at = FrontendAddress::LoadBalancerIp([192, 0, 2, 1].into());
        let address = ([10, 244, 0, 1], 80).into();
        let here = Endpoint { address, is_local: true, may_be_local: true, weight: 1 };
        ResolvedServicePort {
            id: ServicePortId { name, family: IpFamily::V4 },
            frontends: vec![Frontend { at, port: 80, action, allowed_sources }],
            cluster: [here].into(),
            local: [here].into(),
            draining: [].into(),
            affinity: None,
            lb_algorithm: LbAlgorithm::Random,
            proxy_protocol: None,
        }
    }

    /// Rules that come are inserted above those that stay, whatever the order of both.
    #[test]
    fn the_rules_of_a_service_port_keep_their_order() {
        let config = IptablesConfig { beneath_ipvs: true, ..IptablesConfig::default() };
        let settings = settings(&config);
        let masquerade = Masquerade::Always;
        let actions = [
            Action::Pool { pool: PoolKind::Cluster, masquerade },
            Action::ExternalLocal,
            Action::Delivered { masquerade },
            Action::DeliveredLocal,
            Action::Reject,
            Action::Drop,
        ];
        let family = IpFamily::V4;
        let afresh = |state: &State| {
            let context = Context { family, settings: &settings, node: &state.node };
            let all = full::plan(state, &context, &Dump::default(), full::Snapshot::Everything);
            let mut tables = Tables::default();
            tables.restore(&all.to_text(), |_| {}).unwrap();
            tables
        };
        let net: IpNet = "10.0.0.0/8".parse().unwrap();
        let limits = [None, Some(Arc::from([net]))];
        let all: Vec<_> =
            actions.iter().flat_map(|a| limits.iter().map(move |l| (*a, l))).collect();
        for (before, after) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
            let state = |(action, limit): (Action, &Option<Arc<[IpNet]>>)| {
                let mut state = State::default();
                let port = port(action, limit.clone());
                state.service_ports.insert(port.id.clone(), Arc::new(port));
                state
            };
            let (old, new) = (state(before), state(after));
            let (id, port) = old.service_ports.iter().next().unwrap();
            let change = OwnedTransition::to(new.clone()).port(id.clone(), Some(port.clone()));
            let mut tables = afresh(&old);
            let changes = plan(&settings, family, change.get().before().unwrap(), &change.get());
            tables.restore(&changes.to_text(), |_| {}).unwrap();
            let (have, want) = (tables.save(), afresh(&new).save());
            assert!(have == want, "{before:?} becomes {after:?}: {have}instead of {want}");
        }
    }

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// A rule that counts how often it is compared.
    #[derive(Clone, Debug)]
    struct Counted(String);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Counted {}

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    #[test]
    fn sixty_thousand_rules_are_compared_a_few_times_each() {
        const RULES: usize = 60_000;
        let rule = |n: usize| Counted(format!("-A KUBE-PROXY-FIREWALL -s 10.0.0.{n}/32 -j RETURN"));
        let old: Vec<_> = (0..RULES).map(rule).collect();
        // One goes, in the middle, and one comes at the end.
        let new: Vec<_> = (0..=RULES).filter(|n| *n != RULES / 2).map(rule).collect();
        let (gone, come) = differences(&old, &new);
        let texts = |rules: &[Counted]| rules.iter().map(|rule| rule.0.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&gone), [rule(RULES / 2).0]);
        assert_eq!(texts(&come), [rule(RULES).0]);
        assert!(COMPARISONS.get() < 10 * RULES, "{} comparisons", COMPARISONS.get());
    }
}
