//! The chains that are always there, and the jumps that lead to them.

use std::collections::{BTreeMap, HashMap};

use switchyard_core::{
    model::{IpFamily, Protocol, ServiceName},
    state::{HealthCheck, NodePortAddresses},
};
use switchyard_xtables::{Chain, Jump, OwnedChains, RuleText, Table, service_rules};

use super::{
    Context, SharedChain,
    names::{self, chain},
};

/// Returns all chains that the backend or kube-proxy makes, and the jumps to them, but for the chain
/// KUBE-FIREWALL. It is the kubelet's as well, and protects what listens on loopback addresses as
/// long as `route_localnet` is on, which nothing switches off. kube-proxy leaves it, too.
pub(crate) fn owned() -> OwnedChains {
    let filter = [
        chain::SERVICES,
        chain::EXTERNAL_SERVICES,
        chain::NODE_PORTS,
        chain::FORWARD,
        chain::PROXY_FIREWALL,
    ];
    let nat = [chain::SERVICES, chain::NODE_PORTS, chain::MARK_MASQ, chain::POSTROUTING];
    let canaries = Table::ALL.map(|table| (table, chain::CANARY));
    let filter = filter.map(|name| (Table::Filter, name));
    let nat = nat.map(|name| (Table::Nat, name));
    OwnedChains {
        names: canaries.into_iter().chain(filter).chain(nat).collect(),
        prefixes: names::PREFIXES.map(|prefix| (Table::Nat, prefix)).into(),
        jumps: jumps(),
    }
}

/// Returns the jumps, in the order in which they are inserted at the head of their chains: later
/// jumps end up above earlier ones.
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

/// Returns the jumps to the chain that is the kubelet's as well.
pub(crate) fn firewall_jumps() -> Vec<Jump> {
    let jump = |from| Jump {
        table: Table::Filter,
        from,
        to: chain::FIREWALL,
        rule: RuleText::new().jump(chain::FIREWALL),
    };
    vec![jump("INPUT"), jump("OUTPUT")]
}

/// Returns the rule of [`chain::FIREWALL`] that keeps other hosts from loopback addresses, which
/// `route_localnet` opens to them; `None` if node ports are not served there.
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

/// Returns the chains that do not depend on Services.
pub(crate) fn chains(context: &Context<'_>) -> Vec<(Table, Chain)> {
    let chain = |name: &str, rules| Chain { name: name.to_owned(), rules };
    let canary = || chain(chain::CANARY, Vec::new());
    vec![
        (Table::Mangle, canary()),
        (Table::Filter, canary()),
        (Table::Filter, chain(chain::FORWARD, forward(context))),
        (Table::Nat, canary()),
        (Table::Nat, chain(chain::MARK_MASQ, service_rules::mark(context.settings.mark))),
        (Table::Nat, chain(chain::POSTROUTING, service_rules::postrouting(context.settings.mark))),
    ]
}

fn forward(context: &Context<'_>) -> Vec<String> {
    let mut rules = Vec::new();
    if context.settings.drops_invalid {
        // Such packets are not translated, and can break the connection that they belong to.
        rules.push(RuleText::new().ct_state("INVALID").jump("DROP"));
    }
    rules.extend(service_rules::forward(context.settings.mark));
    rules
}

/// Returns the rules at the end of a shared chain, behind the rules of all Service ports.
pub(crate) fn tail(shared: SharedChain, context: &Context<'_>) -> Vec<String> {
    if shared != SharedChain::NatServices {
        return Vec::new();
    }
    const COMMENT: &str =
        "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    match context.node.node_ports.get(context.family) {
        all @ (NodePortAddresses::AllLocal | NodePortAddresses::AllWithLoopback) => {
            let rule = match all.has_loopback() {
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

/// Returns the rules that let health checks of Services pass, one for each port.
pub(crate) fn health_checks(
    checks: &HashMap<ServiceName, HealthCheck>,
    family: IpFamily,
) -> Vec<String> {
    let of_family = checks.iter().filter(|(_, check)| check.local_endpoints.get(family).is_some());
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
