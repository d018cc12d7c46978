//! Chains and sets of single Service ports: of those with ClientIP affinity, of those whose endpoints
//! take turns, and of those with source ranges. Chains have upstream's names where upstream has them too.

use std::collections::BTreeSet;

use switchyard_core::state::{Action, Masquerade, PoolKind, ResolvedServicePort};

use super::{
    ChainRules, Context,
    affinity::{self, Earlier, RememberedPool},
    drawing::{Drawing, Method},
    names,
    shared::SharedChain,
    slot_map::{Scope, SlotMap, SlotPool},
    source_ranges,
};
use crate::ruleset::{ChainName, Rule, Side, Statement, Verdict};

/// The chains and sets of a single Service port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OwnObjects {
    pub(crate) chains: Vec<ChainRules>,
    /// What remembers clients.
    pub(crate) pools: Vec<RememberedPool>,
}

/// Whether a Service port needs chains of its own to reach its endpoints: to look its clients up, or to
/// count turns.
pub(crate) fn has_chains(port: &ResolvedServicePort) -> bool {
    port.affinity.is_some() || takes_turns(port)
}

fn takes_turns(port: &ResolvedServicePort) -> bool {
    Method::of(port.lb_algorithm) == Method::InTurn
}

/// The name of the own chain that a frontend of a Service port leads to; `None` for a frontend without
/// endpoints, and for a Service port without such chains.
pub(crate) fn entry_chain(
    port: &ResolvedServicePort,
    scope: Scope,
    action: Action,
) -> Option<ChainName> {
    if !has_chains(port) {
        return None;
    }
    let base = names::service_port_base(&port.id.name);
    let prefix = match action {
        Action::Pool { pool, masquerade: Masquerade::Never } => {
            return Some(pool_chain(&base, scope, pool));
        }
        // Only cluster IPs lead to this chain, and all of them with the same masquerading.
        Action::Pool { pool: PoolKind::Local, .. } => "internal-local-",
        Action::Pool { masquerade: Masquerade::Always, .. } => "external-",
        Action::Pool { .. } => "internal-",
        Action::ExternalLocal => "external-local-",
        Action::Reject | Action::Drop => return None,
    };
    Some(scoped(scope, prefix, &base))
}

fn pool_chain(base: &str, scope: Scope, pool: PoolKind) -> ChainName {
    match pool {
        PoolKind::Cluster => scoped(scope, "service-", base),
        PoolKind::Local => scoped(scope, "local-", base),
    }
}

fn scoped(scope: Scope, prefix: &str, base: &str) -> ChainName {
    names::with_prefix(&format!("{}{prefix}", scope.prefix()), base).into()
}

/// The chains and sets of `port` alone, which may have had another timeout earlier.
pub(crate) fn objects(
    port: &ResolvedServicePort,
    context: &Context<'_>,
    earlier: Option<Earlier>,
) -> OwnObjects {
    let mut own = OwnObjects::default();
    own.chains.extend(source_ranges::chain(port));
    if port.affinity.is_some() {
        own.pools = affinity::pools(port, context.family, earlier);
        if !own.pools.is_empty() {
            own.chains.push(affinity::remember_rules(port));
        }
    }
    if has_chains(port) {
        add_chains(port, context, earlier, &mut own);
    }
    own
}

/// The shared chain in which the chain of a pool ends; `None` if the Service port has no such chain, or
/// draws by itself.
pub(crate) fn draw(
    port: &ResolvedServicePort,
    scope: Scope,
    kind: PoolKind,
) -> Option<SharedChain> {
    (has_chains(port) && !takes_turns(port)).then(|| SharedChain::draw(scope, kind, port))
}

fn add_chains(
    port: &ResolvedServicePort,
    context: &Context<'_>,
    earlier: Option<Earlier>,
    own: &mut OwnObjects,
) {
    let base = names::service_port_base(&port.id.name);
    let entries: BTreeSet<(Scope, Action)> =
        port.frontends.iter().map(|frontend| (Scope::of(frontend), frontend.action)).collect();
    let mut pools: BTreeSet<(Scope, PoolKind)> = BTreeSet::new();
    for (scope, action) in entries {
        match action {
            Action::Pool { pool, .. } => _ = pools.insert((scope, pool)),
            Action::ExternalLocal => {
                pools.insert((scope, PoolKind::Cluster));
                if !port.local.is_empty() {
                    pools.insert((scope, PoolKind::Local));
                }
            }
            Action::Reject | Action::Drop => {}
        }
        if let Some(entry) = entry_chain(port, scope, action)
            && let Some(rules) = entry_rules(port, scope, action, &base, context)
        {
            own.chains.push(ChainRules::new(entry, rules));
        }
    }
    for (scope, kind) in pools {
        let remembered = affinity::lookup_rules(port, kind, earlier);
        let drawn = match draw(port, scope, kind) {
            Some(shared) => Rule::new([Statement::Verdict(Verdict::Goto(shared.name()))]),
            None => {
                let (pool, protocol) = (SlotPool::apart(kind), port.id.name.protocol);
                let drawing = Drawing::of(port.lb_algorithm, port.pool(kind));
                SlotMap { scope, pool, protocol }.balance(drawing)
            }
        };
        let rules = remembered.chain([drawn]).collect();
        own.chains.push(ChainRules::new(pool_chain(&base, scope, kind), rules));
    }
}

/// The rules of an entry chain; `None` if the entry chain is the chain of a pool.
fn entry_rules(
    port: &ResolvedServicePort,
    scope: Scope,
    action: Action,
    base: &str,
    context: &Context<'_>,
) -> Option<Vec<Rule>> {
    let go = |pool| Statement::Verdict(Verdict::Goto(pool_chain(base, scope, pool)));
    let mark = Statement::MarkOr(context.mark);
    match action {
        Action::Pool { masquerade: Masquerade::Never, .. } | Action::Reject | Action::Drop => None,
        Action::Pool { pool, masquerade: Masquerade::Always } => {
            Some(vec![Rule::new([mark, go(pool)])])
        }
        Action::Pool { pool, masquerade: Masquerade::ExceptLocalPods } => {
            let non_local = context.local_pod_match(false);
            let marking = non_local.map(|non_local| Rule::new([non_local, mark]));
            Some(marking.into_iter().chain([Rule::new([go(pool)])]).collect())
        }
        Action::ExternalLocal => {
            let local_pods = context.local_pod_match(true);
            let local = local_pods.map(|local| Rule::new([local, go(PoolKind::Cluster)]));
            let node = Rule::new([Statement::FibLocal(Side::Source), mark, go(PoolKind::Cluster)]);
            let outside = (!port.local.is_empty()).then(|| Rule::new([go(PoolKind::Local)]));
            Some(local.into_iter().chain([node]).chain(outside).collect())
        }
    }
}
