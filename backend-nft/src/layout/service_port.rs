//! The objects of a Service port: elements in the sets of the table, slots, and the chains and sets of those
//! with ClientIP affinity or source ranges, and of those whose endpoints take turns. Chains have upstream's names
//! where upstream has them too.

use std::{collections::BTreeSet, net::SocketAddr};

use switchyard_core::{
    model::Protocol,
    state::{
        Action, Endpoint, Frontend, FrontendAddress, Masquerade, PoolKind, ResolvedServicePort,
    },
};
use switchyard_nft_ruleset::{ChainName, Element, Key, Rule, Side, Statement, Verdict};

use super::{
    ChainRules, Context,
    affinity::{self, AffinityMap, Earlier, RememberedPool},
    lb_chains::{EndpointMap, LbChain, Role, Scope, endpoint_value},
    names::{self, chain},
    slots::{Method, RememberedSlots, Selection},
    source_ranges,
    table::TableSet,
};

/// The length of the longest comment that nft prints, in bytes.
const LONGEST_COMMENT: usize = 127;

/// What has to be remembered of the slots of both pools of a Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolSlots {
    pub(crate) cluster: RememberedSlots,
    pub(crate) local: RememberedSlots,
}

impl PoolSlots {
    /// What has to be remembered of one pool.
    pub(crate) fn get(&self, kind: PoolKind) -> &RememberedSlots {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }
}

/// The elements of a Service port in fixed sets and maps, and what they need. Slots are not among the
/// elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entries {
    /// Elements of this Service port alone.
    pub(crate) elements: Vec<(TableSet, Element)>,
    /// Elements that other Service ports may need too.
    pub(crate) common: Vec<(TableSet, Key)>,
    /// Shared chains that elements lead to.
    pub(crate) chains: Vec<LbChain>,
    /// The runs of slots that hold the endpoints.
    pub(crate) runs: Vec<SlotRange>,
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
    /// The key of a slot.
    pub(crate) fn slot_key(&self, slot: usize) -> Key {
        self.key.slot(slot as u32)
    }

    /// The element of a slot.
    pub(crate) fn element(&self, slot: usize, endpoint: SocketAddr) -> Element {
        Element::value(self.slot_key(slot), endpoint_value(endpoint))
    }
}

impl Entries {
    /// The entries of `port`.
    pub(crate) fn new(port: &ResolvedServicePort) -> Self {
        let mut entries = Self::default();
        let comment = comment(port);
        for frontend in &port.frontends {
            entries.add_frontend(port, frontend, &comment);
        }
        // The filter comes first: of a huge pool, hardly any endpoints can be on this node.
        let both = port.cluster.iter().chain(port.local.iter());
        let here: BTreeSet<&Endpoint> = both.filter(|endpoint| endpoint.may_be_local).collect();
        for endpoint in here {
            let ip = endpoint.address.ip();
            let key = Key::new()
                .address(ip)
                .address(ip)
                .protocol(port.id.name.protocol)
                .port(endpoint.address.port());
            entries.common.push((TableSet::HairpinConnections, key));
        }
        entries
    }

    fn add_frontend(&mut self, port: &ResolvedServicePort, frontend: &Frontend, comment: &str) {
        let place = Place::new(port, frontend);
        if let FrontendAddress::ClusterIp(ip) = frontend.at {
            self.common.push((TableSet::ClusterIps, Key::new().address(ip)));
        }
        if frontend.allowed_sources.is_some() {
            let firewall = source_ranges::chain_name(&port.id.name);
            self.add(TableSet::FirewallIps, &place, Verdict::Goto(firewall), comment);
        }
        match frontend.action {
            Action::Pool { pool, masquerade } => {
                let role = match masquerade {
                    Masquerade::Never => Role::Balance,
                    Masquerade::ExceptLocalPods => Role::MasqueradeNonLocal,
                    Masquerade::Always => Role::MasqueradeAll,
                };
                self.serve(port, frontend, &place, role, pool, comment);
            }
            Action::ExternalLocal => {
                let local = match port.local.is_empty() {
                    true => 0,
                    false => Selection::of(port.lb_algorithm, &port.local).slots,
                };
                let role = Role::ExternalLocal { local };
                self.serve(port, frontend, &place, role, PoolKind::Cluster, comment);
                if port.local.is_empty() {
                    self.add(place.no_endpoints(), &place, Verdict::Drop, comment);
                } else {
                    self.add_run(&place, PoolKind::Local, PoolKind::Local);
                    self.chains.extend(draw(port, place.scope, PoolKind::Local));
                }
            }
            Action::Drop => self.add(place.no_endpoints(), &place, Verdict::Drop, comment),
            Action::Reject => {
                let reject = Verdict::Goto(chain::REJECT.into());
                self.add(place.no_endpoints(), &place, reject, comment);
            }
        }
    }

    /// Leads a frontend to a pool: through chains of the Service port if it has some, otherwise
    /// through shared chains.
    fn serve(
        &mut self,
        port: &ResolvedServicePort,
        frontend: &Frontend,
        place: &Place,
        role: Role,
        pool: PoolKind,
        comment: &str,
    ) {
        let chain = match entry_chain(port, place.scope, frontend.action) {
            Some(chain) => {
                self.add_run(place, pool, pool);
                self.chains.extend(draw(port, place.scope, pool));
                chain
            }
            None => {
                self.add_run(place, PoolKind::Cluster, pool);
                let selection = Selection::of(port.lb_algorithm, port.pool(pool));
                self.need_lb_chain(LbChain { scope: place.scope, role, selection })
            }
        };
        if port.affinity.is_some() {
            let map = AffinityMap { scope: place.scope, protocol: place.protocol };
            let remember = Verdict::Goto(affinity::remember_chain(&port.id.name));
            let element = Element::verdict(place.slot_key, remember).with_comment(comment);
            self.elements.push((TableSet::Affinity(map), element));
        }
        self.add(place.services(), place, Verdict::Goto(chain), comment);
    }

    fn add_run(&mut self, place: &Place, slots: PoolKind, pool: PoolKind) {
        self.runs.push(SlotRange { map: place.slots(slots), key: place.slot_key, pool });
    }

    /// Adds a shared chain and all that it leads to to `chains`, and returns its name.
    fn need_lb_chain(&mut self, chain: LbChain) -> ChainName {
        self.chains.extend(chain.leads_to());
        self.chains.push(chain);
        chain.name()
    }

    fn add(&mut self, map: TableSet, place: &Place, verdict: Verdict, comment: &str) {
        self.elements.push((map, Element::verdict(place.key, verdict).with_comment(comment)));
    }
}

/// The comment that names the Service port of an element.
fn comment(port: &ResolvedServicePort) -> String {
    let mut comment = port.id.name.to_string();
    // Names are ASCII, so that every byte is a boundary.
    comment.truncate(LONGEST_COMMENT);
    comment
}

/// The place of a frontend in the maps.
struct Place {
    scope: Scope,
    protocol: Protocol,
    /// The key in maps for all protocols.
    key: Key,
    /// The key in maps for one protocol, but for the slot.
    slot_key: Key,
}

impl Place {
    fn new(port: &ResolvedServicePort, frontend: &Frontend) -> Self {
        let protocol = port.id.name.protocol;
        let (scope, prefix) = match frontend.at.ip() {
            Some(ip) => (Scope::Ip, Key::new().address(ip)),
            None => (Scope::NodePort, Key::new()),
        };
        Self {
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

/// The chains and sets of a single Service port.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PortChains {
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
) -> PortChains {
    let mut own = PortChains::default();
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
pub(crate) fn draw(port: &ResolvedServicePort, scope: Scope, kind: PoolKind) -> Option<LbChain> {
    (has_chains(port) && !takes_turns(port)).then(|| LbChain::draw(scope, kind, port))
}

fn add_chains(
    port: &ResolvedServicePort,
    context: &Context<'_>,
    earlier: Option<Earlier>,
    own: &mut PortChains,
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
                let (pool, protocol) = (kind, port.id.name.protocol);
                let selection = Selection::of(port.lb_algorithm, port.pool(kind));
                EndpointMap { scope, pool, protocol }.balance(selection)
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
