//! Conflicts: the Service port that has an address and port which several Service ports name.
//!
//! Two Services may name the same external IP and port, the same node port, or another Service's
//! cluster IP as an external IP. One Service wins the address and port, and the winner does not
//! depend on the order of arrival: cluster IPs come first (an external IP must not take over
//! another Service's cluster IP, CVE-2020-8554), then load balancer addresses, then external IPs,
//! and among equals the Service that was created first.

use std::{collections::hash_map::Entry, net::IpAddr};

use crate::{
    explain::LostFrontend,
    model::{HashMap, HashSet, IpFamily, Protocol, ServiceName, ServicePortId, shrink_table},
    objects::Timestamp,
    state::FrontendAddress,
};

/// An address, protocol and port; `None` stands for the node's own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListenerKey {
    pub(crate) ip: Option<IpAddr>,
    pub(crate) family: IpFamily,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

impl ListenerKey {
    pub(crate) fn new(id: &ServicePortId, at: FrontendAddress, port: u16) -> Self {
        Self { ip: at.ip(), family: id.family, protocol: id.name.protocol, port }
    }
}

/// A Service port that names a listener; the smallest of a listener's contenders has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Contender {
    rank: u8,
    /// In the far future if it is unknown.
    created: Timestamp,
    id: ServicePortId,
}

impl Contender {
    pub(crate) fn new(id: &ServicePortId, at: FrontendAddress, created: Timestamp) -> Self {
        let created = match created.is_unknown() {
            true => Timestamp::from_seconds(i64::MAX),
            false => created,
        };
        Self { rank: rank(at), created, id: id.clone() }
    }

    pub(crate) fn id(&self) -> &ServicePortId {
        &self.id
    }

    /// Whether this is the Service port `id`, which contends by its frontend address `at`.
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

/// The contenders for one listener, in order; the first wins. Hardly any listener has two, so one
/// is kept without its own allocation.
#[derive(Debug)]
enum Contenders {
    One(Contender),
    Several(Vec<Contender>),
}

impl Contenders {
    fn as_slice(&self) -> &[Contender] {
        match self {
            Self::One(contender) => std::slice::from_ref(contender),
            Self::Several(contenders) => contenders,
        }
    }
}

/// All contenders, by listener.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_listener: HashMap<ListenerKey, Contenders>,
}

impl Listeners {
    /// Adds a contender. If the winner changes, adds every other contender to `displaced`: the old
    /// winner lost the listener, and the others now lose to a different Service.
    pub(crate) fn add(
        &mut self,
        key: ListenerKey,
        contender: Contender,
        displaced: &mut HashSet<ServiceName>,
    ) {
        let contenders = match self.by_listener.entry(key) {
            Entry::Vacant(vacant) => {
                vacant.insert(Contenders::One(contender));
                return;
            }
            Entry::Occupied(known) => known.into_mut(),
        };
        let Err(place) = contenders.as_slice().binary_search(&contender) else { return };
        if place == 0 {
            displaced.extend(services(contenders.as_slice()));
        }
        match contenders {
            Contenders::One(first) => {
                let mut several = vec![first.clone()];
                several.insert(place, contender);
                *contenders = Contenders::Several(several);
            }
            Contenders::Several(several) => several.insert(place, contender),
        }
    }

    /// Gives back the room that listeners had which are gone.
    pub(crate) fn shrink(&mut self) {
        shrink_table(&mut self.by_listener);
    }

    /// Removes a contender. If the winner changes, adds every remaining contender to `displaced`.
    pub(crate) fn remove(
        &mut self,
        key: &ListenerKey,
        contender: &Contender,
        displaced: &mut HashSet<ServiceName>,
    ) {
        let Some(contenders) = self.by_listener.get_mut(key) else { return };
        let Ok(place) = contenders.as_slice().binary_search(contender) else { return };
        let Contenders::Several(several) = contenders else {
            self.by_listener.remove(key);
            return;
        };
        several.remove(place);
        if place == 0 {
            displaced.extend(services(several));
        }
        if let [last] = several.as_slice() {
            *contenders = Contenders::One(last.clone());
        }
    }

    /// Divides the addresses and ports that a Service port wants into the addresses that the port
    /// has, sorted, and those that belong to other Service ports.
    pub(crate) fn divide(
        &self,
        id: &ServicePortId,
        wanted: impl Iterator<Item = (FrontendAddress, u16)>,
    ) -> (Vec<FrontendAddress>, Vec<LostFrontend>) {
        let (mut owned, mut lost) = (Vec::new(), Vec::new());
        for (at, port) in wanted {
            match self.winner(&ListenerKey::new(id, at, port)) {
                Some(contender) if contender.is_of(id, at) => owned.push(at),
                // An address that the Service itself names twice is served as the kind that ranks
                // first.
                Some(contender) if contender.id == *id => {}
                Some(contender) => lost.push(LostFrontend { at, port, to: contender.id.clone() }),
                None => {}
            }
        }
        owned.sort_unstable();
        (owned, lost)
    }

    /// Returns the contender that wins the listener.
    pub(crate) fn winner(&self, key: &ListenerKey) -> Option<&Contender> {
        self.by_listener.get(key)?.as_slice().first()
    }
}

fn services(contenders: &[Contender]) -> impl Iterator<Item = ServiceName> {
    contenders.iter().map(|contender| contender.id.name.service.clone())
}
