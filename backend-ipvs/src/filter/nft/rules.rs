//! The chains of the table with their rules.
//!
//! They decide what the chains of [`rules`](crate::filter::rules) decide, but for what another table
//! cannot: to accept a packet that the host's own rules drop.

use std::collections::BTreeMap;

use ipnet::IpNet;
use switchyard_core::{
    model::{IpFamily, Protocol},
    state::LocalPods,
};
use switchyard_nft_ruleset::{
    BaseChain, ChainKind, ChainName, Hook, InterfaceMatch, Rule, Side, Statement, Verdict,
};

use super::{detours, layout};
use crate::{filter::RuleInputs, sets::Set};

const NAT_PREROUTING: &str = "nat-prerouting";
const NAT_OUTPUT: &str = "nat-output";
const NAT_POSTROUTING: &str = "nat-postrouting";
const FILTER_INPUT: &str = "filter-input";
const FILTER_FORWARD: &str = "filter-forward";
const FILTER_OUTPUT: &str = "filter-output";
const SERVICES: &str = "services";
const LOAD_BALANCER: &str = "load-balancer";
const NODE_PORTS: &str = "node-ports";
const ON_NODE: &str = "on-node";
const CLIENTS_ON_NODE: &str = "clients-on-node";
const ACCESS: &str = "access";
const SOURCE_RANGES: &str = "source-ranges";

/// Returns the chains that packets enter from a hook.
pub(super) fn base_chains() -> [BaseChain; 6] {
    use ChainKind::{Filter, Nat};
    [
        // Before other tables that translate, such as those for host ports.
        (NAT_PREROUTING, Nat, Hook::Prerouting, -101),
        (NAT_OUTPUT, Nat, Hook::Output, -101),
        (NAT_POSTROUTING, Nat, Hook::Postrouting, 100),
        (FILTER_INPUT, Filter, Hook::Input, 0),
        (FILTER_FORWARD, Filter, Hook::Forward, 0),
        // The node's own connections still have the address of the Service: detours translate it at -101,
        // IPVS at -99.
        (FILTER_OUTPUT, Filter, Hook::Output, -150),
    ]
    .map(|(name, kind, hook, priority)| BaseChain { name: name.into(), kind, hook, priority })
}

/// Returns the rules of all chains that do not depend on Services.
pub(super) fn chains(inputs: &RuleInputs<'_>) -> BTreeMap<ChainName, Vec<Rule>> {
    let to_services = || vec![rule([jump(SERVICES)])];
    [
        (NAT_PREROUTING, to_services()),
        (NAT_OUTPUT, to_services()),
        (NAT_POSTROUTING, postrouting(inputs)),
        (FILTER_INPUT, vec![limited(), rule([Statement::CtStateNew, jump(ACCESS)])]),
        (FILTER_FORWARD, vec![limited()]),
        (FILTER_OUTPUT, vec![limited()]),
        (SERVICES, services(inputs)),
        (LOAD_BALANCER, load_balancer(inputs)),
        (NODE_PORTS, node_ports(inputs)),
        (ON_NODE, on_node()),
        (CLIENTS_ON_NODE, clients_on_node(inputs)),
        (ACCESS, access()),
        (SOURCE_RANGES, source_ranges()),
    ]
    .map(|(name, rules)| (name.into(), rules))
    .into()
}

fn rule<const N: usize>(statements: [Statement; N]) -> Rule {
    Rule::new(statements)
}

/// Matches packets whose destination, and source if the set has sources, is in a set.
fn to(set: Set) -> Statement {
    Statement::Lookup { key: layout::selectors(set), set: layout::name(set).into() }
}

fn jump(chain: &str) -> Statement {
    Statement::Verdict(Verdict::Jump(chain.into()))
}

const RETURN: Statement = Statement::Verdict(Verdict::Return);
const DROP: Statement = Statement::Verdict(Verdict::Drop);

fn address(side: Side, net: IpNet) -> Statement {
    Statement::Address { side, negated: false, net }
}

/// Matches packets from pods of this node if `is_local`, otherwise all others.
fn local_pods(pods: &LocalPods, is_local: bool) -> Statement {
    let negated = !is_local;
    match pods {
        LocalPods::Source(net) => Statement::Address { side: Side::Source, negated, net: *net },
        LocalPods::Interface(name) => {
            Statement::InputInterface { negated, name: InterfaceMatch::Exact(name.as_str().into()) }
        }
        LocalPods::InterfacePrefix(prefix) => Statement::InputInterface {
            negated,
            name: InterfaceMatch::Prefix(prefix.as_str().into()),
        },
    }
}

fn services(inputs: &RuleInputs<'_>) -> Vec<Rule> {
    let mark = || Statement::MarkOr(inputs.mark);
    let mut rules = vec![rule([address(Side::Source, loopback(inputs.family)), RETURN])];
    for set in [Set::LoadBalancerLocal, Set::ExternalIpLocal] {
        rules.push(rule([to(set), jump(ON_NODE)]));
    }
    rules.push(rule([to(Set::LoadBalancer), jump(LOAD_BALANCER)]));
    rules.push(match inputs.node.local_pods.get(inputs.family) {
        Some(pods) => rule([local_pods(pods, false), to(Set::ClusterIp), mark()]),
        // The address of a Service is an address of every node, so that no answer would come back to it.
        None => {
            let key = vec![switchyard_nft_ruleset::Selector::SourceAddress];
            let from_service = Statement::Lookup { key, set: layout::name(Set::Bound).into() };
            rule([from_service, to(Set::ClusterIp), mark()])
        }
    });
    rules.push(rule([to(Set::ExternalIp), mark()]));
    for ip in inputs.node_addresses() {
        rules.push(rule([address(Side::Destination, ip.into()), jump(NODE_PORTS)]));
    }
    // Keeps other tables' rules for addresses of the node, such as those of host ports, from translating
    // traffic of Services.
    for set in [Set::ClusterIp, Set::LoadBalancer, Set::ExternalIp, Set::ExternalIpLocal] {
        rules.push(rule([to(set), Statement::DnatToItself]));
    }
    rules
}

fn loopback(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => IpNet::V4(ipnet::Ipv4Net::new_assert([127, 0, 0, 0].into(), 8)),
        IpFamily::V6 => IpNet::V6(std::net::Ipv6Addr::LOCALHOST.into()),
    }
}

fn load_balancer(inputs: &RuleInputs<'_>) -> Vec<Rule> {
    vec![rule([to(Set::LoadBalancerLocal), RETURN]), rule([Statement::MarkOr(inputs.mark)])]
}

fn node_ports(inputs: &RuleInputs<'_>) -> Vec<Rule> {
    // Node ports of TCP and of UDP are in one set.
    let of_protocol = |protocol| {
        [
            rule([to(Set::NodePortLocal(protocol)), jump(ON_NODE)]),
            rule([to(Set::NodePortLocal(protocol)), RETURN]),
            rule([to(Set::NodePort(protocol)), Statement::MarkOr(inputs.mark)]),
        ]
    };
    [Protocol::Tcp, Protocol::Sctp].into_iter().flat_map(of_protocol).collect()
}

fn postrouting(inputs: &RuleInputs<'_>) -> Vec<Rule> {
    let (is_marked, clear) = (Statement::MarkSet(inputs.mark), Statement::MarkXor(inputs.mark));
    vec![
        rule([to(Set::LoopBack), Statement::Masquerade])
            .with_comment("hairpin connections of endpoints on this node"),
        // Without the mark, as the packet may pass here again, encapsulated.
        rule([is_marked, clear, Statement::Masquerade]),
    ]
}

/// Limits new connections to source ranges.
fn limited() -> Rule {
    rule([Statement::CtStateNew, to(Set::LoadBalancerFirewall), jump(SOURCE_RANGES)])
}

fn source_ranges() -> Vec<Rule> {
    vec![rule([to(Set::LoadBalancerSources), RETURN]), rule([DROP])]
}

/// Keeps new connections to addresses of Services from everything but Services.
fn access() -> Vec<Rule> {
    // First, since a load balancer IP without endpoints on this node is in a set of what is served, too.
    let mut rules = vec![rule([to(Set::Silent), DROP])];
    for served in
        [Set::LoadBalancer, Set::ClusterIp, Set::ExternalIp, Set::ExternalIpLocal, Set::HealthCheck]
    {
        rules.push(rule([to(served), RETURN]));
    }
    rules.push(rule([to(Set::Bound), Statement::Reject]));
    rules
}

/// Finds the clients on this node, but for those that a frontend's source ranges do not allow.
fn on_node() -> Vec<Rule> {
    vec![
        rule([to(Set::LoadBalancerSources), jump(CLIENTS_ON_NODE)]),
        rule([to(Set::LoadBalancerFirewall), RETURN]),
        rule([jump(CLIENTS_ON_NODE)]),
    ]
}

/// Leads clients on this node to the other pool that they have.
fn clients_on_node(inputs: &RuleInputs<'_>) -> Vec<Rule> {
    let by_node = || Statement::FibLocal(Side::Source);
    let mut rules = vec![
        rule([by_node(), Statement::MarkOr(inputs.mark)]),
        rule([by_node(), detours::lookup()]),
    ];
    if let Some(pods) = inputs.node.local_pods.get(inputs.family) {
        rules.push(rule([local_pods(pods, true), detours::lookup()]));
    }
    rules
}
