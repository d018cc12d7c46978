//! Which endpoints may serve a Service port from this node: readiness, topology and the fallback
//! to terminating endpoints (KEP-1669, KEP-2433, KEP-3015).

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::{IpAddr, SocketAddr},
};

use crate::{
    model::{Protocol, ServicePortId},
    state::{Endpoint, Pool, is_in},
    track::slice::{NodeHint, Slice, SliceEndpoint},
};

/// The endpoints a Service port has, chosen.
pub(crate) struct Pools {
    /// For the `Cluster` policy; empty if the port does not use it.
    pub(crate) cluster: Pool,
    /// For the `Local` policy; empty if the port does not use it.
    pub(crate) local: Pool,
    /// Whether anything, anywhere, could serve it.
    pub(crate) has_any: bool,
    /// All that serve, whether or not they get new flows; empty for TCP, where nobody asks.
    serving: Pool,
}

impl Pools {
    pub(crate) fn choose<'s>(
        id: &ServicePortId,
        slices: impl Iterator<Item = &'s Slice>,
        zone: Option<&str>,
        uses_cluster: bool,
        uses_local: bool,
    ) -> Self {
        let endpoints = candidates(id, slices);
        let cluster = match uses_cluster {
            true => cluster_pool(&endpoints, zone),
            false => Pool::from([]),
        };
        let local = match uses_local {
            true => ready_or_terminating(&endpoints, |endpoint| endpoint.is_local),
            false => Pool::from([]),
        };
        let has_any =
            !cluster.is_empty() || endpoints.values().any(|e| e.ready || is_serving_terminating(e));
        let serving = match id.name.protocol {
            Protocol::Tcp => Pool::default(),
            Protocol::Udp | Protocol::Sctp => pool(&endpoints, |e| e.ready || e.serving),
        };
        Self { cluster, local, has_any, serving }
    }

    /// What serves, and is in neither of the pools that are used.
    pub(crate) fn draining(&self, cluster: &Pool, local: &Pool) -> Pool {
        if self.serving.is_empty() {
            return Pool::default();
        }
        let is_outside = |e: &&Endpoint| !is_in(cluster, e.address) && !is_in(local, e.address);
        self.serving.iter().filter(is_outside).copied().collect()
    }
}

/// Addresses of the port's endpoints on this node that are ready.
pub(crate) fn local_ready<'s>(
    id: &ServicePortId,
    slices: impl Iterator<Item = &'s Slice>,
) -> Vec<IpAddr> {
    let endpoints = candidates(id, slices);
    let wanted = endpoints.iter().filter(|(_, e)| e.is_local && e.ready);
    wanted.map(|(address, _)| address.ip()).collect()
}

/// Every endpoint of the port, one per address.
type Candidates<'s> = BTreeMap<SocketAddr, &'s SliceEndpoint>;

/// An address may be in several slices, or belong to a pod that took it over from one that is
/// terminating. The entry that is better able to serve counts, so that the order of slices does
/// not matter.
fn candidates<'s>(id: &ServicePortId, slices: impl Iterator<Item = &'s Slice>) -> Candidates<'s> {
    let rank = |e: &SliceEndpoint| {
        (!e.terminating, e.ready, e.serving, e.is_local, e.node_hint == NodeHint::Ours)
    };
    let mut found = Candidates::new();
    for slice in slices.filter(|slice| slice.family == id.family) {
        let ports = slice
            .ports
            .iter()
            .filter(|port| port.name == id.name.port && port.protocol == id.name.protocol);
        for port in ports {
            for endpoint in &slice.endpoints {
                match found.entry(SocketAddr::new(endpoint.address, port.port)) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(endpoint);
                    }
                    Entry::Occupied(mut known) => {
                        let (new, old) = (rank(endpoint), rank(known.get()));
                        // Equal in all that: prefer by hints, in any fixed order.
                        if (new, &endpoint.zones) > (old, &known.get().zones) {
                            known.insert(endpoint);
                        }
                    }
                }
            }
        }
    }
    found
}

fn is_serving_terminating(endpoint: &SliceEndpoint) -> bool {
    endpoint.serving && endpoint.terminating
}

/// Ready endpoints that topology allows; if nothing is ready, all that still serve while they
/// terminate, wherever they are.
fn cluster_pool(endpoints: &Candidates<'_>, zone: Option<&str>) -> Pool {
    let scope = Scope::of(endpoints, zone);
    let ready = pool(endpoints, |e| e.ready && scope.allows(e));
    match ready.is_empty() {
        true => pool(endpoints, is_serving_terminating),
        false => ready,
    }
}

fn ready_or_terminating(
    endpoints: &Candidates<'_>,
    mut is_wanted: impl FnMut(&SliceEndpoint) -> bool,
) -> Pool {
    let ready = pool(endpoints, |e| e.ready && is_wanted(e));
    match ready.is_empty() {
        true => pool(endpoints, |e| is_serving_terminating(e) && is_wanted(e)),
        false => ready,
    }
}

fn pool(endpoints: &Candidates<'_>, mut is_in: impl FnMut(&SliceEndpoint) -> bool) -> Pool {
    endpoints
        .iter()
        .filter(|(_, endpoint)| is_in(endpoint))
        .map(|(&address, endpoint)| Endpoint { address, is_local: endpoint.is_local })
        .collect()
}

/// How far traffic may go, as the hints of the ready endpoints say.
enum Scope<'z> {
    SameNode,
    SameZone(&'z str),
    Anywhere,
}

impl<'z> Scope<'z> {
    /// Hints count only if every ready endpoint has them and one of them is for us: a controller
    /// that is in the middle of adding them must not cut traffic off.
    fn of(endpoints: &Candidates<'_>, zone: Option<&'z str>) -> Self {
        let ready = || endpoints.values().filter(|endpoint| endpoint.ready);
        if ready().all(|e| e.node_hint != NodeHint::None)
            && ready().any(|e| e.node_hint == NodeHint::Ours)
        {
            return Self::SameNode;
        }
        match zone {
            Some(zone)
                if ready().all(|e| !e.zones.is_empty()) && ready().any(|e| has_zone(e, zone)) =>
            {
                Self::SameZone(zone)
            }
            _ => Self::Anywhere,
        }
    }

    fn allows(&self, endpoint: &SliceEndpoint) -> bool {
        match self {
            Self::SameNode => endpoint.node_hint == NodeHint::Ours,
            Self::SameZone(zone) => has_zone(endpoint, zone),
            Self::Anywhere => true,
        }
    }
}

fn has_zone(endpoint: &SliceEndpoint, zone: &str) -> bool {
    endpoint.zones.iter().any(|named| **named == *zone)
}
