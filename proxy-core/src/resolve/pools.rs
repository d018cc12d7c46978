//! The endpoints that may serve a Service port from this node: readiness, topology and the fallback
//! to terminating endpoints (KEP-1669, KEP-2433, KEP-3015).

use std::{
    collections::{BTreeMap, BTreeSet, btree_map, hash_map},
    net::SocketAddr,
};

use super::{
    Endpoints,
    slow_start::{GrowingShares, STEPS},
};
use crate::{
    explain::{EndpointState, KnownEndpoint},
    model::{HashSet, IpFamily, Protocol, ServicePortId},
    parsed::{
        endpoint::{NodeHint, Place, SliceEndpoint},
        slice::Slice,
    },
    proxier::Capabilities,
    state::{Endpoint, Pool, ResolvedServicePort, is_in},
};

/// The endpoints that are chosen for a Service port.
#[derive(Default)]
pub(crate) struct Pools {
    /// Endpoints of the `Cluster` policy; empty if the port does not use that policy.
    pub(crate) cluster: Pool,
    /// Endpoints of the `Local` policy; empty if the port does not use that policy.
    pub(crate) local: Pool,
    /// Whether any endpoint, on any node, could serve the port.
    pub(crate) has_any: bool,
    /// All endpoints that are [`Kept`], whether or not they get new flows.
    kept: Pool,
}

/// The endpoints that keep the connections or flows that they have, where others lose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kept {
    /// Nobody ends connections, so that none has to be known.
    Unknown,
    /// Those that serve.
    Serving,
    /// Those that serve, and if none does, those of all slices: an only endpoint that is not ready
    /// for a moment keeps its sessions, as no other could take them over.
    ServingOrAll,
    /// Those of all slices: an association of SCTP ends if the kernel forgets it, as no packet but
    /// its first ones makes another entry that leads to the same endpoint.
    All,
}

impl Pools {
    /// Chooses the endpoints of a Service port for the policies that the port uses; none if more
    /// would have to be looked at than [`Endpoints::left`].
    pub(crate) fn choose(
        id: &ServicePortId,
        endpoints: &mut Endpoints<'_>,
        zone: Option<&str>,
        uses_cluster: bool,
        uses_local: bool,
        weights: Weights,
        capabilities: &Capabilities,
    ) -> Self {
        let Endpoints {
            slices, growing, most, is_limited, left, left_out, ready_here, chosen, ..
        } = endpoints;
        let (places, numbers) = places(id, slices);
        let kept = match id.name.protocol {
            Protocol::Tcp if !capabilities.drains_tcp() => Kept::Unknown,
            Protocol::Udp if !capabilities.ends_flows() => Kept::ServingOrAll,
            Protocol::Tcp | Protocol::Udp => Kept::Serving,
            Protocol::Sctp => Kept::All,
        };
        let pools = match chosen.entry((places, uses_cluster, uses_local, kept)) {
            hash_map::Entry::Occupied(known) => known.into_mut(),
            hash_map::Entry::Vacant(vacant) => {
                let places = &vacant.key().0;
                let count = places.iter().map(|(place, _)| slices[*place].endpoints.len()).sum();
                let Some(rest) = left.checked_sub(count) else {
                    *left_out += 1;
                    return Self::default();
                };
                *left = rest;
                let endpoints = candidates(places, slices);
                if let Some(ready_here) = ready_here {
                    let ready = endpoints.iter().filter(|(_, e)| e.is_local() && e.takes_new());
                    ready_here.extend(ready.map(|(address, _)| address.ip()));
                }
                let cluster =
                    if uses_cluster { cluster_pool(&endpoints, zone) } else { Vec::new() };
                let local = if uses_local {
                    ready_or_terminating(&endpoints, SliceEndpoint::is_local)
                } else {
                    Vec::new()
                };
                let mut cut = HashSet::default();
                let mut limited = |mut pool: Vec<Endpoint>| {
                    cut.extend(pool.drain((*most).min(pool.len())..).map(|e| e.address));
                    pool
                };
                let mut weighed = |pool| weigh(limited(pool), *growing, weights);
                let (cluster, local) = (weighed(cluster), weighed(local));
                let has_any = !cluster.is_empty()
                    || endpoints.values().any(|e| e.takes_new() || e.is_last_resort());
                let serves = |e: &SliceEndpoint| e.ready || e.serving;
                let has_serving = endpoints.values().any(|e| serves(e));
                let is_kept = |e: &SliceEndpoint| match kept {
                    Kept::Unknown => false,
                    Kept::Serving => serves(e),
                    Kept::ServingOrAll => serves(e) || !has_serving,
                    Kept::All => true,
                };
                let mut kept = pool(&endpoints, is_kept);
                kept.retain(|e| !cut.contains(&e.address));
                // As many may end as there are others. What has no place loses connections.
                kept.truncate(most.saturating_mul(2));
                *is_limited |= !cut.is_empty();
                vacant.insert(Self { cluster, local, has_any, kept: evenly(kept) })
            }
        };
        let numbered = |pool: &Pool| {
            let endpoint = |endpoint: &Endpoint| {
                let mut address = endpoint.address;
                address.set_port(numbers[usize::from(address.port())]);
                Endpoint { address, ..*endpoint }
            };
            pool.iter().map(endpoint).collect()
        };
        Self {
            cluster: numbered(&pools.cluster),
            local: numbered(&pools.local),
            kept: numbered(&pools.kept),
            ..*pools
        }
    }

    /// Returns the endpoints that are [`Kept`] and are in neither of the given pools.
    pub(crate) fn draining(&self, cluster: &Pool, local: &Pool) -> Pool {
        if self.kept.is_empty() {
            return Pool::default();
        }
        let is_outside = |e: &&Endpoint| !is_in(cluster, e.address) && !is_in(local, e.address);
        self.kept.iter().filter(is_outside).copied().collect()
    }
}

/// Returns every endpoint of the port, with the reason why it is in neither pool of the `resolved`
/// port; `uses_cluster` is that of [`Pools::choose`].
pub(crate) fn examined<'s>(
    id: &ServicePortId,
    slices: impl Iterator<Item = &'s Slice>,
    zone: Option<&str>,
    uses_cluster: bool,
    resolved: Option<&ResolvedServicePort>,
) -> Vec<KnownEndpoint> {
    let slices: Vec<&Slice> = slices.filter(|slice| slice.family == id.family).collect();
    let endpoints = candidates(&ports(id, &slices), &slices);
    let scope = Scope::from_hints(&endpoints, zone);
    let is_chosen = |address| {
        resolved.is_some_and(|port| [&port.cluster, &port.local].iter().any(|p| is_in(p, address)))
    };
    let state = |address, e: &SliceEndpoint| match e {
        _ if is_chosen(address) && e.ready => EndpointState::Ready,
        _ if is_chosen(address) => EndpointState::LastResort,
        SliceEndpoint { weight: 0, .. } => EndpointState::ZeroWeight,
        SliceEndpoint { ready: false, terminating: false, .. } => EndpointState::NotReady,
        SliceEndpoint { ready: false, serving: false, .. } => EndpointState::Terminating,
        _ if !uses_cluster && !e.is_local() => EndpointState::NotLocal,
        SliceEndpoint { ready: false, .. } => EndpointState::Draining,
        _ if uses_cluster && !scope.allows(e) => match scope {
            Scope::SameNode => EndpointState::HintsOtherNode,
            Scope::SameZone(_) | Scope::Anywhere => EndpointState::HintsOtherZone,
        },
        // What a pool of its own kind lacks was cut off.
        _ if resolved.is_some_and(|port| {
            uses_cluster && !port.cluster.is_empty() || e.is_local() && !port.local.is_empty()
        }) =>
        {
            EndpointState::BeyondLimit
        }
        _ => EndpointState::NoFrontend,
    };
    let known = endpoints.into_iter().map(|(address, e)| KnownEndpoint {
        address,
        node: e.place.into(),
        state: state(address, e),
    });
    known.collect()
}

/// Returns the endpoints that are none of the port's, but may be meant to be: those of slices
/// without the port, and those of a family that the Service has no address in. Each has port 0.
pub(crate) fn strays<'s>(
    id: &ServicePortId,
    slices: impl Iterator<Item = &'s Slice>,
    has_family: impl Fn(IpFamily) -> bool,
) -> BTreeSet<KnownEndpoint> {
    let mut strays = BTreeSet::new();
    for slice in slices {
        let has_port = !slice.ports_of(&id.name).is_empty();
        let state = match slice.family == id.family {
            true if !has_port => EndpointState::NoSuchPort,
            false if !has_family(slice.family) => EndpointState::OtherFamily,
            _ => continue,
        };
        strays.extend(slice.endpoints.iter().map(|e| KnownEndpoint {
            address: SocketAddr::new(e.address, 0),
            node: e.place.into(),
            state,
        }));
    }
    strays
}

/// The slices that have a port, by their places in a list, each with a number for the port.
pub(crate) type Places = Vec<(usize, u16)>;

/// Returns the slices that have the port, with the numbers that the port has there.
fn ports(id: &ServicePortId, slices: &[&Slice]) -> Places {
    let ports = slices.iter().map(|slice| slice.ports_of(&id.name)).enumerate();
    ports.flat_map(|(place, ports)| ports.iter().map(move |port| (place, port.port))).collect()
}

/// Returns the slices that have the port, each with the place of its number among the port's
/// numbers, and these in order. Ports of the same places have the same endpoints but for the
/// numbers: a Service may have 20,000 ports of a thousand endpoints.
fn places(id: &ServicePortId, slices: &[&Slice]) -> (Places, Vec<u16>) {
    let mut places = ports(id, slices);
    let mut numbers: Vec<u16> = places.iter().map(|(_, number)| *number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for (_, number) in &mut places {
        *number = numbers.partition_point(|other| other < number) as u16;
    }
    (places, numbers)
}

/// Every endpoint of the port, one per address.
type Candidates<'s> = BTreeMap<SocketAddr, &'s SliceEndpoint>;

/// Collects the endpoints of the port. An address may be in several slices, or belong to a pod that
/// took the address over from a terminating pod. The entry that is better able to serve counts, so
/// that the order of slices does not matter.
fn candidates<'s>(places: &Places, slices: &[&'s Slice]) -> Candidates<'s> {
    let rank = |e: &SliceEndpoint| {
        (!e.terminating, e.ready, e.serving, e.is_local(), e.node_hint == NodeHint::Ours)
    };
    let mut found = Candidates::new();
    for &(place, number) in places {
        for endpoint in &slices[place].endpoints {
            match found.entry(SocketAddr::new(endpoint.address, number)) {
                btree_map::Entry::Vacant(vacant) => {
                    vacant.insert(endpoint);
                }
                btree_map::Entry::Occupied(mut known) => {
                    // Of equal rank: prefer by the rest, in any fixed order.
                    let rest = |e: &'s SliceEndpoint| (&e.zones, e.weight, e.place);
                    let (new, old) = (rank(endpoint), rank(known.get()));
                    if (new, rest(endpoint)) > (old, rest(known.get())) {
                        known.insert(endpoint);
                    }
                }
            }
        }
    }
    found
}

/// Returns the ready endpoints that topology allows; if no endpoint is ready, all endpoints that
/// still serve while they terminate, on any node.
fn cluster_pool(endpoints: &Candidates<'_>, zone: Option<&str>) -> Vec<Endpoint> {
    let scope = Scope::from_hints(endpoints, zone);
    let ready = pool(endpoints, |e| e.takes_new() && scope.allows(e));
    if ready.is_empty() { pool(endpoints, SliceEndpoint::is_last_resort) } else { ready }
}

fn ready_or_terminating(
    endpoints: &Candidates<'_>,
    is_wanted: impl Fn(&SliceEndpoint) -> bool,
) -> Vec<Endpoint> {
    let ready = pool(endpoints, |e| e.takes_new() && is_wanted(e));
    if ready.is_empty() { pool(endpoints, |e| e.is_last_resort() && is_wanted(e)) } else { ready }
}

/// Collects endpoints, with their weights as they are annotated, which may be 0.
fn pool(endpoints: &Candidates<'_>, is_in: impl Fn(&SliceEndpoint) -> bool) -> Vec<Endpoint> {
    endpoints
        .iter()
        .filter(|(_, endpoint)| is_in(endpoint))
        .map(|(&address, endpoint)| Endpoint {
            address,
            is_local: endpoint.is_local(),
            may_be_local: endpoint.place != Place::Elsewhere,
            weight: endpoint.weight.into(),
        })
        .collect()
}

/// The meaning of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// Shares, of which only the proportion counts.
    Proportion,
    /// Numbers of connections
    /// ([`LbAlgorithm::WeightedOverflow`](crate::model::LbAlgorithm::WeightedOverflow)).
    Connections,
}

/// The parts that a full weight has while endpoints ramp: as many as keep the sum of all weights
/// within [`MOST_PARTS`], or the fewest.
const PARTS: [u32; 3] = [STEPS, 5, 2];

/// See [`PARTS`]. A backend may need a slot for each part, and makes them when a ramp begins.
const MOST_PARTS: u64 = 5_000;

/// Divides the weights, none of which is 0, by their greatest common divisor, and then reduces
/// those of endpoints that ramp; weights that are numbers of connections stay as they are. While
/// endpoints ramp, the weights of the others stay the same, so that each step is a change of the
/// ramping endpoints alone.
fn weigh(mut endpoints: Vec<Endpoint>, growing: Option<&GrowingShares>, weights: Weights) -> Pool {
    if weights == Weights::Connections {
        return endpoints.into();
    }
    reduce(&mut endpoints);
    if let Some(growing) = growing.filter(|growing| !growing.is_empty()) {
        let sum: u64 = endpoints.iter().map(|endpoint| u64::from(endpoint.weight)).sum();
        let fits = PARTS.into_iter().find(|parts| sum * u64::from(*parts) <= MOST_PARTS);
        let parts = fits.unwrap_or(PARTS[PARTS.len() - 1]);
        let factor = |endpoint: &Endpoint| growing.factor(&endpoint.address.ip(), parts);
        let mut factors = endpoints.iter().map(factor);
        let first = factors.next();
        if factors.any(|factor| Some(factor) != first) {
            endpoints.iter_mut().for_each(|endpoint| endpoint.weight *= factor(endpoint));
        }
    }
    endpoints.into()
}

/// Divides the weights by their greatest common divisor.
fn reduce(endpoints: &mut [Endpoint]) {
    // Most weights are 1, which ends the search at once.
    let mut divisor = 0;
    for endpoint in endpoints.iter() {
        divisor = greatest_common_divisor(endpoint.weight, divisor);
        if divisor == 1 {
            return;
        }
    }
    endpoints.iter_mut().for_each(|endpoint| endpoint.weight /= divisor.max(1));
}

/// Gives all endpoints the same share.
pub(super) fn evenly(mut endpoints: Vec<Endpoint>) -> Pool {
    endpoints.iter_mut().for_each(|endpoint| endpoint.weight = 1);
    endpoints.into()
}

/// Whether endpoints have unequal shares.
pub(super) fn is_uneven(pool: &Pool) -> bool {
    pool.iter().any(|endpoint| endpoint.weight != 1)
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The topology scope of traffic, by the hints of the ready endpoints.
enum Scope<'z> {
    SameNode,
    SameZone(&'z str),
    Anywhere,
}

impl<'z> Scope<'z> {
    /// Returns the scope. Hints count only if every ready endpoint has hints and at least one is
    /// for this node or zone: a controller in the middle of adding hints must not cut traffic off.
    fn from_hints(endpoints: &Candidates<'_>, zone: Option<&'z str>) -> Self {
        let ready = || endpoints.values().filter(|endpoint| endpoint.takes_new());
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
