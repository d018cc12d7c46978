//! Chains and sets of single Service ports: of those with ClientIP affinity, and of those with source
//! ranges. Chains have upstream's names where upstream has them too.

use std::collections::BTreeSet;

use switchyard_core::{
    model::ServicePortName,
    state::{Masquerade, PoolKind, ResolvedServicePort, Route},
};

use super::{
    ChainRules, Context,
    affinity::{self, RememberedPool},
    names,
    shared::SharedChain,
    slot_map::Scope,
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

/// The name of the chain that a frontend of a Service port with affinity leads to; `None` for a
/// frontend without endpoints.
pub(crate) fn entry_chain(name: &ServicePortName, scope: Scope, route: Route) -> Option<ChainName> {
    let base = names::service_port_base(name);
    let prefix = match route {
        Route::Pool { pool, masquerade: Masquerade::Never } => {
            return Some(pool_chain(&base, scope, pool));
        }
        // Only cluster IPs lead to this chain, and all of them with the same masquerading.
        Route::Pool { pool: PoolKind::Local, .. } => "internal-local-",
        Route::Pool { masquerade: Masquerade::Always, .. } => "external-",
        Route::Pool { .. } => "internal-",
        Route::ExternalLocal => "external-local-",
        Route::Reject | Route::Drop => return None,
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

/// The chains and sets of `port` alone.
pub(crate) fn objects(port: &ResolvedServicePort, context: &Context<'_>) -> OwnObjects {
    let mut own = OwnObjects::default();
    own.chains.extend(source_ranges::chain(port));
    if port.affinity.is_some() {
        add_affinity(port, context, &mut own);
    }
    own
}

fn add_affinity(port: &ResolvedServicePort, context: &Context<'_>, own: &mut OwnObjects) {
    let name = &port.id.name;
    let base = names::service_port_base(name);
    own.pools = affinity::pools(port, context.family);
    if own.pools.is_empty() {
        return;
    }
    own.chains.push(affinity::remember_rules(port));
    let entries: BTreeSet<(Scope, Route)> =
        port.frontends.iter().map(|frontend| (Scope::of(frontend), frontend.route)).collect();
    let mut pools: BTreeSet<(Scope, PoolKind)> = BTreeSet::new();
    for (scope, route) in entries {
        match route {
            Route::Pool { pool, .. } => _ = pools.insert((scope, pool)),
            Route::ExternalLocal => {
                pools.insert((scope, PoolKind::Cluster));
                if !port.local.is_empty() {
                    pools.insert((scope, PoolKind::Local));
                }
            }
            Route::Reject | Route::Drop => {}
        }
        if let Some(entry) = entry_chain(name, scope, route)
            && let Some(rules) = entry_rules(port, scope, route, &base, context)
        {
            own.chains.push(ChainRules::new(entry, rules));
        }
    }
    for (scope, kind) in pools {
        let draw = SharedChain::draw(scope, kind, port.pool(kind)).name();
        let rules = affinity::pool_rules(name, kind, draw);
        own.chains.push(ChainRules::new(pool_chain(&base, scope, kind), rules));
    }
}

/// The rules of an entry chain; `None` if the entry chain is the chain of a pool.
fn entry_rules(
    port: &ResolvedServicePort,
    scope: Scope,
    route: Route,
    base: &str,
    context: &Context<'_>,
) -> Option<Vec<Rule>> {
    let go = |pool| Statement::Verdict(Verdict::Goto(pool_chain(base, scope, pool)));
    let mark = Statement::MarkOr(context.mark);
    match route {
        Route::Pool { masquerade: Masquerade::Never, .. } | Route::Reject | Route::Drop => None,
        Route::Pool { pool, masquerade: Masquerade::Always } => {
            Some(vec![Rule::new([mark, go(pool)])])
        }
        Route::Pool { pool, masquerade: Masquerade::ExceptLocalPods } => {
            let non_local = context.local_pod_match(false);
            let marking = non_local.map(|non_local| Rule::new([non_local, mark]));
            Some(marking.into_iter().chain([Rule::new([go(pool)])]).collect())
        }
        Route::ExternalLocal => {
            let local_pods = context.local_pod_match(true);
            let local = local_pods.map(|local| Rule::new([local, go(PoolKind::Cluster)]));
            let node = Rule::new([Statement::FibLocal(Side::Source), mark, go(PoolKind::Cluster)]);
            let outside = (!port.local.is_empty()).then(|| Rule::new([go(PoolKind::Local)]));
            Some(local.into_iter().chain([node]).chain(outside).collect())
        }
    }
}
