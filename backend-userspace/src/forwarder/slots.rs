//! Limits of connections and flows: in all, for a Service, and for a client.
//!
//! The bounds are dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for
//! shared-memory packet switches", 1998): a Service port may take another slot only while the
//! number of free slots exceeds those that it holds. So there is always a place for those who hold
//! few, and nothing is set aside for them in advance. The protocols of a Service are counted apart:
//! flows of UDP, which have no end, must not keep a client from connecting.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use switchyard_core::model::{Protocol, ServiceName, ServicePortId};

use crate::forwarder::{
    counters::Counters,
    limits::{LimitReached, count_down},
    port::{Port, Warning},
};

/// The file descriptors of a connection: one to the client and one to the endpoint. A pipe has two
/// as well.
const DESCRIPTORS: usize = 2;

/// The number of sockets of listeners up to which listeners have one for each thread. Each takes
/// some 4 KiB of the kernel.
const FEW_LISTENERS: usize = 4096;

/// The places for connections and flows of all Service ports.
pub(crate) struct Slots {
    /// The most places, however many descriptors there are.
    most: usize,
    /// The file descriptors for connections, pipes and listeners.
    descriptors: usize,
    taken: Mutex<Taken>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Taken {
    connections: usize,
    pipes: usize,
    listeners: usize,
    services: HashMap<Owner, Service>,
    /// The connections of each source, of all Services.
    sources: HashMap<IpAddr, usize>,
}

type Owner = (ServiceName, Protocol);

#[derive(Default)]
struct Service {
    connections: usize,
    sources: HashMap<IpAddr, usize>,
}

/// A place that is taken, until it is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    owner: Owner,
    source: IpAddr,
}

/// The place of a listener, until it is dropped.
pub(crate) struct ListenerSlot(Arc<Slots>);

/// The place of a pipe, until it is dropped.
pub(crate) struct PipeSlot(Arc<Slots>);

impl Slots {
    /// Makes a number of places.
    #[cfg(test)]
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Self::within(usize::MAX, Some(total), Arc::default())
    }

    /// Makes as many places as file descriptors allow, but not more than `most`.
    pub(crate) fn within(
        descriptors: usize,
        most: Option<usize>,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        let most = most.unwrap_or(usize::MAX);
        Arc::new(Self { most, descriptors, taken: Mutex::default(), counters })
    }

    /// Takes a place for a connection to a Service port, of a client by whose
    /// [source](crate::forwarder::clients::LocalClients::source) connections are counted.
    pub(crate) fn take(
        self: &Arc<Self>,
        port: &ServicePortId,
        source: IpAddr,
    ) -> Result<Slot, LimitReached> {
        let owner = owner(port);
        let mut taken = self.lock();
        let free = self.free(&taken);
        let own = taken.services.get(&owner);
        let of_service = own.map_or(0, |own| own.connections);
        let there = own.and_then(|own| own.sources.get(&source)).copied().unwrap_or(0);
        let everywhere = taken.sources.get(&source).copied().unwrap_or(0);
        if free == 0 {
            return Err(LimitReached::All);
        }
        if of_service >= free {
            return Err(LimitReached::Service);
        }
        if there >= free - of_service || everywhere >= free {
            return Err(LimitReached::Client);
        }
        taken.connections += 1;
        self.counters.set_active(taken.connections);
        let own = taken.services.entry(owner.clone()).or_default();
        own.connections += 1;
        *own.sources.entry(source).or_default() += 1;
        *taken.sources.entry(source).or_default() += 1;
        Ok(Slot { slots: Arc::clone(self), owner, source })
    }

    /// Counts and logs that a client has no place.
    pub(crate) fn refuse(&self, port: &Port, client: IpAddr, full: LimitReached) {
        self.counters.count(full.counted());
        if port.is_due(Warning::Refused) {
            let is_of_places = full != LimitReached::Ports;
            let connections = is_of_places.then(|| self.taken());
            let limit = is_of_places.then(|| self.limit());
            tracing::warn!(
                service = %port.id().name, %client, connections, limit,
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

    /// Takes a place for one more socket of a listener, as long as all have few.
    pub(crate) fn take_for_another_socket(self: &Arc<Self>) -> Option<ListenerSlot> {
        let most = FEW_LISTENERS.min(self.descriptors / 128);
        if self.listeners() < most { self.take_for_listener() } else { None }
    }

    /// The number of listeners that have a place.
    pub(crate) fn listeners(&self) -> usize {
        self.lock().listeners
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

    /// The number of connections that have an end: all but flows of UDP.
    pub(crate) fn streams(&self) -> usize {
        let taken = self.lock();
        let streams = taken.services.iter().filter(|((_, protocol), _)| *protocol != Protocol::Udp);
        streams.map(|(_, service)| service.connections).sum()
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

impl Slot {
    /// The source that the place counts for.
    pub(crate) fn source(&self) -> IpAddr {
        self.source
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        taken.connections -= 1;
        self.slots.counters.set_active(taken.connections);
        let Some(own) = taken.services.get_mut(&self.owner) else { return };
        own.connections -= 1;
        count_down(&mut own.sources, self.source);
        if own.connections == 0 {
            taken.services.remove(&self.owner);
        }
        count_down(&mut taken.sources, self.source);
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
    use switchyard_core::testing::port_id;

    use super::*;
    use crate::forwarder::{
        counters::Counted,
        testing::{resolved, serving, warnings},
    };

    fn client(i: u8) -> IpAddr {
        [192, 0, 2, i].into()
    }

    fn service(name: &str) -> ServicePortId {
        port_id(name, Protocol::Tcp)
    }

    /// Takes places until one is refused.
    fn fill(slots: &Arc<Slots>, name: &str, clients: &[u8]) -> (Vec<Slot>, LimitReached) {
        let mut held = Vec::new();
        for i in clients.iter().cycle() {
            match slots.take(&service(name), client(*i)) {
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
        assert!(slots.take(&service("web"), client(2)).is_ok(), "another client");
        assert!(slots.take(&service("api"), client(1)).is_ok(), "another Service");
    }

    #[test]
    fn the_flows_of_a_client_leave_places_for_its_connections() {
        let slots = Slots::new(900);
        let flow = || slots.take(&port_id("dns", Protocol::Udp), client(1)).ok();
        let flows: Vec<Slot> = std::iter::from_fn(flow).collect();
        assert_eq!(flows.len(), 300);
        let (connections, full) = fill(&slots, "dns", &[1]);
        assert_eq!(
            (connections.len(), full),
            (150, LimitReached::Client),
            "half of all, with the flows"
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
        assert!(slots.take(&service("dns"), client(1)).is_ok());
        drop((one, two));
        assert_eq!(slots.taken(), 0);
        let taken = slots.lock();
        assert!(taken.services.is_empty() && taken.sources.is_empty(), "nothing is kept");
        drop(taken);
        assert_eq!(fill(&slots, "web", &[1]).0.len(), 300, "all places are free again");
    }

    #[test]
    fn a_client_of_many_services_leaves_half() {
        let slots = Slots::new(900);
        let held = (0..12).flat_map(|i| fill(&slots, &format!("web-{i}"), &[1]).0);
        let held: Vec<Slot> = held.collect();
        assert_eq!(held.len(), 450);
        let others = |i| slots.take(&service("api"), client(i));
        assert_eq!((2..40).map_while(|i| others(i).ok()).count(), 38);
    }

    #[test]
    fn clients_without_a_place_are_logged_once_though_others_come_and_go() {
        let slots = Slots::new(1);
        let port = serving(resolved(Protocol::Tcp, &[]), ([127, 0, 0, 1], 80).into()).port;
        let logged = warnings(|| {
            for _ in 0..3 {
                let held = slots.take(port.id(), client(1));
                slots.refuse(&port, client(2), LimitReached::All);
                drop(held);
            }
        });
        assert_eq!((logged.len(), slots.counters.get(Counted::RefusedAll)), (1, 3));
    }

    #[test]
    fn a_few_places_serve_someone() {
        let slots = Slots::new(1);
        let held = slots.take(&service("web"), client(1));
        assert!(held.is_ok());
        assert_eq!(slots.take(&service("api"), client(2)).err(), Some(LimitReached::All));
        assert!(Slots::new(0).take(&service("web"), client(1)).is_err());
    }

    #[test]
    fn listeners_and_pipes_have_descriptors_too() {
        let slots = Slots::within(100, None, Arc::default());
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
}
