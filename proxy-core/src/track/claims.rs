//! Which Service port has an address and port that several claim.
//!
//! Two Services may name the same external IP and port, the same node port, or another Service's
//! cluster IP as an external IP. One of them gets it, and it is the same one whatever the order in
//! which they came: first those whose cluster IP it is (an external IP must not take over another
//! Service's cluster IP, CVE-2020-8554), then load balancer addresses, external IPs, and among
//! equals the Service that was created first.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use crate::{
    model::{IpFamily, Protocol, ServicePortId},
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
        let rank = match at {
            FrontendAddress::ClusterIp(_) => 0,
            FrontendAddress::LoadBalancerIp(_) => 1,
            FrontendAddress::ExternalIp(_) => 2,
            FrontendAddress::NodePort => 3,
        };
        Self { rank, age_unknown: created.is_empty(), created: created.clone(), id: id.clone() }
    }

    /// Who claims.
    pub(crate) fn id(&self) -> &ServicePortId {
        &self.id
    }
}

/// All claims, by listener.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    by_listener: HashMap<ListenerKey, Vec<Claim>>,
}

impl Claims {
    /// Adds a claim. Returns the winner before, if that changed it.
    pub(crate) fn add(&mut self, key: ListenerKey, claim: Claim) -> Option<ServicePortId> {
        let claims = self.by_listener.entry(key).or_default();
        let before = claims.first().cloned();
        if let Err(place) = claims.binary_search(&claim) {
            claims.insert(place, claim);
        }
        before.filter(|before| *before != claims[0]).map(|before| before.id)
    }

    /// Takes a claim back. Returns the winner after, if that changed it.
    pub(crate) fn remove(&mut self, key: &ListenerKey, claim: &Claim) -> Option<ServicePortId> {
        let claims = self.by_listener.get_mut(key)?;
        let place = claims.binary_search(claim).ok()?;
        claims.remove(place);
        match claims.first() {
            Some(first) if place == 0 => Some(first.id.clone()),
            Some(_) => None,
            None => {
                self.by_listener.remove(key);
                None
            }
        }
    }

    /// Who has the listener.
    pub(crate) fn winner(&self, key: &ListenerKey) -> Option<&Claim> {
        self.by_listener.get(key)?.first()
    }
}
