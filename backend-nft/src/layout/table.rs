//! Objects that do not depend on Services: base chains, the chains that these lead to, sets and
//! maps.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, LazyLock},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use switchyard_core::{
    model::Protocol,
    state::{HealthCheck, NodePortAddresses},
};
use switchyard_kernel::nftables::{
    BaseChain, ChainKind, ChainName, Element, Family, Field, Hook, InterfaceMatch, Key, Rule,
    Selector, SetDef, Side, Statement, Table, TableDump, Transaction, Verdict,
};

use super::{
    ChainRules, Context, NftConfig,
    affinity::{self, AffinityMap},
    lb_chains::{EndpointMap, LbChain, Role, Scope},
    names::{chain, set, table_comment},
    slots::{Method, Selection},
};

/// The loopback addresses of IPv4 (RFC 1122).
const LOOPBACK_V4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);

/// The name, type, hook and priority of each base chain. These are upstream's, but for those chains
/// that translate destinations, which come before other programs': rules for host ports would take
/// traffic of Services at addresses of the node, and others mark connections by their destination.
/// Of two chains at one priority, the kernel has the younger one come first.
const BASE_CHAINS: [(&str, ChainKind, Hook, i32); 8] = [
    ("filter-prerouting-pre-dnat", ChainKind::Filter, Hook::Prerouting, -110),
    ("filter-output-pre-dnat", ChainKind::Filter, Hook::Output, -110),
    ("filter-input", ChainKind::Filter, Hook::Input, 0),
    ("filter-forward", ChainKind::Filter, Hook::Forward, 0),
    ("filter-output", ChainKind::Filter, Hook::Output, 0),
    ("nat-prerouting", ChainKind::Nat, Hook::Prerouting, -101),
    ("nat-output", ChainKind::Nat, Hook::Output, -101),
    ("nat-postrouting", ChainKind::Nat, Hook::Postrouting, 100),
];

/// The chain that sees what IPVS has left to the node: IPVS takes packets at the priorities 98 and
/// 99 (`ip_vs_ops4` in `net/netfilter/ipvs/ip_vs_core.c`).
const BEHIND_IPVS: (&str, ChainKind, Hook, i32) =
    ("filter-input-behind-ipvs", ChainKind::Filter, Hook::Input, 101);

/// The chain that sees what the node itself sends before IPVS takes it at the priority -99, and
/// after rules of this table translated it. Virtual servers outlive the last endpoint while there
/// are connections, and would refuse what is to be dropped.
const BEFORE_IPVS: (&str, ChainKind, Hook, i32) =
    ("filter-output-before-ipvs", ChainKind::Filter, Hook::Output, -100);

/// The chains that take the place of filter chains where rules lead to a proxy on the node, whose
/// packets would all pass those. Only the first packet of a connection enters a chain that
/// translates.
const OF_FIRST_PACKETS: [(&str, ChainKind, Hook, i32); 3] = [
    ("nat-output-pre-dnat", ChainKind::Nat, Hook::Output, -110),
    ("nat-input", ChainKind::Nat, Hook::Input, 0),
    ("nat-output-post-dnat", ChainKind::Nat, Hook::Output, 0),
];

fn by_name(name: &ChainName) -> Option<(ChainKind, Hook, i32)> {
    let all = BASE_CHAINS.into_iter().chain(OF_FIRST_PACKETS).chain([BEFORE_IPVS, BEHIND_IPVS]);
    let mut named = all.filter(|(base, ..)| *base == name.as_str());
    named.next().map(|(_, kind, hook, priority)| (kind, hook, priority))
}

pub(crate) fn base_chain(config: &NftConfig, name: &ChainName) -> Option<BaseChain> {
    let (kind, hook, priority) = by_name(name)?;
    // The other proxy would drop what is to be refused.
    let is_before = config.is_beside && kind == ChainKind::Filter && priority == 0;
    let priority = priority - i32::from(is_before);
    Some(BaseChain { name: name.clone(), kind, hook, priority })
}

/// The most slots of a cluster IP that a set has instead of `service-ips`.
const MOST_SLOTS_BY_SET: u32 = 8;

/// A set or map of all Services, which is there with or without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum TableSet {
    ClusterIps,
    ServiceIps,
    ServiceNodePorts,
    FirewallIps,
    NoEndpointServices,
    NoEndpointNodePorts,
    NodePortIps,
    HairpinConnections,
    /// Ports of health checks, where addresses of Services are the node's.
    HealthCheckPorts,
    /// Cluster IPs whose pools have this number of slots.
    ClusterIpsBySlots(u32),
    /// Frontends of Service ports with ClientIP affinity.
    Affinity(AffinityMap),
    /// Endpoints by slot.
    Endpoints(EndpointMap),
}

impl TableSet {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let single = [
            Self::ClusterIps,
            Self::ServiceIps,
            Self::ServiceNodePorts,
            Self::FirewallIps,
            Self::NoEndpointServices,
            Self::NoEndpointNodePorts,
            Self::NodePortIps,
            Self::HairpinConnections,
            Self::HealthCheckPorts,
        ];
        let by_slots = (1..=MOST_SLOTS_BY_SET).map(Self::ClusterIpsBySlots);
        let affinity = AffinityMap::all().map(Self::Affinity);
        let endpoints = EndpointMap::all().map(Self::Endpoints);
        single.into_iter().chain(by_slots).chain(affinity).chain(endpoints)
    }

    pub(crate) fn definition(self, family: Family) -> &'static Arc<SetDef> {
        static DEFINITIONS: LazyLock<[BTreeMap<TableSet, Arc<SetDef>>; 2]> = LazyLock::new(|| {
            let define = |family| move |set: TableSet| (set, Arc::new(set.define(family)));
            Family::ALL.map(|family| TableSet::all().map(define(family)).collect())
        });
        &DEFINITIONS[family as usize][&self]
    }

    /// The set that has a cluster IP which leads to this chain; `None` if `service-ips` has it.
    ///
    /// Whenever a rule is added to a table, or a verdict that leads to a chain, the kernel walks
    /// all elements of the verdict maps of that table (`nft_table_validate`, once for each base
    /// chain that leads to the map). It does not walk sets, so that hardly any Service is in
    /// `service-ips`.
    pub(crate) fn of_cluster_ip(context: &Context<'_>, leads_to: &LbChain) -> Option<Self> {
        lb_chains(context)
            .find(|chain| chain == leads_to)
            .map(|chain| Self::ClusterIpsBySlots(chain.selection.slots))
    }

    /// Whether a table has the set.
    pub(crate) fn is_needed(self, context: &Context<'_>) -> bool {
        self != Self::HealthCheckPorts || context.beneath_ipvs
    }

    /// Whether an element leads packets on to a pool.
    pub(crate) fn leads_to_pools(self) -> bool {
        matches!(self, Self::ServiceIps | Self::ServiceNodePorts | Self::ClusterIpsBySlots(_))
    }

    /// Whether packets look this set up after another one that leads packets on to pools.
    pub(crate) fn is_looked_up_after(self, other: Self) -> bool {
        let turn = |set| match set {
            Self::ClusterIpsBySlots(slots) => slots,
            _ => u32::MAX,
        };
        turn(self) > turn(other)
    }

    /// Whether the map leads from slots to endpoints.
    pub(crate) fn has_slots(self) -> bool {
        matches!(self, Self::Endpoints(_))
    }

    /// The part of a key by which packets find all elements that lead them on: the address that
    /// they are sent to, or the node port. Of hairpin connections, the endpoint's address.
    pub(crate) fn frontend(self, family: Family, key: Key) -> Key {
        let start = match self.begins_with_frontend() {
            true => 0,
            false => Field::InetProto.padded_width(),
        };
        let field = match self {
            Self::ServiceNodePorts
            | Self::NoEndpointNodePorts
            | Self::HealthCheckPorts
            | Self::Affinity(AffinityMap { scope: Scope::NodePort, .. })
            | Self::Endpoints(EndpointMap { scope: Scope::NodePort, .. }) => Field::InetService,
            _ => family.address_field(),
        };
        let part = key.as_slice().get(start..start + field.padded_width());
        part.and_then(Key::from_bytes).unwrap_or(key)
    }

    /// Whether keys begin with [`Self::frontend`].
    pub(crate) fn begins_with_frontend(self) -> bool {
        !matches!(self, Self::ServiceNodePorts | Self::NoEndpointNodePorts | Self::HealthCheckPorts)
    }

    fn define(self, family: Family) -> SetDef {
        let address = family.address_field();
        let by_ip = [address, Field::InetProto, Field::InetService];
        let by_port = [Field::InetProto, Field::InetService];
        match self {
            Self::ClusterIps => {
                SetDef::set(set::CLUSTER_IPS, [address]).with_comment("Active ClusterIPs")
            }
            Self::ServiceIps => SetDef::verdict_map(set::SERVICE_IPS, by_ip)
                .with_comment("ClusterIP, ExternalIP and LoadBalancer IP traffic"),
            Self::ServiceNodePorts => SetDef::verdict_map(set::SERVICE_NODEPORTS, by_port)
                .with_comment("NodePort traffic"),
            Self::FirewallIps => SetDef::verdict_map(set::FIREWALL_IPS, by_ip)
                .with_comment("destinations that are subject to LoadBalancerSourceRanges"),
            Self::NoEndpointServices => SetDef::verdict_map(set::NO_ENDPOINT_SERVICES, by_ip)
                .with_comment("vmap to drop or reject packets to services with no endpoints"),
            Self::NoEndpointNodePorts => SetDef::verdict_map(set::NO_ENDPOINT_NODEPORTS, by_port)
                .with_comment(
                    "vmap to drop or reject packets to service nodeports with no endpoints",
                ),
            Self::NodePortIps => SetDef::set(set::NODEPORT_IPS, [address])
                .with_comment("IPs that accept NodePort traffic"),
            Self::HairpinConnections => SetDef::set(
                set::HAIRPIN_CONNECTIONS,
                [address, address, Field::InetProto, Field::InetService],
            )
            .with_comment("connections of local endpoints to themselves"),
            Self::HealthCheckPorts => SetDef::set(set::HEALTH_CHECK_PORTS, by_port)
                .with_comment("health checks of Services, also at their addresses"),
            Self::ClusterIpsBySlots(slots) => {
                SetDef::set(format!("{}-{slots}", set::CLUSTER_IPS), by_ip)
                    .with_comment(format!("ClusterIP traffic to {slots} endpoints"))
            }
            Self::Affinity(map) => map.define(family),
            Self::Endpoints(map) => map.define(family),
        }
    }
}

/// The rules of base chains and of the chains that these lead to, in the order in which packets
/// pass through them.
pub(crate) fn chains(context: &Context<'_>) -> Vec<ChainRules> {
    let mut chains = checks(context);
    let jump = |from: &str, to: &str| {
        ChainRules::new(from, vec![Rule::new([Statement::Verdict(Verdict::Jump(to.into()))])])
    };
    chains.push(jump("nat-prerouting", chain::SERVICES));
    chains.push(jump("nat-output", chain::SERVICES));
    chains.push(jump("nat-postrouting", chain::MASQUERADING));
    chains
        .push(ChainRules::new(chain::FIREWALL_CHECK, vec![Rule::new([by_ip(set::FIREWALL_IPS)])]));
    chains.push(services(context));
    chains.extend(cluster_ips_lb(context));
    chains.push(ChainRules::new(
        chain::SERVICE_ENDPOINTS_CHECK,
        vec![Rule::new([by_ip(set::NO_ENDPOINT_SERVICES)])],
    ));
    chains.push(ChainRules::new(
        chain::NODEPORT_ENDPOINTS_CHECK,
        vec![node_port_rule(context, set::NO_ENDPOINT_NODEPORTS)],
    ));
    chains.push(cluster_ips_check(context));
    if context.beneath_ipvs {
        let checks = [chain::NODEPORT_ENDPOINTS_CHECK, chain::SERVICE_ENDPOINTS_CHECK];
        chains.push(base(BEFORE_IPVS.0, &checks));
        chains.push(base(BEHIND_IPVS.0, &[chain::OTHER_PORTS]));
        chains.push(ChainRules::new(chain::OTHER_PORTS, other_ports(context)));
    }
    chains.push(affinity::lookup_chain());
    chains.push(ChainRules::new(chain::REJECT, vec![Rule::new([Statement::Reject])]));
    chains.push(masquerading(context));
    if let Some(mark) = context.exempt_mark {
        let exempt = Rule::new([Statement::MarkSet(mark), Statement::Verdict(Verdict::Accept)]);
        let of_node = |name: &ChainName| matches!(by_name(name), Some((_, Hook::Output, _)));
        for chain in chains.iter_mut().filter(|chain| of_node(&chain.name)) {
            chain.rules.insert(0, exempt.clone());
        }
    }
    chains
}

/// The chains that let through, reject or drop. Where rules lead to a proxy at an address, filter
/// chains have only what comes from other hosts or pods, and the proxy remembers clients.
fn checks(context: &Context<'_>) -> Vec<ChainRules> {
    let mut before = base("filter-prerouting-pre-dnat", &[chain::FIREWALL_CHECK]);
    if context.family == Family::Ip {
        before.rules.splice(..0, martians());
    }
    let checks =
        [chain::NODEPORT_ENDPOINTS_CHECK, chain::SERVICE_ENDPOINTS_CHECK, chain::CLUSTER_IPS_CHECK];
    let mut forward = base("filter-forward", &checks[1..]);
    let Some(address) = context.only_translated else {
        let mut input = base("filter-input", &checks[..2]);
        let mut output = base("filter-output", &checks[1..]);
        // Where packets are translated already: those to endpoints in the node's own network, those
        // that are forwarded, and those of the node.
        for chain in [&mut input, &mut forward, &mut output] {
            chain.rules.push(remember_clients());
        }
        let output_before = base("filter-output-pre-dnat", &[chain::FIREWALL_CHECK]);
        return vec![before, output_before, input, forward, output];
    };
    let [output_before, input, output] = OF_FIRST_PACKETS.map(|(name, ..)| name);
    let output_before = base(output_before, &[chain::FIREWALL_CHECK]);
    // What the node sends itself enters no chain that translates at the input hook.
    let [mut input, mut output] = [base(input, &checks[..2]), base(output, &checks)];
    for chain in [&mut input, &mut output] {
        chain.rules.extend(only_translated(address));
    }
    vec![before, output_before, input, forward, output]
}

/// The rules of a base chain, which look at the first packet of each connection only.
fn base(name: &str, to: &[&str]) -> ChainRules {
    let jump = |to: &&str| {
        Rule::new([Statement::CtStateNew, Statement::Verdict(Verdict::Jump((*to).into()))])
    };
    ChainRules::new(name, to.iter().map(jump).collect())
}

/// The rule for the first packet of each connection that was translated.
fn remember_clients() -> Rule {
    Rule::new([
        Statement::CtStateNew,
        Statement::CtStatusDnat,
        Statement::Verdict(Verdict::Jump(chain::REMEMBER_CLIENTS.into())),
    ])
}

/// The rules that refuse connections to an address whose destination was not translated.
fn only_translated(address: IpAddr) -> [Rule; 2] {
    let destination =
        Statement::Address { side: Side::Destination, negated: false, net: address.into() };
    [
        vec![Statement::CtStatusDnat, Statement::Verdict(Verdict::Accept)],
        vec![destination, Statement::Reject],
    ]
    .map(|statements| Rule::new([vec![Statement::CtStateNew], statements].concat()))
}

/// Appends a chain of its own, in a table of IPv4, with the rules that keep other hosts from
/// loopback addresses, for times when nothing else is programmed. A sync replaces the chain by the
/// same rules in one of [`chains`].
pub(crate) fn guard_loopback(table: &Table, transaction: &mut Transaction) {
    transaction.add_table_with_comment(table, table_comment(table));
    let (_, kind, hook, priority) = BASE_CHAINS[0];
    let chain = ChainName::from(chain::LOOPBACK_GUARD);
    transaction.add_base_chain(table, BaseChain { name: chain.clone(), kind, hook, priority });
    transaction.flush_chain(table, chain.clone());
    for rule in martians() {
        transaction.add_rule(table, chain.clone(), rule);
    }
}

/// Whether the table of IPv4 keeps other hosts from loopback addresses, which each of this backend
/// does, and that of kube-proxy does not. Its rules do not show: those that the program `nft` has
/// written are not known again.
pub(crate) fn guards_loopback(dump: &TableDump) -> bool {
    let is_ours = |chain: &&str| dump.chains.contains_key(*chain);
    [chain::LOOPBACK_GUARD, chain::REMEMBER_CLIENTS].iter().any(is_ours)
}

/// The rules that drop packets of other hosts from or to loopback addresses of IPv4. The kernel
/// does the same unless `route_localnet` is on. The proxy switches the setting on to serve node
/// ports on localhost, and so do other proxies and programs; no program switches the setting off.
/// At this hook, answers to the node's own packets do not have loopback addresses yet, and neither
/// has a packet that another program's rules will translate.
///
/// A VRF has loopback addresses of its own, and packets within the VRF come in at its device.
/// Packets of other hosts pass this hook with their own interface before they do with the VRF's.
fn martians() -> [Rule; 3] {
    let within = |side| Statement::Address { side, negated: false, net: LOOPBACK_V4.into() };
    let from = |negated, name| Statement::InputInterface { negated, name };
    let drop = |side| {
        let other = from(true, InterfaceMatch::Exact("lo".into()));
        Rule::new([within(side), other, Statement::Verdict(Verdict::Drop)])
    };
    // Not a condition of the others: hardware, which has no kind, would not be matched by them.
    let of_vrf = Rule::new([
        within(Side::Source),
        within(Side::Destination),
        from(false, InterfaceMatch::Kind("vrf".into())),
        Statement::Verdict(Verdict::Accept),
    ]);
    [of_vrf, drop(Side::Destination), drop(Side::Source)]
}

fn by_ip(map: &str) -> Statement {
    Statement::VerdictMap { key: by_ip_key(), map: map.into() }
}

fn by_ip_key() -> Vec<Selector> {
    vec![Selector::DestinationAddress, Selector::Protocol, Selector::DestinationPort]
}

fn services(context: &Context<'_>) -> ChainRules {
    let to_cluster_ip = (!context.beneath_ipvs).then(|| {
        let key = vec![Selector::DestinationAddress];
        Rule::new([
            Statement::Lookup { key, set: set::CLUSTER_IPS.into() },
            Statement::Verdict(Verdict::Jump(chain::CLUSTER_IPS_LB.into())),
        ])
    });
    let others =
        [Rule::new([by_ip(set::SERVICE_IPS)]), node_port_rule(context, set::SERVICE_NODEPORTS)];
    ChainRules::new(chain::SERVICES, to_cluster_ip.into_iter().chain(others).collect())
}

/// The chain that looks cluster IPs up in the sets for each number of slots.
fn cluster_ips_lb(context: &Context<'_>) -> Option<ChainRules> {
    let by_slots = |leads_to: LbChain| {
        let set = TableSet::ClusterIpsBySlots(leads_to.selection.slots);
        let set = set.definition(context.family).name.clone();
        Rule::new([
            Statement::Lookup { key: by_ip_key(), set },
            Statement::Verdict(Verdict::Goto(leads_to.name())),
        ])
    };
    let rules: Vec<Rule> = lb_chains(context).map(by_slots).collect();
    (!rules.is_empty()).then(|| ChainRules::new(chain::CLUSTER_IPS_LB, rules))
}

/// The load-balancing chains that sets of cluster IPs lead to, which always exist; none where
/// another backend translates.
pub(crate) fn lb_chains(context: &Context<'_>) -> impl Iterator<Item = LbChain> + use<> {
    // Core asks for no masquerading of cluster IPs where pods are not known.
    let role = match context.node.local_pods.get(context.family.into()) {
        Some(_) => Role::MasqueradeNonLocal,
        None => Role::Balance,
    };
    let most = if context.beneath_ipvs { 0 } else { MOST_SLOTS_BY_SET };
    (1..=most).map(move |slots| LbChain {
        scope: Scope::Ip,
        role,
        selection: Selection { method: Method::Random, slots },
    })
}

/// The rule that looks up node ports, for packets to addresses of the node: all, all except
/// loopback, or the configured addresses.
fn node_port_rule(context: &Context<'_>, map: &str) -> Rule {
    let lookup = Statement::VerdictMap {
        key: vec![Selector::Protocol, Selector::DestinationPort],
        map: map.into(),
    };
    match context.node.node_ports.get(context.family.into()) {
        NodePortAddresses::AllLocal => {
            let loopback: IpNet = match context.family {
                Family::Ip => LOOPBACK_V4.into(),
                Family::Ip6 => Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
            };
            Rule::new([
                Statement::FibLocal(Side::Destination),
                Statement::Address { side: Side::Destination, negated: true, net: loopback },
                lookup,
            ])
        }
        NodePortAddresses::AllWithLoopback => {
            Rule::new([Statement::FibLocal(Side::Destination), lookup])
        }
        NodePortAddresses::Only(_) => Rule::new([
            Statement::Lookup {
                key: vec![Selector::DestinationAddress],
                set: set::NODEPORT_IPS.into(),
            },
            lookup,
        ]),
    }
}

/// The rules for packets that match no Service port: those to other ports of cluster IPs, and those
/// to unallocated addresses of the Service ranges.
fn cluster_ips_check(context: &Context<'_>) -> ChainRules {
    let mut rules = other_ports(context);
    for &net in context.node.service_cidrs.get(context.family.into()) {
        rules.push(Rule::new([
            Statement::Address { side: Side::Destination, negated: false, net },
            Statement::Verdict(Verdict::Drop),
        ]));
    }
    ChainRules::new(chain::CLUSTER_IPS_CHECK, rules)
}

/// The rules that refuse what goes to an address of Services. Where it is the node's, a load
/// balancer may ask there whether the Service is healthy.
fn other_ports(context: &Context<'_>) -> Vec<Rule> {
    let lookup = |key, set: &str| Statement::Lookup { key, set: set.into() };
    let to_service = lookup(vec![Selector::DestinationAddress], set::CLUSTER_IPS);
    let mut rules = Vec::new();
    if context.beneath_ipvs {
        let port = vec![Selector::Protocol, Selector::DestinationPort];
        rules.push(Rule::new([
            to_service.clone(),
            lookup(port, set::HEALTH_CHECK_PORTS),
            Statement::FibLocal(Side::Destination),
            Statement::Verdict(Verdict::Return),
        ]));
    }
    rules.push(Rule::new([to_service, Statement::Reject]));
    rules
}

fn masquerading(context: &Context<'_>) -> ChainRules {
    // Where IPVS translates, conntrack does not show it.
    let is_translated = (!context.beneath_ipvs).then_some(Statement::CtStatusDnat);
    let is_hairpin = Statement::Lookup {
        key: vec![
            Selector::SourceAddress,
            Selector::DestinationAddress,
            Selector::Protocol,
            Selector::DestinationPort,
        ],
        set: set::HAIRPIN_CONNECTIONS.into(),
    };
    let rules = vec![
        Rule::new([
            Statement::MarkSet(context.mark),
            Statement::MarkXor(context.mark),
            Statement::Masquerade,
        ]),
        Rule::new(
            is_translated
                .into_iter()
                .chain([is_hairpin, Statement::Masquerade])
                .collect::<Vec<_>>(),
        ),
    ];
    ChainRules::new(chain::MASQUERADING, rules)
}

/// The elements of fixed sets that follow from the node's configuration.
pub(crate) fn elements(context: &Context<'_>) -> Vec<(TableSet, Element)> {
    match context.node.node_ports.get(context.family.into()) {
        NodePortAddresses::AllLocal | NodePortAddresses::AllWithLoopback => Vec::new(),
        NodePortAddresses::Only(addresses) => addresses
            .iter()
            .map(|&ip| (TableSet::NodePortIps, Element::new(Key::new().address(ip))))
            .collect(),
    }
}

/// The elements of health checks.
pub(crate) fn health_checks<'a>(
    context: &Context<'_>,
    checks: impl IntoIterator<Item = &'a HealthCheck>,
) -> impl Iterator<Item = (TableSet, Element)> {
    let (set, family) = (TableSet::HealthCheckPorts, context.family.into());
    let is_needed = set.is_needed(context);
    let checks = checks.into_iter().filter(move |check| is_needed && check.has_family(family));
    checks
        .map(move |check| (set, Element::new(Key::new().protocol(Protocol::Tcp).port(check.port))))
}
