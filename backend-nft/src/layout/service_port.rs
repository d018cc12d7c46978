//! What one Service port puts into the tables.

use std::{collections::BTreeSet, net::SocketAddr};

use proxy_core::state::{
    Endpoint, Frontend, FrontendAddress, Masquerade, Pool, PoolKind, ResolvedServicePort, Route,
};

use super::{
    fixed::FixedSet,
    names::chain,
    own,
    shared::{Role, Scope, SharedChain},
    slots::Slots,
};
use crate::ruleset::{ChainName, Element, Key, Value, Verdict};

/// The longest comment that nft prints.
const LONGEST_COMMENT: usize = 127;

/// The slots of both pools of a Service port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolSlots {
    pub(crate) cluster: Slots,
    pub(crate) local: Slots,
}

impl PoolSlots {
    pub(crate) fn of(&self, kind: PoolKind) -> &Slots {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }
}

/// What a Service port puts into the fixed sets and maps, but for slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entries {
    /// Elements that no other Service port has.
    pub(crate) elements: Vec<(FixedSet, Element)>,
    /// Elements of sets that other Service ports may have too.
    pub(crate) common: Vec<(FixedSet, Key)>,
    /// Shared chains that elements lead to.
    pub(crate) chains: Vec<SharedChain>,
    /// Where the endpoints of a pool stand, one after the other.
    pub(crate) runs: Vec<SlotRun>,
}

/// The endpoints of a pool in a map, by slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotRun {
    pub(crate) map: FixedSet,
    /// The key, but for the slot.
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

/// An endpoint as maps hold it.
pub(crate) fn endpoint_value(endpoint: SocketAddr) -> Value {
    Value::new().address(endpoint.ip()).port(endpoint.port())
}

impl Entries {
    /// What `port` puts in.
    pub(crate) fn of(port: &ResolvedServicePort) -> Self {
        let mut entries = Self::default();
        let comment = comment(port);
        for frontend in &port.frontends {
            entries.add_frontend(port, frontend, &comment);
        }
        // Sorted out before they are merged: of a huge pool hardly any are here.
        let both = port.cluster.iter().chain(port.local.iter());
        let here: BTreeSet<&Endpoint> = both.filter(|endpoint| endpoint.is_local).collect();
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
        let place = Place::of(port, frontend);
        if let FrontendAddress::ClusterIp(ip) = frontend.at {
            self.common.push((FixedSet::ClusterIps, Key::new().address(ip)));
        }
        if frontend.allowed_sources.is_some() {
            let firewall = own::firewall_chain(&port.id.name);
            self.add(FixedSet::FirewallIps, &place, Verdict::Goto(firewall), comment);
        }
        match frontend.route {
            Route::Pool { pool, masquerade } => {
                let role = match masquerade {
                    Masquerade::Never => Role::Balance,
                    Masquerade::ExceptLocalPods => Role::MasqueradeNonLocal,
                    Masquerade::Always => Role::MasqueradeAll,
                };
                self.serve(port, frontend, &place, role, pool, comment);
            }
            Route::ExternalLocal => {
                let role = Role::ExternalLocal { local: port.local.len() as u32 };
                self.serve(port, frontend, &place, role, PoolKind::Cluster, comment);
                if port.local.is_empty() {
                    self.add(place.no_endpoints(), &place, Verdict::Drop, comment);
                } else if own::affinity(port).is_none() {
                    self.runs.push(SlotRun {
                        map: place.local_endpoints(),
                        key: place.key,
                        pool: PoolKind::Local,
                    });
                }
            }
            Route::Drop => self.add(place.no_endpoints(), &place, Verdict::Drop, comment),
            Route::Reject => {
                let reject = Verdict::Goto(chain::REJECT.into());
                self.add(place.no_endpoints(), &place, reject, comment);
            }
        }
    }

    /// Leads a frontend to a pool: through chains of the Service port's own if it has affinity,
    /// else through shared ones.
    fn serve(
        &mut self,
        port: &ResolvedServicePort,
        frontend: &Frontend,
        place: &Place,
        role: Role,
        pool: PoolKind,
        comment: &str,
    ) {
        let own_chain =
            own::affinity(port).and_then(|_| own::entry_chain(&port.id.name, frontend.route));
        let chain = match own_chain {
            Some(chain) => chain,
            None => {
                self.runs.push(SlotRun { map: place.endpoints(), key: place.key, pool });
                self.shared(place.scope, role, port.pool(pool))
            }
        };
        self.add(place.services(), place, Verdict::Goto(chain), comment);
    }

    /// The name of a shared chain for `pool`, which is noted as needed, with what it leads to.
    fn shared(&mut self, scope: Scope, role: Role, pool: &Pool) -> ChainName {
        let chain = SharedChain { scope, role, slots: pool.len() as u32 };
        self.chains.extend(chain.leads_to());
        self.chains.push(chain);
        chain.name()
    }

    fn add(&mut self, map: FixedSet, place: &Place, verdict: Verdict, comment: &str) {
        self.elements.push((map, Element::verdict(place.key, verdict).with_comment(comment)));
    }
}

/// Whose an element is, for people who read the table.
fn comment(port: &ResolvedServicePort) -> String {
    let mut comment = port.id.name.to_string();
    // Names are ASCII, so that any byte is a boundary.
    comment.truncate(LONGEST_COMMENT);
    comment
}

/// Where a frontend stands in the maps.
struct Place {
    scope: Scope,
    key: Key,
}

impl Place {
    fn of(port: &ResolvedServicePort, frontend: &Frontend) -> Self {
        let protocol = port.id.name.protocol;
        match frontend.at.ip() {
            Some(ip) => Self {
                scope: Scope::Ip,
                key: Key::new().address(ip).protocol(protocol).port(frontend.port),
            },
            None => Self {
                scope: Scope::NodePort,
                key: Key::new().protocol(protocol).port(frontend.port),
            },
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

    fn endpoints(&self) -> FixedSet {
        self.by_scope(FixedSet::Endpoints, FixedSet::NodePortEndpoints)
    }

    fn local_endpoints(&self) -> FixedSet {
        self.by_scope(FixedSet::LocalEndpoints, FixedSet::LocalNodePortEndpoints)
    }

    fn no_endpoints(&self) -> FixedSet {
        self.by_scope(FixedSet::NoEndpointServices, FixedSet::NoEndpointNodePorts)
    }
}
