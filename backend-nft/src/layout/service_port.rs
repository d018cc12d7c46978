//! The objects of a Service port: elements in the sets of the table, slots, and the chains and sets
//! of those with ClientIP affinity or source ranges, and of those whose endpoints take turns.
//! Chains have upstream's names where upstream has them too.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use switchyard_core::{
    model::Protocol,
    state::{
        Action, Endpoint, Frontend, FrontendAddress, Masquerade, PoolKind, ResolvedServicePort,
    },
};
use switchyard_kernel::nftables::{ChainName, Element, Key, Rule, SetDef, Statement, Verdict};

use super::{
    ChainRules, Context,
    affinity::{self, AffinityMap, RememberedPool},
    lb_chains::{self, EndpointMap, LbChain, Role, Scope, endpoint_value},
    names::{self, chain},
    slots::{Method, Selection},
    source_ranges,
    table::TableSet,
};

/// The length of the longest comment that nft prints, in bytes.
const LONGEST_COMMENT: usize = 127;

/// The objects of a Service port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PortObjects {
    /// Elements of the table's sets and maps, but for slots.
    pub(crate) elements: Vec<(TableSet, Element)>,
    /// Elements of the table's sets that other Service ports may need, too.
    pub(crate) counted: Vec<CountedElement>,
    /// The slots that hold the endpoints.
    pub(crate) slots: Vec<SlotRange>,
    /// Chains of the table that the Service port needs.
    pub(crate) lb_chains: Vec<LbChain>,
    pub(crate) chains: Vec<ChainRules>,
    pub(crate) sets: Vec<PortSet>,
    /// The pools that remember clients.
    pub(crate) pools: Vec<RememberedPool>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PortSet {
    pub(crate) definition: Arc<SetDef>,
    pub(crate) contents: Contents,
}

/// The elements of a set, as far as they belong to the set's Service port.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Contents {
    /// None: packets add them, or several Service ports.
    None,
    Elements(Vec<Element>),
    Ranges(Arc<[IpNet]>),
}

impl Contents {
    pub(crate) fn elements(&self) -> Vec<Element> {
        match self {
            Self::None => Vec::new(),
            Self::Elements(elements) => elements.clone(),
            Self::Ranges(ranges) => Element::intervals(&ranges[..]),
        }
    }
}

/// The consecutive slots of a map that hold the endpoints of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotRange {
    pub(crate) map: TableSet,
    /// The key without the slot.
    pub(crate) key: Key,
    pub(crate) pool: PoolKind,
}

impl SlotRange {
    pub(crate) fn element(&self, slot: u32, endpoint: SocketAddr) -> Element {
        Element::value(self.key.slot(slot), endpoint_value(endpoint))
    }
}

/// An element that several Service ports may need: smaller than its key, as the backend remembers
/// one for each Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CountedElement {
    ClusterIp(IpAddr),
    /// Of the endpoint at this address and port to itself.
    HairpinConnection(IpAddr, Protocol, u16),
}

impl CountedElement {
    pub(crate) fn set_and_key(self) -> (TableSet, Key) {
        match self {
            Self::ClusterIp(ip) => (TableSet::ClusterIps, Key::new().address(ip)),
            Self::HairpinConnection(ip, protocol, port) => {
                let key = Key::new().address(ip).address(ip).protocol(protocol).port(port);
                (TableSet::HairpinConnections, key)
            }
        }
    }
}

/// The objects of `port`, which may have had another timeout earlier.
pub(crate) fn objects(
    port: &ResolvedServicePort,
    context: &Context<'_>,
    earlier: Option<Duration>,
) -> PortObjects {
    let mut objects = PortObjects::default();
    let comment = comment(port);
    for frontend in &port.frontends {
        objects.add_frontend(port, frontend, context, &comment);
    }
    // The filter comes first: of a huge pool, hardly any endpoints can be on this node.
    let pools = port.cluster.iter().chain(port.local.iter());
    // IPVS goes on to send packets of connections that it has to endpoints that drain.
    let draining = port.draining.iter().filter(|_| context.beneath_ipvs);
    let here: BTreeSet<&Endpoint> =
        pools.chain(draining).filter(|endpoint| endpoint.may_be_local).collect();
    for endpoint in here {
        let (ip, port_number) = (endpoint.address.ip(), endpoint.address.port());
        let protocol = port.id.name.protocol;
        objects.counted.push(CountedElement::HairpinConnection(ip, protocol, port_number));
    }
    objects.chains.extend(source_ranges::chain(port));
    if let Some(ranges) = source_ranges::in_set(port) {
        let definition = source_ranges::set(&port.id.name, context.family);
        objects.sets.push(PortSet { definition, contents: Contents::Ranges(ranges.clone()) });
    }
    objects.pools = affinity::pools(port, context.family, earlier);
    for pool in &objects.pools {
        let set =
            |(set, contents): (&Arc<SetDef>, _)| PortSet { definition: set.clone(), contents };
        let members = [(&pool.members, Contents::Elements(pool.elements().collect()))];
        let maps = pool.maps().map(|map| (map, Contents::None));
        objects.sets.extend(members.into_iter().chain(maps).map(set));
    }
    if let Some(timeout) = port.affinity
        && !objects.pools.is_empty()
    {
        objects.chains.push(affinity::remember_rules(port, timeout));
    }
    if has_chains(port) {
        add_chains(port, context, earlier, &mut objects.chains);
    }
    objects
}

impl PortObjects {
    fn add_frontend(
        &mut self,
        port: &ResolvedServicePort,
        frontend: &Frontend,
        context: &Context<'_>,
        comment: &str,
    ) {
        let keys = FrontendKeys::new(port, frontend);
        if let FrontendAddress::ClusterIp(ip) = frontend.at {
            self.counted.push(CountedElement::ClusterIp(ip));
        }
        if frontend.allowed_sources.is_some() {
            let firewall = source_ranges::chain_name(&port.id.name);
            self.add(TableSet::FirewallIps, &keys, Verdict::Goto(firewall), comment);
        }
        match frontend.action {
            Action::Pool { pool, masquerade } => {
                let role = match masquerade {
                    Masquerade::Never => Role::Balance,
                    Masquerade::ExceptLocalPods => Role::MasqueradeNonLocal,
                    Masquerade::Always => Role::MasqueradeAll,
                };
                self.serve(port, &keys, context, role, pool, comment);
            }
            Action::ExternalLocal => {
                let local = match port.local.is_empty() {
                    true => 0,
                    false => Selection::of(port.lb_algorithm, &port.local).slots,
                };
                let role = Role::ExternalLocal { local };
                self.serve(port, &keys, context, role, PoolKind::Cluster, comment);
                if port.local.is_empty() {
                    self.add(keys.no_endpoints(), &keys, Verdict::Drop, comment);
                } else {
                    self.add_slots(&keys, PoolKind::Local, PoolKind::Local);
                    self.lb_chains.extend(lb_chain(port, keys.scope, PoolKind::Local));
                }
            }
            Action::Delivered { masquerade } => {
                let role = Role::Delivered(masquerade);
                let selection = Selection { method: Method::Random, slots: 0 };
                let chain = self.need_lb_chain(LbChain { scope: keys.scope, role, selection });
                self.add(keys.services(), &keys, Verdict::Goto(chain), comment);
            }
            Action::DeliveredLocal => {
                let role = Role::DeliveredLocal;
                self.serve(port, &keys, context, role, PoolKind::Cluster, comment);
            }
            Action::Drop => self.add(keys.no_endpoints(), &keys, Verdict::Drop, comment),
            Action::Reject => {
                let reject = Verdict::Goto(chain::REJECT.into());
                self.add(keys.no_endpoints(), &keys, reject, comment);
            }
        }
    }

    /// Leads a frontend to a pool: through chains of the Service port if it has some, otherwise
    /// through those of the table.
    fn serve(
        &mut self,
        port: &ResolvedServicePort,
        keys: &FrontendKeys<'_>,
        context: &Context<'_>,
        role: Role,
        pool: PoolKind,
        comment: &str,
    ) {
        let chain = match entry_chain(port, keys.scope, keys.frontend.action) {
            Some(chain) => {
                self.add_slots(keys, pool, pool);
                self.lb_chains.extend(lb_chain(port, keys.scope, pool));
                chain
            }
            None => {
                self.add_slots(keys, PoolKind::Cluster, pool);
                let selection = Selection::of(port.lb_algorithm, port.pool(pool));
                let leads_to = LbChain { scope: keys.scope, role, selection };
                let chain = self.need_lb_chain(leads_to);
                if let FrontendAddress::ClusterIp(_) = keys.frontend.at
                    && let Some(set) = TableSet::of_cluster_ip(context, &leads_to)
                {
                    self.elements.push((set, Element::new(keys.key).with_comment(comment)));
                    return;
                }
                chain
            }
        };
        if port.affinity.is_some() {
            let map = AffinityMap { scope: keys.scope, protocol: keys.protocol };
            let remember = Verdict::Goto(affinity::remember_chain(&port.id.name));
            let element = Element::verdict(keys.slot_key, remember).with_comment(comment);
            self.elements.push((TableSet::Affinity(map), element));
        }
        self.add(keys.services(), keys, Verdict::Goto(chain), comment);
    }

    fn add_slots(&mut self, keys: &FrontendKeys<'_>, slots: PoolKind, pool: PoolKind) {
        self.slots.push(SlotRange { map: keys.slots(slots), key: keys.slot_key, pool });
    }

    /// Adds a chain of the table and all that it leads to, and returns its name.
    fn need_lb_chain(&mut self, chain: LbChain) -> ChainName {
        self.lb_chains.extend(chain.leads_to());
        self.lb_chains.push(chain);
        chain.name()
    }

    fn add(&mut self, map: TableSet, keys: &FrontendKeys<'_>, verdict: Verdict, comment: &str) {
        self.elements.push((map, Element::verdict(keys.key, verdict).with_comment(comment)));
    }
}

/// The part of keys by which packets find all that leads them from a frontend
/// ([`TableSet::frontend`]).
pub(crate) fn frontend_key(frontend: &Frontend) -> Key {
    match frontend.at.ip() {
        Some(ip) => Key::new().address(ip),
        None => Key::new().port(frontend.port),
    }
}

/// The comment that names the Service port of an element.
fn comment(port: &ResolvedServicePort) -> String {
    let mut comment = port.id.name.to_string();
    // Names are ASCII, so that every byte is a boundary.
    comment.truncate(LONGEST_COMMENT);
    comment
}

/// A frontend with its keys in the maps.
struct FrontendKeys<'a> {
    frontend: &'a Frontend,
    scope: Scope,
    protocol: Protocol,
    /// The key in maps for all protocols.
    key: Key,
    /// The key in maps for one protocol, but for the slot.
    slot_key: Key,
}

impl<'a> FrontendKeys<'a> {
    fn new(port: &ResolvedServicePort, frontend: &'a Frontend) -> Self {
        let protocol = port.id.name.protocol;
        let (scope, prefix) = match frontend.at.ip() {
            Some(ip) => (Scope::Ip, Key::new().address(ip)),
            None => (Scope::NodePort, Key::new()),
        };
        Self {
            frontend,
            scope,
            protocol,
            key: prefix.protocol(protocol).port(frontend.port),
            slot_key: prefix.port(frontend.port),
        }
    }

    fn by_scope(&self, ip: TableSet, node_port: TableSet) -> TableSet {
        match self.scope {
            Scope::Ip => ip,
            Scope::NodePort => node_port,
        }
    }

    fn services(&self) -> TableSet {
        self.by_scope(TableSet::ServiceIps, TableSet::ServiceNodePorts)
    }

    /// The map that holds the endpoints.
    fn slots(&self, pool: PoolKind) -> TableSet {
        TableSet::Endpoints(EndpointMap { scope: self.scope, pool, protocol: self.protocol })
    }

    fn no_endpoints(&self) -> TableSet {
        self.by_scope(TableSet::NoEndpointServices, TableSet::NoEndpointNodePorts)
    }
}

/// Whether a Service port needs chains of its own to reach its endpoints: to look its clients up,
/// or to count turns.
pub(crate) fn has_chains(port: &ResolvedServicePort) -> bool {
    port.affinity.is_some() || takes_turns(port)
}

fn takes_turns(port: &ResolvedServicePort) -> bool {
    Method::of(port.lb_algorithm) == Method::InTurn
}

/// The name of the own chain that a frontend of a Service port leads to; `None` for a frontend
/// without endpoints, and for a Service port without such chains.
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
        Action::DeliveredLocal => "delivered-local-",
        Action::Delivered { .. } | Action::Reject | Action::Drop => return None,
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

/// The chain of the table in which the chain of a pool ends; `None` if the Service port has no such
/// chain, or selects by itself.
pub(crate) fn lb_chain(
    port: &ResolvedServicePort,
    scope: Scope,
    kind: PoolKind,
) -> Option<LbChain> {
    (has_chains(port) && !takes_turns(port)).then(|| LbChain::of_pool(scope, kind, port))
}

fn add_chains(
    port: &ResolvedServicePort,
    context: &Context<'_>,
    earlier: Option<Duration>,
    chains: &mut Vec<ChainRules>,
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
            Action::DeliveredLocal => _ = pools.insert((scope, PoolKind::Cluster)),
            Action::Delivered { .. } | Action::Reject | Action::Drop => {}
        }
        if let Some(entry) = entry_chain(port, scope, action)
            && let Some(rules) = entry_rules(port, scope, action, &base, context)
        {
            chains.push(ChainRules::new(entry, rules));
        }
    }
    for (scope, kind) in pools {
        let remembered = affinity::lookup_rules(port, kind, earlier);
        let last = match lb_chain(port, scope, kind) {
            Some(shared) => Rule::new([Statement::Verdict(Verdict::Goto(shared.name()))]),
            None => {
                let (pool, protocol) = (kind, port.id.name.protocol);
                let selection = Selection::of(port.lb_algorithm, port.pool(kind));
                EndpointMap { scope, pool, protocol }.balance(selection)
            }
        };
        let rules = remembered.chain([last]).collect();
        chains.push(ChainRules::new(pool_chain(&base, scope, kind), rules));
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
    match action {
        Action::Pool { masquerade: Masquerade::Never, .. }
        | Action::Delivered { .. }
        | Action::Reject
        | Action::Drop => None,
        Action::Pool { pool, masquerade } => {
            Some(lb_chains::masquerade(context, masquerade, go(pool)))
        }
        Action::ExternalLocal => {
            let outside = (!port.local.is_empty()).then(|| Rule::new([go(PoolKind::Local)]));
            Some(lb_chains::local_clients(context, go(PoolKind::Cluster), outside))
        }
        Action::DeliveredLocal => {
            let outside = lb_chains::delivered(scope);
            Some(lb_chains::local_clients(context, go(PoolKind::Cluster), outside))
        }
    }
}
