//! Chains and sets of single Service ports: of those with ClientIP affinity, which must remember
//! clients for each endpoint, and of those with source ranges. Names and shapes are upstream's, so
//! that a take-over in either direction keeps clients at their endpoints.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use switchyard_core::{
    model::ServicePortName,
    state::{Frontend, Masquerade, Pool, PoolKind, ResolvedServicePort, Route},
};

use super::{ChainRules, Context, names};
use crate::ruleset::{ChainName, Rule, Selector, SetDef, SetName, Side, Statement, Verdict};

/// The largest number of endpoints for which ClientIP affinity is programmed. Each endpoint takes a
/// chain and a set, and the kernel's commit time grows with the square of their number: 0.1 s for
/// 1,000, 10 s for 10,000. All other Services would wait for such a commit.
const LARGEST_AFFINITY_POOL: usize = 2_000;

/// The reason why a Service port is served without the affinity that its Service asks for; `None` if
/// there is no such difference.
pub(crate) fn affinity_problem(port: &ResolvedServicePort) -> Option<String> {
    (port.affinity.is_some() && affinity(port).is_none()).then(|| {
        format!(
            "it has more than {LARGEST_AFFINITY_POOL} endpoints: served without ClientIP affinity"
        )
    })
}

/// The time for which clients are remembered; `None` without affinity, and for too many endpoints.
pub(crate) fn affinity(port: &ResolvedServicePort) -> Option<Duration> {
    let largest = port.cluster.len().max(port.local.len());
    port.affinity.filter(|_| largest <= LARGEST_AFFINITY_POOL)
}

/// The chains and sets of a single Service port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OwnObjects {
    pub(crate) chains: Vec<ChainRules>,
    pub(crate) sets: Vec<Arc<SetDef>>,
}

/// The name of the chain that drops packets that the source ranges do not allow.
pub(crate) fn firewall_chain(name: &ServicePortName) -> ChainName {
    format!("firewall-{}", names::service_port_base(name)).into()
}

/// The name of the chain that a frontend of a Service port with affinity leads to; `None` for a
/// frontend without endpoints.
pub(crate) fn entry_chain(name: &ServicePortName, route: Route) -> Option<ChainName> {
    let base = names::service_port_base(name);
    Some(match route {
        Route::Pool { pool, masquerade: Masquerade::Never } => pool_chain(&base, pool),
        // Only cluster IPs lead to this chain, and all of them with the same masquerading.
        Route::Pool { pool: PoolKind::Local, .. } => format!("internal-local-{base}").into(),
        Route::Pool { masquerade: Masquerade::Always, .. } => format!("external-{base}").into(),
        Route::Pool { .. } => format!("internal-{base}").into(),
        Route::ExternalLocal => format!("external-local-{base}").into(),
        Route::Reject | Route::Drop => return None,
    })
}

fn pool_chain(base: &str, pool: PoolKind) -> ChainName {
    match pool {
        PoolKind::Cluster => format!("service-{base}").into(),
        PoolKind::Local => format!("local-{base}").into(),
    }
}

/// The chains and sets of `port` alone.
pub(crate) fn objects(port: &ResolvedServicePort, context: &Context<'_>) -> OwnObjects {
    let mut own = OwnObjects::default();
    if let Some(ranges) = port.frontends.iter().find_map(|f| f.allowed_sources.as_ref()) {
        let allow = |&net| {
            Rule::new([
                Statement::Address { side: Side::Source, negated: false, net },
                Statement::Verdict(Verdict::Return),
            ])
        };
        let deny = Rule::new([Statement::Verdict(Verdict::Drop)]);
        own.chains.push(ChainRules::new(
            firewall_chain(&port.id.name),
            ranges.iter().map(allow).chain([deny]).collect(),
        ));
    }
    if let Some(timeout) = affinity(port) {
        affinity_objects(port, timeout, context, &mut own);
    }
    own
}

fn affinity_objects(
    port: &ResolvedServicePort,
    timeout: Duration,
    context: &Context<'_>,
    own: &mut OwnObjects,
) {
    let name = &port.id.name;
    let base = names::service_port_base(name);
    for endpoint in port.reachable() {
        let remembered = affinity_set(name, &endpoint.address);
        own.sets.push(Arc::new(SetDef::dynamic_set(
            remembered.clone(),
            [context.family.address_field()],
            timeout,
        )));
        own.chains.push(ChainRules::new(
            endpoint_chain(name, &endpoint.address),
            vec![
                Rule::new([Statement::UpdateSet { side: Side::Source, set: remembered }]),
                Rule::new([
                    Statement::Protocol(name.protocol),
                    Statement::Dnat {
                        address: endpoint.address.ip(),
                        port: endpoint.address.port(),
                    },
                ]),
            ],
        ));
    }
    for kind in [PoolKind::Cluster, PoolKind::Local] {
        let pool = port.pool(kind);
        if !pool.is_empty() {
            own.chains.push(ChainRules::new(pool_chain(&base, kind), balance(name, pool)));
        }
    }
    let mut routes: Vec<&Frontend> = port.frontends.iter().collect();
    routes.sort_unstable_by_key(|frontend| frontend.route);
    routes.dedup_by_key(|frontend| frontend.route);
    for frontend in routes {
        if let Some(entry) = entry_chain(name, frontend.route)
            && let Some(rules) = entry_rules(port, frontend.route, &base, context)
        {
            own.chains.push(ChainRules::new(entry, rules));
        }
    }
}

/// The rules that send a remembered client back to its endpoint, and other clients to any endpoint.
fn balance(name: &ServicePortName, pool: &Pool) -> Vec<Rule> {
    let chain = |address: &SocketAddr| Verdict::Goto(endpoint_chain(name, address));
    let remembered = |endpoint: &switchyard_core::state::Endpoint| {
        Rule::new([
            Statement::Lookup {
                key: vec![Selector::SourceAddress],
                set: affinity_set(name, &endpoint.address),
            },
            Statement::Verdict(chain(&endpoint.address)),
        ])
    };
    let any = pool.iter().map(|endpoint| chain(&endpoint.address)).collect();
    // While these rules are replaced, a packet may still follow them after the elements of their map
    // were deleted.
    let otherwise = pool.first().map(|first| {
        Rule::new([Statement::Verdict(chain(&first.address))])
            .with_comment("reached only while this chain is replaced")
    });
    pool.iter()
        .map(remembered)
        .chain([Rule::new([Statement::RandomVerdict(any)])])
        .chain(otherwise)
        .collect()
}

/// The rules of an entry chain; `None` if the entry chain is the chain of a pool.
fn entry_rules(
    port: &ResolvedServicePort,
    route: Route,
    base: &str,
    context: &Context<'_>,
) -> Option<Vec<Rule>> {
    let go = |pool| Statement::Verdict(Verdict::Goto(pool_chain(base, pool)));
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

fn affinity_set(name: &ServicePortName, endpoint: &SocketAddr) -> SetName {
    format!("affinity-{}", names::endpoint_base(name, endpoint)).into()
}

fn endpoint_chain(name: &ServicePortName, endpoint: &SocketAddr) -> ChainName {
    format!("endpoint-{}", names::endpoint_base(name, endpoint)).into()
}
