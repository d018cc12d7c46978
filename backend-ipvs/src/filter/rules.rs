//! The chains of ipvs mode with their rules, and the jumps to them, under kube-proxy's names.
//!
//! Sets hold everything that there is much of, so the rules do not depend on Services, but for a few
//! [`Exceptions`](crate::layout::exceptions).
//!
//! kube-proxy in ipvs mode, which takes over a node, writes its own rules into the chains with its own
//! names. The chains that only this backend has are then unreachable, and do no harm.

use switchyard_core::{
    model::{IpFamily, Protocol},
    state::LocalPods,
};
use switchyard_xtables::{Chain, Dump, Jump, OwnedChains, RuleText, Table, service_rules, target};

use super::RuleInputs;
use crate::{layout::exceptions::Limit, sets::Set};

const SERVICES: &str = "KUBE-SERVICES";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const FORWARD: &str = "KUBE-FORWARD";
const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const FILTER: &str = "KUBE-IPVS-FILTER";
const OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";
/// Finds the clients on this node among those of frontends where they have another pool.
const ON_NODE: &str = "SWITCHYARD-ON-NODE";
/// Leads these clients to that pool.
const DETOURS: &str = "SWITCHYARD-DETOURS";

/// The chains that iptables mode has, too, under the same names.
pub(crate) const SHARED_WITH_IPTABLES: [(Table, &str); 5] = [
    (Table::Nat, SERVICES),
    (Table::Nat, POSTROUTING),
    (Table::Nat, MARK_MASQ),
    (Table::Filter, FORWARD),
    (Table::Filter, PROXY_FIREWALL),
];

/// The chains that only ipvs mode has.
const OWN: [(Table, &str); 8] = [
    (Table::Nat, LOAD_BALANCER),
    (Table::Nat, NODE_PORT),
    (Table::Nat, ON_NODE),
    (Table::Nat, DETOURS),
    (Table::Filter, NODE_PORT),
    (Table::Filter, SOURCE_RANGES),
    (Table::Filter, FILTER),
    (Table::Filter, OUT_FILTER),
];

/// The built-in chains that have jumps, or have them in iptables mode.
pub(crate) const BUILT_IN: [(Table, &str); 6] = [
    (Table::Nat, "OUTPUT"),
    (Table::Nat, "PREROUTING"),
    (Table::Nat, "POSTROUTING"),
    (Table::Filter, "FORWARD"),
    (Table::Filter, "INPUT"),
    (Table::Filter, "OUTPUT"),
];

/// The beginnings of the names of chains that only iptables mode has, and that translate.
const OF_IPTABLES_MODE: [&str; 5] =
    ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-NODEPORTS"];

/// Whether the rules of iptables mode, kube-proxy's or Switchyard's, are in effect.
pub(crate) fn serve_iptables_mode(dump: &Dump) -> bool {
    let translates = |rule: &String| {
        target(rule)
            .is_some_and(|to| OF_IPTABLES_MODE.iter().any(|beginning| to.starts_with(beginning)))
    };
    dump.chain(Table::Nat, SERVICES).unwrap_or_default().iter().any(translates)
}

/// Returns all chains of ipvs mode, and the jumps to them.
pub(crate) fn owned() -> OwnedChains {
    OwnedChains {
        names: [&SHARED_WITH_IPTABLES[..], &OWN].concat(),
        prefixes: Vec::new(),
        jumps: jumps(),
    }
}

/// Returns the jumps, in the order in which they are inserted at the head of their chains.
pub(crate) fn jumps() -> Vec<Jump> {
    let portals = "kubernetes service portals";
    let firewall = "kube-proxy firewall rules";
    let access = "kubernetes ipvs access filter";
    [
        (Table::Nat, "OUTPUT", SERVICES, portals),
        (Table::Nat, "PREROUTING", SERVICES, portals),
        (Table::Nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
        (Table::Filter, "FORWARD", FORWARD, "kubernetes forwarding rules"),
        (Table::Filter, "INPUT", NODE_PORT, "kubernetes health check rules"),
        (Table::Filter, "INPUT", PROXY_FIREWALL, firewall),
        (Table::Filter, "FORWARD", PROXY_FIREWALL, firewall),
        (Table::Filter, "INPUT", FILTER, access),
        (Table::Filter, "OUTPUT", OUT_FILTER, access),
    ]
    .map(|(table, from, to, comment)| Jump {
        table,
        from,
        to,
        rule: RuleText::new().comment(comment).jump(to),
    })
    .into()
}

/// Returns all chains of a family.
pub(crate) fn chains(inputs: &RuleInputs<'_>) -> Vec<(Table, Chain)> {
    let mark = inputs.mark;
    [
        (Table::Nat, SERVICES, services(inputs)),
        (Table::Nat, LOAD_BALANCER, load_balancer(inputs)),
        (Table::Nat, NODE_PORT, node_ports(inputs)),
        (Table::Nat, MARK_MASQ, service_rules::mark(mark)),
        (Table::Nat, POSTROUTING, postrouting(inputs)),
        (Table::Filter, FORWARD, service_rules::forward(mark)),
        (Table::Filter, NODE_PORT, health_checks(inputs)),
        (Table::Filter, PROXY_FIREWALL, firewall(inputs)),
        (Table::Filter, SOURCE_RANGES, source_ranges(inputs)),
        (Table::Filter, FILTER, access(inputs)),
    ]
    .map(|(table, name, rules)| (table, Chain { name: name.to_owned(), rules }))
    .into_iter()
    .chain(exceptions(inputs))
    .collect()
}

/// Returns the chains that depend on Services.
pub(crate) fn exceptions(inputs: &RuleInputs<'_>) -> [(Table, Chain); 3] {
    [
        (Table::Nat, ON_NODE, on_node(inputs)),
        (Table::Nat, DETOURS, detours(inputs)),
        (Table::Filter, OUT_FILTER, out_filter(inputs)),
    ]
    .map(|(table, name, rules)| (table, Chain { name: name.to_owned(), rules }))
}

/// Returns the rules that Service ports need.
pub(crate) fn of_services(inputs: &RuleInputs<'_>) -> Vec<String> {
    [detours(inputs), out_filter(inputs)].concat()
}

impl RuleInputs<'_> {
    /// Returns a rule that matches packets whose destination is in a set.
    fn to(&self, set: Set) -> RuleText {
        self.and_to(RuleText::new(), set)
    }

    fn and_to(&self, rule: RuleText, set: Set) -> RuleText {
        rule.matching(&format!("-m set --match-set {} {}", set.name(self.family), directions(set)))
    }

    /// Returns a rule that matches packets from outside the source ranges of their destination.
    fn outside_sources(&self, rule: RuleText) -> RuleText {
        let sources = Set::LoadBalancerSources;
        self.and_to(rule, Set::LoadBalancerFirewall).matching(&format!(
            "-m set ! --match-set {} {}",
            sources.name(self.family),
            directions(sources)
        ))
    }

    fn local_pods(&self) -> Option<&LocalPods> {
        self.node.local_pods.get(self.family).as_ref()
    }

    fn loopback(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => "127.0.0.0/8",
            IpFamily::V6 => "::1/128",
        }
    }
}

/// The fields of a packet to a Service that the fields of an entry are compared with.
fn directions(set: Set) -> &'static str {
    match set {
        Set::LoopBack | Set::LoadBalancerSources => "dst,dst,src",
        Set::Bound => "dst",
        set if !set.has_addresses() => "dst",
        _ => "dst,dst",
    }
}

fn services(inputs: &RuleInputs<'_>) -> Vec<String> {
    let mut rules =
        vec![RuleText::new().matching(&format!("-s {}", inputs.loopback())).jump("RETURN")];
    for set in [Set::LoadBalancerLocal, Set::ExternalIpLocal] {
        rules.push(inputs.to(set).jump(ON_NODE));
    }
    rules.push(inputs.to(Set::LoadBalancer).jump(LOAD_BALANCER));
    let to_cluster_ip = |rule| inputs.and_to(rule, Set::ClusterIp);
    if let Some(pods) = inputs.local_pods() {
        rules.push(to_cluster_ip(RuleText::new().not_sent_by_local_pod(pods)).jump(MARK_MASQ));
    } else {
        // The address of a Service is an address of every node, so that no answer would come back to it.
        let from_service = format!("-m set --match-set {} src", Set::Bound.name(inputs.family));
        rules.push(to_cluster_ip(RuleText::new()).matching(&from_service).jump(MARK_MASQ));
    }
    rules.push(inputs.to(Set::ExternalIp).jump(MARK_MASQ));
    for ip in inputs.node_addresses() {
        rules.push(RuleText::new().destination(ip).jump(NODE_PORT));
    }
    // Keeps other programs' rules for addresses of the node, such as those of host ports, from
    // translating traffic of Services.
    for set in [Set::ClusterIp, Set::LoadBalancer, Set::ExternalIp, Set::ExternalIpLocal] {
        rules.push(inputs.to(set).jump("ACCEPT"));
    }
    rules
}

fn load_balancer(inputs: &RuleInputs<'_>) -> Vec<String> {
    vec![inputs.to(Set::LoadBalancerLocal).jump("RETURN"), RuleText::new().jump(MARK_MASQ)]
}

fn node_ports(inputs: &RuleInputs<'_>) -> Vec<String> {
    let of_protocol = |protocol| {
        let to = |set| inputs.and_to(RuleText::new().protocol(protocol), set);
        [
            to(Set::NodePortLocal(protocol)).jump(ON_NODE),
            to(Set::NodePortLocal(protocol)).jump("RETURN"),
            to(Set::NodePort(protocol)).jump(MARK_MASQ),
        ]
    };
    Protocol::ALL.into_iter().flat_map(of_protocol).collect()
}

fn postrouting(inputs: &RuleInputs<'_>) -> Vec<String> {
    let hairpin = RuleText::new().comment("hairpin connections of endpoints on this node");
    let mut rules = vec![inputs.and_to(hairpin, Set::LoopBack).jump("MASQUERADE")];
    rules.extend(service_rules::postrouting(inputs.mark));
    rules
}

fn health_checks(inputs: &RuleInputs<'_>) -> Vec<String> {
    let rule = RuleText::new().protocol(Protocol::Tcp).comment("kubernetes health check node port");
    vec![inputs.and_to(rule, Set::HealthCheck).jump("ACCEPT")]
}

fn firewall(inputs: &RuleInputs<'_>) -> Vec<String> {
    let new = RuleText::new().ct_state("NEW");
    vec![inputs.and_to(new, Set::LoadBalancerFirewall).jump(SOURCE_RANGES)]
}

fn source_ranges(inputs: &RuleInputs<'_>) -> Vec<String> {
    vec![inputs.to(Set::LoadBalancerSources).jump("RETURN"), RuleText::new().jump("DROP")]
}

/// Keeps new connections to addresses of Services from everything but Services.
fn access(inputs: &RuleInputs<'_>) -> Vec<String> {
    let new = || RuleText::new().ct_state("NEW");
    let reject = match inputs.family {
        IpFamily::V4 => "REJECT --reject-with icmp-port-unreachable",
        IpFamily::V6 => "REJECT --reject-with icmp6-port-unreachable",
    };
    let served = [Set::LoadBalancer, Set::ClusterIp, Set::ExternalIp, Set::ExternalIpLocal];
    // Before the sets of what is served: a load balancer IP without endpoints on this node is in both.
    let not_allowed = inputs.outside_sources(new()).jump("DROP");
    let mut rules = vec![not_allowed, inputs.and_to(new(), Set::Silent).jump("DROP")];
    rules.extend(served.map(|set| inputs.to(set).jump("RETURN")));
    let health = RuleText::new().protocol(Protocol::Tcp);
    rules.push(inputs.and_to(health, Set::HealthCheck).jump("RETURN"));
    rules.push(inputs.and_to(new(), Set::Bound).jump(reject));
    rules
}

fn on_node(inputs: &RuleInputs<'_>) -> Vec<String> {
    let mut rules = vec![
        inputs.outside_sources(RuleText::new()).jump("RETURN"),
        RuleText::new().sent_by_node().jump(MARK_MASQ),
        RuleText::new().sent_by_node().jump(DETOURS),
    ];
    rules.extend(
        inputs.local_pods().map(|pods| RuleText::new().sent_by_local_pod(pods).jump(DETOURS)),
    );
    rules
}

fn detours(inputs: &RuleInputs<'_>) -> Vec<String> {
    let mut rules = Vec::new();
    for detour in &inputs.exceptions.detours {
        let protocol = detour.name.protocol;
        let mut left: u64 = detour.targets.iter().map(|(_, weight)| u64::from(*weight)).sum();
        for (i, (target, weight)) in detour.targets.iter().enumerate() {
            let rule = match detour.ip {
                Some(ip) => RuleText::new().destination(ip),
                None => RuleText::new(),
            };
            let comment = format!("{} from this node", detour.name);
            let rule = rule.protocol(protocol).comment(&comment).port(protocol, detour.port);
            let rule = match i + 1 == detour.targets.len() {
                true => rule,
                false => rule.share((*weight).into(), left),
            };
            rules.push(rule.translate(*target));
            left -= u64::from(*weight);
        }
    }
    rules
}

/// Limits the node's own connections, which IPVS has translated when the filter table sees them. Those of
/// other hosts, which IPVS sends on, pass here, too.
fn out_filter(inputs: &RuleInputs<'_>) -> Vec<String> {
    let mut rules = Vec::new();
    for Limit { ip, protocol, port, sources } in &inputs.exceptions.limits {
        let connection =
            format!("-m conntrack --ctstate NEW --ctorigdst {ip} --ctorigdstport {port}");
        let at = |rule: RuleText| rule.protocol(*protocol).matching(&connection);
        for net in sources {
            rules.push(at(RuleText::new().source(*net)).jump("RETURN"));
        }
        rules.push(at(RuleText::new()).sent_by_node().jump("DROP"));
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_leads_to_an_owned_chain() {
        let all = owned();
        assert!(all.jumps.iter().all(|jump| all.contains(jump.table, jump.to)));
        let own = all.without(&SHARED_WITH_IPTABLES);
        assert_eq!(own.names, OWN);
        let from: Vec<_> = own.jumps.iter().map(|jump| (jump.from, jump.to)).collect();
        assert_eq!(from, [("INPUT", NODE_PORT), ("INPUT", FILTER), ("OUTPUT", OUT_FILTER)]);
    }

    #[test]
    fn every_jump_is_in_a_chain_that_is_compared() {
        assert!(jumps().iter().all(|jump| BUILT_IN.contains(&(jump.table, jump.from))));
    }

    #[test]
    fn rules_of_iptables_mode_are_known() {
        let serve = |rules: &str| {
            let text = format!("*nat\n:KUBE-SERVICES - [0:0]\n{rules}\nCOMMIT\n");
            serve_iptables_mode(&Dump::parse(&text).unwrap())
        };
        assert!(serve("-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j KUBE-SVC-NPX46M4PTMTKRN6Y"));
        assert!(serve("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"));
        assert!(!serve("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT"));
        assert!(!serve("-A OTHERS -j KUBE-SVC-NPX46M4PTMTKRN6Y"));
    }
}
