//! Claims: which Service port has an address and port that several Service ports name.
//!
//! Two Services may name the same external IP and port, the same node port, or another Service's
//! cluster IP as an external IP. One Service wins the address and port, and the winner does not
//! depend on the order of arrival: cluster IPs come first (an external IP must not take over
//! another Service's cluster IP, CVE-2020-8554), then load balancer addresses, then external IPs,
//! and among equals the Service that was created first.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    model::{IpFamily, Protocol, ServiceName, ServicePortId},
    state::FrontendAddress,
};

/// An address, protocol and port; `None` stands for the node's own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListenerKey {
    ip: Option<IpAddr>,
    family: IpFamily,
    protocol: Protocol,
    port: u16,
}

impl ListenerKey {
    pub(crate) fn new(id: &ServicePortId, at: FrontendAddress, port: u16) -> Self {
        Self { ip: at.ip(), family: id.family, protocol: id.name.protocol, port }
    }
}

/// One Service port's claim; the smallest of a listener's claims wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    rank: u8,
    /// Services of unknown age come last.
    age_unknown: bool,
    created: Arc<str>,
    id: ServicePortId,
}

impl Claim {
    pub(crate) fn new(id: &ServicePortId, at: FrontendAddress, created: &Arc<str>) -> Self {
        Self {
            rank: rank(at),
            age_unknown: created.is_empty(),
            created: created.clone(),
            id: id.clone(),
        }
    }

    /// The Service port that claims.
    pub(crate) fn id(&self) -> &ServicePortId {
        &self.id
    }

    /// Whether this is the claim of the Service port `id` because of its listener `at`.
    pub(crate) fn is_of(&self, id: &ServicePortId, at: FrontendAddress) -> bool {
        self.rank == rank(at) && self.id == *id
    }
}

fn rank(at: FrontendAddress) -> u8 {
    match at {
        FrontendAddress::ClusterIp(_) => 0,
        FrontendAddress::LoadBalancerIp(_) => 1,
        FrontendAddress::ExternalIp(_) => 2,
        FrontendAddress::NodePort => 3,
    }
}

/// The claims to one listener, in order; the first wins. Hardly any listener has two, so one is
/// kept without its own allocation.
#[derive(Debug)]
enum Claimants {
    One(Claim),
    Several(Vec<Claim>),
}

impl Claimants {
    fn as_slice(&self) -> &[Claim] {
        match self {
            Self::One(claim) => std::slice::from_ref(claim),
            Self::Several(claims) => claims,
        }
    }
}

/// All claims, by listener.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    by_listener: HashMap<ListenerKey, Claimants>,
}

impl Claims {
    /// Adds a claim. If the winner changes, adds every other claimant to `displaced`: the old
    /// winner lost the listener, and the others now lose to a different Service.
    pub(crate) fn add(
        &mut self,
        key: ListenerKey,
        claim: Claim,
        displaced: &mut HashSet<ServiceName>,
    ) {
        let claimants = match self.by_listener.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Claimants::One(claim));
                return;
            }
            Entry::Occupied(known) => known.into_mut(),
        };
        let Err(place) = claimants.as_slice().binary_search(&claim) else { return };
        if place == 0 {
            displaced.extend(services(claimants.as_slice()));
        }
        match claimants {
            Claimants::One(first) => {
                let mut claims = vec![first.clone()];
                claims.insert(place, claim);
                *claimants = Claimants::Several(claims);
            }
            Claimants::Several(claims) => claims.insert(place, claim),
        }
    }

    /// Removes a claim. If the winner changes, adds every remaining claimant to `displaced`.
    pub(crate) fn remove(
        &mut self,
        key: &ListenerKey,
        claim: &Claim,
        displaced: &mut HashSet<ServiceName>,
    ) {
        let Some(claimants) = self.by_listener.get_mut(key) else { return };
        let Ok(place) = claimants.as_slice().binary_search(claim) else { return };
        let Claimants::Several(claims) = claimants else {
            self.by_listener.remove(key);
            return;
        };
        claims.remove(place);
        if place == 0 {
            displaced.extend(services(claims));
        }
        if let [last] = claims.as_slice() {
            *claimants = Claimants::One(last.clone());
        }
    }

    /// Returns the claim that wins the listener.
    pub(crate) fn winner(&self, key: &ListenerKey) -> Option<&Claim> {
        self.by_listener.get(key)?.as_slice().first()
    }
}

fn services(claims: &[Claim]) -> impl Iterator<Item = ServiceName> {
    claims.iter().map(|claim| claim.id.name.service.clone())
}
