//! Limits of connections and flows: in all, for a Service, and for a client.
//!
//! The bounds are dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for
//! shared-memory packet switches", 1998): a Service port may take another slot only while the
//! number of free slots exceeds those that it holds. A Service that takes all that it may leaves
//! half of the places, two leave a third; a single client leaves two thirds. So there is always a
//! place for those who hold few, and nothing is set aside for them in advance. The protocols of a
//! Service are counted apart: flows of UDP, which have no end, must not keep a client from
//! connecting.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use switchyard_core::model::{Protocol, ServiceName, ServicePortId};

use crate::rate_limit::RateLimit;

/// The file descriptors of a connection: one to the client and one to the endpoint. A pipe has two
/// as well.
const DESCRIPTORS: usize = 2;

/// The places for connections and flows of all Service ports.
pub(crate) struct Slots {
    /// The most places, however many descriptors there are.
    most: usize,
    /// The file descriptors for connections, pipes and listeners.
    descriptors: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    connections: usize,
    pipes: usize,
    listeners: usize,
    refused: u64,
    services: HashMap<Owner, Service>,
    warned: RateLimit,
}

/// A Service, in one protocol.
type Owner = (ServiceName, Protocol);

#[derive(Default)]
struct Service {
    connections: usize,
    clients: HashMap<IpAddr, usize>,
    warned: RateLimit,
}

/// A place that is taken, until it is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    owner: Owner,
    client: IpAddr,
}

/// The place of a listener, until it is dropped.
pub(crate) struct ListenerSlot(Arc<Slots>);

/// The place of a pipe, until it is dropped.
pub(crate) struct PipeSlot(Arc<Slots>);

/// The limit that a connection or flow would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitReached {
    /// There is no place.
    All,
    /// The Service has as many places as are free.
    Service,
    /// The client has too many of the Service's places.
    Client,
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all Services together",
            Self::Service => "the Service",
            Self::Client => "the client",
        })
    }
}

impl Slots {
    /// Makes a number of places.
    #[cfg(test)]
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Self::within(usize::MAX, Some(total))
    }

    /// Makes as many places as file descriptors allow, but not more than `most`.
    pub(crate) fn within(descriptors: usize, most: Option<usize>) -> Arc<Self> {
        let most = most.unwrap_or(usize::MAX);
        Arc::new(Self { most, descriptors, taken: Mutex::default() })
    }

    /// Takes a place for a connection of a client to a Service port. Returns `None` if the client,
    /// the Service or all together have as many as they may, which is counted and logged.
    pub(crate) fn take(self: &Arc<Self>, port: &ServicePortId, client: IpAddr) -> Option<Slot> {
        self.try_take(port, client).inspect_err(|full| self.refuse(port, client, *full)).ok()
    }

    pub(crate) fn try_take(
        self: &Arc<Self>,
        port: &ServicePortId,
        client: IpAddr,
    ) -> Result<Slot, LimitReached> {
        let (owner, client) = (owner(port), source(client));
        let mut taken = self.lock();
        let free = self.free(&taken);
        let own = taken.services.get(&owner);
        let of_service = own.map_or(0, |own| own.connections);
        let of_client = own.and_then(|own| own.clients.get(&client)).copied().unwrap_or(0);
        if free == 0 {
            return Err(LimitReached::All);
        }
        if of_service >= free {
            return Err(LimitReached::Service);
        }
        if of_client >= free - of_service {
            return Err(LimitReached::Client);
        }
        taken.connections += 1;
        let own = taken.services.entry(owner.clone()).or_default();
        own.connections += 1;
        *own.clients.entry(client).or_default() += 1;
        Ok(Slot { slots: Arc::clone(self), owner, client })
    }

    pub(crate) fn refuse(&self, port: &ServicePortId, client: IpAddr, full: LimitReached) {
        let limit = self.limit();
        let mut taken = self.lock();
        taken.refused += 1;
        let Taken { services, warned, connections, .. } = &mut *taken;
        let warned = services.get_mut(&owner(port)).map_or(warned, |own| &mut own.warned);
        let is_due = warned.is_due();
        let connections = *connections;
        drop(taken);
        if is_due {
            tracing::warn!(
                service = %port.name, %client, connections, limit,
                "Connection limit reached: too many of {full}"
            );
        }
    }

    /// Takes a place for a listener. Returns `None` if listeners have half of the file descriptors.
    pub(crate) fn take_for_listener(self: &Arc<Self>) -> Option<ListenerSlot> {
        let mut taken = self.lock();
        (taken.listeners < self.descriptors / 2).then(|| {
            taken.listeners += 1;
            ListenerSlot(Arc::clone(self))
        })
    }

    /// Takes a place for a pipe. Pipes are a convenience, and leave four times as many places.
    pub(crate) fn take_for_pipe(self: &Arc<Self>) -> Option<PipeSlot> {
        let mut taken = self.lock();
        (taken.pipes < self.free(&taken) / 4).then(|| {
            taken.pipes += 1;
            PipeSlot(Arc::clone(self))
        })
    }

    /// The most connections and flows that there may be.
    pub(crate) fn limit(&self) -> usize {
        self.total(&self.lock())
    }

    /// The number of connections and flows that there are.
    pub(crate) fn taken(&self) -> usize {
        self.lock().connections
    }

    /// The number of connections and flows that were refused since the start.
    pub(crate) fn refused(&self) -> u64 {
        self.lock().refused
    }

    fn total(&self, taken: &Taken) -> usize {
        self.most.min((self.descriptors - taken.listeners) / DESCRIPTORS)
    }

    fn free(&self, taken: &Taken) -> usize {
        self.total(taken).saturating_sub(taken.connections + taken.pipes)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner(port: &ServicePortId) -> Owner {
    (port.name.service.clone(), port.name.protocol)
}

/// The key of a client: an address, or all addresses that begin like an IPv6 address, since one
/// host can have them all (RFC 4291, section 2.5.4).
pub(crate) fn source(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.connections -= 1;
        let Some(own) = taken.services.get_mut(&self.owner) else { return };
        own.connections -= 1;
        if let Some(of_client) = own.clients.get_mut(&self.client) {
            *of_client -= 1;
            if *of_client == 0 {
                own.clients.remove(&self.client);
            }
        }
        if own.connections == 0 {
            taken.services.remove(&self.owner);
        }
    }
}

impl Drop for ListenerSlot {
    fn drop(&mut self) {
        self.0.lock().listeners -= 1;
    }
}

impl Drop for PipeSlot {
    fn drop(&mut self) {
        self.0.lock().pipes -= 1;
    }
}

#[cfg(test)]
mod tests {
    use switchyard_core::model::{IpFamily, ServicePortName};

    use super::*;

    fn client(i: u8) -> IpAddr {
        [192, 0, 2, i].into()
    }

    fn port(name: &str, protocol: Protocol) -> ServicePortId {
        let service = ServiceName::new("default", name);
        let name = ServicePortName { service, port: "p".into(), protocol };
        ServicePortId { name, family: IpFamily::V4 }
    }

    fn service(name: &str) -> ServicePortId {
        port(name, Protocol::Tcp)
    }

    /// Takes places until one is refused.
    fn fill(slots: &Arc<Slots>, name: &str, clients: &[u8]) -> (Vec<Slot>, LimitReached) {
        let mut held = Vec::new();
        for i in clients.iter().cycle() {
            match slots.try_take(&service(name), client(*i)) {
                Ok(slot) => held.push(slot),
                Err(full) => return (held, full),
            }
        }
        unreachable!("there are clients")
    }

    #[test]
    fn a_client_alone_leaves_two_thirds() {
        let slots = Slots::new(900);
        let (held, full) = fill(&slots, "web", &[1]);
        assert_eq!((held.len(), full), (300, LimitReached::Client));
        assert!(slots.try_take(&service("web"), client(2)).is_ok(), "another client");
        assert!(slots.try_take(&service("api"), client(1)).is_ok(), "another Service");
    }

    #[test]
    fn the_flows_of_a_client_leave_places_for_its_connections() {
        let slots = Slots::new(900);
        let flow = || slots.try_take(&port("dns", Protocol::Udp), client(1)).ok();
        let flows: Vec<Slot> = std::iter::from_fn(flow).collect();
        assert_eq!(flows.len(), 300);
        let (connections, full) = fill(&slots, "dns", &[1]);
        assert_eq!(
            (connections.len(), full),
            (200, LimitReached::Client),
            "a third of what is left"
        );
    }

    #[test]
    fn services_leave_places_for_others() {
        let slots = Slots::new(900);
        let many: Vec<u8> = (0..=255).collect();
        let (one, full) = fill(&slots, "web", &many);
        // The last free places of the Service are too few for clients that hold one already.
        assert!((440..=450).contains(&one.len()), "{}", one.len());
        assert_ne!(full, LimitReached::All);
        let (two, _) = fill(&slots, "api", &many);
        assert!(two.len() > 200, "{}", two.len());
        assert!(slots.try_take(&service("dns"), client(1)).is_ok());
        drop((one, two));
        assert_eq!(slots.taken(), 0);
        assert!(
            slots.lock().services.is_empty(),
            "nothing is kept of Services without connections"
        );
        assert_eq!(fill(&slots, "web", &[1]).0.len(), 300, "all places are free again");
    }

    #[test]
    fn the_addresses_of_a_network_of_hosts_are_one_client() {
        let slots = Slots::new(90);
        let take = |i: u16| {
            let client = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, i);
            slots.try_take(&service("web"), client.into())
        };
        let held: Vec<Slot> = (0..100).map_while(|i| take(i).ok()).collect();
        assert_eq!(held.len(), 30);
        let other = Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 1);
        assert!(slots.try_take(&service("web"), other.into()).is_ok());
    }

    #[test]
    fn a_few_places_serve_someone() {
        let slots = Slots::new(1);
        let held = slots.try_take(&service("web"), client(1));
        assert!(held.is_ok());
        assert_eq!(slots.try_take(&service("api"), client(2)).err(), Some(LimitReached::All));
        assert!(Slots::new(0).try_take(&service("web"), client(1)).is_err());
    }

    #[test]
    fn listeners_and_pipes_have_descriptors_too() {
        let slots = Slots::within(100, None);
        assert_eq!(slots.limit(), 50);
        let listeners: Vec<_> = (0..60).map_while(|_| slots.take_for_listener()).collect();
        assert_eq!(listeners.len(), 50);
        assert_eq!(slots.limit(), 25);
        drop(listeners);
        assert_eq!(slots.limit(), 50);
        let pipes: Vec<_> = (0..60).map_while(|_| slots.take_for_pipe()).collect();
        assert_eq!(pipes.len(), 10);
        let many: Vec<u8> = (0..=255).collect();
        assert_eq!(fill(&slots, "web", &many).0.len(), 20, "half of the others");
    }

    #[test]
    fn refusals_are_counted() {
        let slots = Slots::new(0);
        assert!(slots.take(&service("web"), client(1)).is_none());
        assert_eq!(slots.refused(), 1);
    }
}
