//! Elements of single Service ports, and the shared chains that they need.

use std::{collections::BTreeSet, net::SocketAddr};

use switchyard_core::{
    model::Protocol,
    state::{
        Action, Endpoint, Frontend, FrontendAddress, Masquerade, PoolKind, ResolvedServicePort,
    },
};

use super::{
    affinity::{self, FrontendMap},
    drawing::Drawing,
    fixed::FixedSet,
    names::chain,
    own,
    shared::{Role, SharedChain},
    slot_map::{Scope, SlotMap, SlotPool, endpoint_value},
    slots::RememberedSlots,
    source_ranges,
};
use crate::ruleset::{ChainName, Element, Key, Verdict};

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
    pub(crate) elements: Vec<(FixedSet, Element)>,
    /// Elements that other Service ports may need too.
    pub(crate) common: Vec<(FixedSet, Key)>,
    /// Shared chains that elements lead to.
    pub(crate) chains: Vec<SharedChain>,
    /// The runs of slots that hold the endpoints.
    pub(crate) runs: Vec<SlotRun>,
}

/// The consecutive slots of a map that hold the endpoints of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotRun {
    pub(crate) map: FixedSet,
    /// The key without the slot.
    pub(crate) key: Key,
    pub(crate) pool: PoolKind,
}

impl SlotRun {
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
            entries.common.push((FixedSet::HairpinConnections, key));
        }
        entries
    }

    fn add_frontend(&mut self, port: &ResolvedServicePort, frontend: &Frontend, comment: &str) {
        let place = Place::new(port, frontend);
        if let FrontendAddress::ClusterIp(ip) = frontend.at {
            self.common.push((FixedSet::ClusterIps, Key::new().address(ip)));
        }
        if frontend.allowed_sources.is_some() {
            let firewall = source_ranges::chain_name(&port.id.name);
            self.add(FixedSet::FirewallIps, &place, Verdict::Goto(firewall), comment);
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
                    false => Drawing::of(port.lb_algorithm, &port.local).slots,
                };
                let role = Role::ExternalLocal { local };
                self.serve(port, frontend, &place, role, PoolKind::Cluster, comment);
                if port.local.is_empty() {
                    self.add(place.no_endpoints(), &place, Verdict::Drop, comment);
                } else {
                    self.add_run(&place, SlotPool::Local, PoolKind::Local);
                    self.chains.extend(own::draw(port, place.scope, PoolKind::Local));
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
        let chain = match own::entry_chain(port, place.scope, frontend.action) {
            Some(chain) => {
                self.add_run(place, SlotPool::apart(pool), pool);
                self.chains.extend(own::draw(port, place.scope, pool));
                chain
            }
            None => {
                self.add_run(place, SlotPool::Main, pool);
                let drawing = Drawing::of(port.lb_algorithm, port.pool(pool));
                self.need_shared(SharedChain { scope: place.scope, role, drawing })
            }
        };
        if port.affinity.is_some() {
            let map = FrontendMap { scope: place.scope, protocol: place.protocol };
            let remember = Verdict::Goto(affinity::remember_chain(&port.id.name));
            let element = Element::verdict(place.slot_key, remember).with_comment(comment);
            self.elements.push((FixedSet::Affinity(map), element));
        }
        self.add(place.services(), place, Verdict::Goto(chain), comment);
    }

    fn add_run(&mut self, place: &Place, slots: SlotPool, pool: PoolKind) {
        self.runs.push(SlotRun { map: place.slots(slots), key: place.slot_key, pool });
    }

    /// Adds a shared chain and all that it leads to to `chains`, and returns its name.
    fn need_shared(&mut self, chain: SharedChain) -> ChainName {
        self.chains.extend(chain.leads_to());
        self.chains.push(chain);
        chain.name()
    }

    fn add(&mut self, map: FixedSet, place: &Place, verdict: Verdict, comment: &str) {
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

    fn by_scope(&self, ip: FixedSet, node_port: FixedSet) -> FixedSet {
        match self.scope {
            Scope::Ip => ip,
            Scope::NodePort => node_port,
        }
    }

    fn services(&self) -> FixedSet {
        self.by_scope(FixedSet::ServiceIps, FixedSet::ServiceNodePorts)
    }

    /// The map that holds the endpoints.
    fn slots(&self, pool: SlotPool) -> FixedSet {
        FixedSet::Slots(SlotMap { scope: self.scope, pool, protocol: self.protocol })
    }

    fn no_endpoints(&self) -> FixedSet {
        self.by_scope(FixedSet::NoEndpointServices, FixedSet::NoEndpointNodePorts)
    }
}
