//! The chains that are always there, and the jumps that lead to them.

use std::{collections::HashMap, net::IpAddr};

use switchyard_core::{
    model::{IpFamily, Protocol, ServiceName},
    state::{HealthCheck, NodePortAddresses},
};
use switchyard_kernel::xtables::{Chain, Jump, OwnedChains, RuleText, Table, service_rules};

use super::{
    Context, Settings, SharedChain,
    names::{ChainNames, FIREWALL},
};

/// Returns all chains that the backend or kube-proxy makes, and the jumps to them, but for the
/// chain KUBE-FIREWALL. It is the kubelet's as well, and protects what listens on loopback
/// addresses as long as `route_localnet` is on, which nothing switches off. kube-proxy leaves it,
/// too.
pub(crate) fn owned(names: &ChainNames) -> OwnedChains {
    let filter = [
        names.services,
        names.external_services,
        names.node_ports,
        names.forward,
        names.proxy_firewall,
        names.ipvs_filter,
        names.ipvs_others,
    ];
    let nat =
        [names.services, names.node_ports, names.mark_masq, names.postrouting, names.ipvs_hairpins];
    let canaries = Table::ALL.map(|table| (table, names.canary));
    let filter = filter.map(|name| (Table::Filter, name));
    let nat = nat.map(|name| (Table::Nat, name));
    OwnedChains {
        names: canaries.into_iter().chain(filter).chain(nat).collect(),
        prefixes: names.prefixes().into(),
        jumps: all_jumps(names, true, None),
    }
}

/// Returns the jumps, in the order in which they are inserted at the head of their chains: later
/// jumps end up above earlier ones.
pub(crate) fn jumps(settings: &Settings) -> Vec<Jump> {
    all_jumps(settings.names, settings.beneath_ipvs, settings.exempt_mark)
}

/// Returns the jumps that only the rules beneath ipvs mode have, unless these are such rules.
pub(crate) fn unwanted_jumps(settings: &Settings) -> Vec<Jump> {
    let wanted = jumps(settings);
    let is_wanted = |jump: &Jump| {
        wanted.iter().any(|wanted| {
            (wanted.table, wanted.from, &wanted.rule) == (jump.table, jump.from, &jump.rule)
        })
    };
    let mut jumps = all_jumps(settings.names, true, settings.exempt_mark);
    jumps.retain(|jump| !is_wanted(jump));
    jumps
}

fn all_jumps(names: &ChainNames, beneath_ipvs: bool, exempt_mark: Option<u32>) -> Vec<Jump> {
    let mut jumps = Vec::new();
    let mut add = |table, from: &[&'static str], to, is_new, comment: &str| {
        for from in from {
            let rule = match is_new {
                true => RuleText::new().ct_state("NEW"),
                false => RuleText::new(),
            };
            let rule = match exempt_mark {
                Some(mark) if *from == "OUTPUT" => {
                    rule.matching(&format!("-m mark ! --mark {mark:#x}/{mark:#x}"))
                }
                _ => rule,
            };
            jumps.push(Jump { table, from, to, rule: rule.comment(comment).jump(to) });
        }
    };
    let (filter, nat) = (Table::Filter, Table::Nat);
    let portals = "kubernetes service portals";
    if beneath_ipvs {
        add(filter, &["INPUT"], names.ipvs_filter, true, "kubernetes ipvs access filter");
        // The addresses of Services are the node's.
        add(filter, &["INPUT"], names.services, true, portals);
        add(nat, &["POSTROUTING"], names.ipvs_hairpins, false, "kubernetes ipvs hairpins");
    }
    let external = "kubernetes externally-visible service portals";
    add(filter, &["INPUT", "FORWARD"], names.external_services, true, external);
    let health = "kubernetes health check service ports";
    add(filter, &["INPUT"], names.node_ports, false, health);
    add(filter, &["FORWARD", "OUTPUT"], names.services, true, portals);
    add(filter, &["FORWARD"], names.forward, false, "kubernetes forwarding rules");
    let firewall = "kubernetes load balancer firewall";
    add(filter, &["INPUT", "OUTPUT", "FORWARD"], names.proxy_firewall, true, firewall);
    add(nat, &["OUTPUT", "PREROUTING"], names.services, false, portals);
    add(nat, &["POSTROUTING"], names.postrouting, false, "kubernetes postrouting rules");
    jumps
}

/// Returns the jumps to the chain that is the kubelet's as well.
pub(crate) fn firewall_jumps() -> Vec<Jump> {
    let jump = |from| Jump {
        table: Table::Filter,
        from,
        to: FIREWALL,
        rule: RuleText::new().jump(FIREWALL),
    };
    vec![jump("INPUT"), jump("OUTPUT")]
}

/// Returns the rule of [`FIREWALL`] that keeps other hosts from the loopback addresses `net`, which
/// `route_localnet` opens to them.
pub(crate) fn firewall_rule(net: &str) -> String {
    RuleText::new()
        .matching(&format!("! -s {net} -d {net}"))
        .comment("block incoming localnet connections")
        .matching("-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT")
        .jump("DROP")
}

/// Returns the chains that do not depend on Services.
pub(crate) fn chains(context: &Context<'_>) -> Vec<(Table, Chain)> {
    let names = context.settings.names;
    let chain = |name: &str, rules| Chain { name: name.to_owned(), rules };
    let canary = || chain(names.canary, Vec::new());
    vec![
        (Table::Mangle, canary()),
        (Table::Filter, canary()),
        (Table::Filter, chain(names.forward, forward(context))),
        (Table::Nat, canary()),
        (Table::Nat, chain(names.mark_masq, service_rules::mark(context.settings.mark))),
        (Table::Nat, chain(names.postrouting, service_rules::postrouting(context.settings.mark))),
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
    match shared {
        SharedChain::NatServices => {}
        SharedChain::FilterExternal => {
            let address = context.settings.only_translated.get(context.family);
            // Whose destination was not translated.
            let rule = |ip: &IpAddr| {
                RuleText::new()
                    .destination(*ip)
                    .matching("-m conntrack ! --ctstate DNAT")
                    .jump(context.reject())
            };
            return address.iter().map(rule).collect();
        }
        SharedChain::FilterDelivered => {
            return vec![RuleText::new().jump(context.settings.names.ipvs_others)];
        }
        _ => return Vec::new(),
    }
    const COMMENT: &str =
        "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    match context.node.node_ports.get(context.family) {
        all @ (NodePortAddresses::AllLocal | NodePortAddresses::AllWithLoopback) => {
            let rule = match all.has_loopback() {
                true => RuleText::new(),
                false => RuleText::new().destination_not(context.loopback()),
            };
            vec![rule.comment(COMMENT).at_node().jump(context.settings.names.node_ports)]
        }
        NodePortAddresses::Only(ips) => ips
            .iter()
            .filter(|ip| IpFamily::of(ip) == context.family)
            .map(|ip| {
                RuleText::new()
                    .destination(*ip)
                    .comment(COMMENT)
                    .jump(context.settings.names.node_ports)
            })
            .collect(),
    }
}

/// Returns the rules that let health checks of Services pass, one for each port, in the name of the
/// first Service that has it.
pub(crate) fn health_checks(
    checks: &HashMap<ServiceName, HealthCheck>,
    family: IpFamily,
) -> Vec<String> {
    let of_family = checks.iter().filter(|(_, check)| check.has_family(family));
    let mut by_port: Vec<_> = of_family.map(|(name, check)| (check.port, name)).collect();
    by_port.sort_unstable();
    by_port.dedup_by_key(|(port, _)| *port);
    let rule = |(port, name): (u16, &ServiceName)| {
        RuleText::new()
            .protocol(Protocol::Tcp)
            .comment(&format!("{name} health check node port"))
            .port(Protocol::Tcp, port)
            .jump("ACCEPT")
    };
    by_port.into_iter().map(rule).collect()
}
