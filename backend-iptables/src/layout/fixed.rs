//! The chains that are always there, and the jumps that lead to them.

use std::collections::{BTreeMap, HashMap};

use proxy_core::{
    model::{IpFamily, Protocol, ServiceName},
    state::{HealthCheck, NodePortAddresses},
};

use super::{Chain, Context, SharedChain, Table, names::chain, text::RuleText};

/// A rule of a built-in chain that leads to one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    pub(crate) table: Table,
    /// The built-in chain.
    pub(crate) from: &'static str,
    /// Our chain. No two jumps from one chain lead to the same.
    pub(crate) to: &'static str,
    pub(crate) rule: String,
}

/// The jumps, in the order in which they are inserted at the head of their chains: later ones come
/// to stand above.
pub(crate) fn jumps() -> Vec<Jump> {
    let mut jumps = Vec::new();
    let mut add = |table, from: &[&'static str], to, is_new, comment: &str| {
        for from in from {
            let rule = match is_new {
                true => RuleText::new().ct_state("NEW"),
                false => RuleText::new(),
            };
            jumps.push(Jump { table, from, to, rule: rule.comment(comment).jump(to) });
        }
    };
    let (filter, nat) = (Table::Filter, Table::Nat);
    let external = "kubernetes externally-visible service portals";
    add(filter, &["INPUT", "FORWARD"], chain::EXTERNAL_SERVICES, true, external);
    let health = "kubernetes health check service ports";
    add(filter, &["INPUT"], chain::NODE_PORTS, false, health);
    let portals = "kubernetes service portals";
    add(filter, &["FORWARD", "OUTPUT"], chain::SERVICES, true, portals);
    add(filter, &["FORWARD"], chain::FORWARD, false, "kubernetes forwarding rules");
    let firewall = "kubernetes load balancer firewall";
    add(filter, &["INPUT", "OUTPUT", "FORWARD"], chain::PROXY_FIREWALL, true, firewall);
    add(nat, &["OUTPUT", "PREROUTING"], chain::SERVICES, false, portals);
    add(nat, &["POSTROUTING"], chain::POSTROUTING, false, "kubernetes postrouting rules");
    jumps
}

/// The jumps to the chain that is the kubelet's as well.
pub(crate) fn firewall_jumps() -> Vec<Jump> {
    let jump = |from| Jump {
        table: Table::Filter,
        from,
        to: chain::FIREWALL,
        rule: RuleText::new().jump(chain::FIREWALL),
    };
    vec![jump("INPUT"), jump("OUTPUT")]
}

/// The rule of [`chain::FIREWALL`] that keeps others from reaching loopback addresses, which
/// `route_localnet` would let them; `None` where nothing needs it.
pub(crate) fn firewall_rule(context: &Context<'_>) -> Option<String> {
    let net = context.loopback();
    context.serves_localhost().then(|| {
        RuleText::new()
            .matching(&format!("! -s {net} -d {net}"))
            .comment("block incoming localnet connections")
            .matching("-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT")
            .jump("DROP")
    })
}

/// The chains that are the same whatever Services there are.
pub(crate) fn chains(context: &Context<'_>) -> Vec<(Table, Chain)> {
    let chain = |name: &str, rules| Chain { name: name.to_owned(), rules };
    let canary = || chain(chain::CANARY, Vec::new());
    vec![
        (Table::Mangle, canary()),
        (Table::Filter, canary()),
        (Table::Filter, chain(chain::FORWARD, forward(context))),
        (Table::Nat, canary()),
        (Table::Nat, chain(chain::MARK_MASQ, mark(context))),
        (Table::Nat, chain(chain::POSTROUTING, postrouting(context))),
    ]
}

fn mark(context: &Context<'_>) -> Vec<String> {
    let mark = context.settings.mark;
    vec![RuleText::new().jump(&format!("MARK --set-xmark {mark:#x}/{mark:#x}"))]
}

fn postrouting(context: &Context<'_>) -> Vec<String> {
    let mark = context.settings.mark;
    vec![
        RuleText::new().matching(&format!("-m mark ! --mark {mark:#x}/{mark:#x}")).jump("RETURN"),
        // The packet may pass here again, encapsulated; it is not to be masqueraded twice.
        RuleText::new().jump(&format!("MARK --set-xmark {mark:#x}/0x0")),
        RuleText::new()
            .comment("kubernetes service traffic requiring SNAT")
            .jump("MASQUERADE --random-fully"),
    ]
}

fn forward(context: &Context<'_>) -> Vec<String> {
    let mark = context.settings.mark;
    let mut rules = Vec::new();
    if context.settings.drops_invalid {
        // Such packets are not translated, and would end connections whose two ends they confuse.
        rules.push(RuleText::new().ct_state("INVALID").jump("DROP"));
    }
    rules.push(
        RuleText::new()
            .comment("kubernetes forwarding rules")
            .matching(&format!("-m mark --mark {mark:#x}/{mark:#x}"))
            .jump("ACCEPT"),
    );
    rules.push(
        RuleText::new()
            .comment("kubernetes forwarding conntrack rule")
            .ct_state("RELATED,ESTABLISHED")
            .jump("ACCEPT"),
    );
    rules
}

/// The rules at the end of a shared chain, behind those of all Service ports.
pub(crate) fn tail(shared: SharedChain, context: &Context<'_>) -> Vec<String> {
    if shared != SharedChain::NatServices {
        return Vec::new();
    }
    const COMMENT: &str =
        "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    match context.node.node_ports.of(context.family) {
        NodePortAddresses::AllLocal => {
            let rule = match context.serves_localhost() {
                true => RuleText::new(),
                false => RuleText::new().destination_not(context.loopback()),
            };
            vec![rule.comment(COMMENT).at_node().jump(chain::NODE_PORTS)]
        }
        NodePortAddresses::Only(ips) => ips
            .iter()
            .filter(|ip| IpFamily::of(ip) == context.family)
            .map(|ip| RuleText::new().destination(*ip).comment(COMMENT).jump(chain::NODE_PORTS))
            .collect(),
    }
}

/// The rules that let load balancers ask for the health of Services, one for each port.
pub(crate) fn health_checks(
    checks: &HashMap<ServiceName, HealthCheck>,
    family: IpFamily,
) -> Vec<String> {
    let of_family = checks.iter().filter(|(_, check)| check.local_endpoints.of(family).is_some());
    let by_port: BTreeMap<u16, &ServiceName> =
        of_family.map(|(name, check)| (check.port, name)).collect();
    let rule = |(port, name): (u16, &ServiceName)| {
        RuleText::new()
            .protocol(Protocol::Tcp)
            .comment(&format!("{name} health check node port"))
            .port(Protocol::Tcp, port)
            .jump("ACCEPT")
    };
    by_port.into_iter().map(rule).collect()
}
