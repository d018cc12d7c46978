//! The ports that flows come from. Flows to different endpoints share ports: without that, all
//! flows and all other programs together could have some 28,000. A port rests after a flow, before
//! it leads to the same endpoint again: a late answer to one client must not reach another.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use socket2::Socket;

use crate::forwarder::{
    balance::random::below,
    limits::{LimitReached, count_down},
    platform::Platform,
};

/// The time that a port rests after a flow, if there are others.
const REST: Duration = Duration::from_secs(5);

/// The interval at which the system is asked for its ports, which may change.
const ASK: Duration = Duration::from_secs(10);

/// The ports that Services listen at: those of the proxy's own sockets, and node ports, as long as
/// the cluster has Kubernetes' default range.
const LISTENERS: RangeInclusive<u16> = 20_000..=32_767;

/// The ports of all flows.
#[derive(Default)]
pub(crate) struct SourcePorts(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    /// The ports that flows may have. Empty where the system chooses the ports.
    ports: Vec<u16>,
    asked: Option<Instant>,
    endpoints: HashMap<SocketAddr, Endpoint>,
    sharers: HashMap<Place, Sharers>,
}

/// A port, and whether it is one of IPv6.
type Place = (bool, u16);

/// The flows that have a port.
#[derive(Default)]
struct Sharers {
    flows: usize,
    /// Whether one of them has bound the port, so that no other program has it.
    is_bound: bool,
}

#[derive(Default)]
struct Endpoint {
    /// The ports that flows have, and those that rest.
    taken: HashSet<u16>,
    flows: usize,
    sources: HashMap<IpAddr, usize>,
    /// The ports that rest, and since when.
    resting: VecDeque<(Instant, u16)>,
}

/// The port of a flow, until it is dropped.
pub(crate) struct SourcePort {
    ports: Arc<SourcePorts>,
    endpoint: SocketAddr,
    source: IpAddr,
    port: u16,
    /// Whether no other flow has bound the port.
    is_alone: bool,
}

impl SourcePorts {
    /// Takes a port that no flow to the endpoint has, or `None` where the system chooses. The limit
    /// is a dynamic threshold as in [`slots`](crate::forwarder::slots): a client may have as many as are free.
    pub(crate) fn take(
        self: &Arc<Self>,
        platform: &dyn Platform,
        endpoint: SocketAddr,
        source: IpAddr,
    ) -> Result<Option<SourcePort>, LimitReached> {
        self.take_at(Instant::now(), platform, endpoint, source)
    }

    fn take_at(
        self: &Arc<Self>,
        now: Instant,
        platform: &dyn Platform,
        endpoint: SocketAddr,
        source: IpAddr,
    ) -> Result<Option<SourcePort>, LimitReached> {
        let mut taken = self.lock();
        if taken.asked.is_none_or(|asked| now - asked >= ASK) {
            // Others take ports meanwhile, as far as some are known.
            if !taken.ports.is_empty() {
                taken.asked = Some(now);
            }
            drop(taken);
            let found = for_flows(platform.ephemeral_ports());
            taken = self.lock();
            // A system that could be asked before is out of descriptors for a moment.
            if !found.is_empty() {
                taken.ports = found;
            }
            taken.asked = Some(now);
            // Here, as it takes a look at each endpoint.
            taken.endpoints.retain(|_, of_endpoint| of_endpoint.is_needed(now));
        }
        let Taken { ports, endpoints, sharers, .. } = &mut *taken;
        if ports.is_empty() {
            return Ok(None);
        }
        let of_endpoint = endpoints.entry(endpoint).or_default();
        let free = most(ports).saturating_sub(of_endpoint.flows);
        let of_source = of_endpoint.sources.get(&source).copied().unwrap_or(0);
        if free == 0 {
            return Err(LimitReached::Endpoint);
        }
        if of_source >= free {
            return Err(LimitReached::Client);
        }
        let port = of_endpoint.free(now, ports).ok_or(LimitReached::Endpoint)?;
        of_endpoint.taken.insert(port);
        of_endpoint.flows += 1;
        *of_endpoint.sources.entry(source).or_default() += 1;
        let sharers = sharers.entry((endpoint.is_ipv6(), port)).or_default();
        sharers.flows += 1;
        let is_alone = !sharers.is_bound;
        Ok(Some(SourcePort { ports: Arc::clone(self), endpoint, source, port, is_alone }))
    }

    /// Whether flows have as many ports as there may be of an endpoint.
    pub(crate) fn are_taken(&self, endpoint: SocketAddr) -> bool {
        let taken = self.lock();
        let flows = taken.endpoints.get(&endpoint).map_or(0, |of_endpoint| of_endpoint.flows);
        flows >= most(&taken.ports)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns those of the system's ports that flows may have: the upper two thirds, most of which are
/// far from those that servers have. Less those that Services listen at, unless that would leave
/// nearly none: the system would choose such a port as well.
fn for_flows(mut ports: Vec<u16>) -> Vec<u16> {
    let mut upper = ports.split_off(ports.len() / 3);
    let are_left = upper.iter().filter(|port| !LISTENERS.contains(port)).count();
    if are_left > upper.len() / 8 {
        upper.retain(|port| !LISTENERS.contains(port));
    }
    upper
}

/// The most flows of an endpoint.
fn most(ports: &[u16]) -> usize {
    ports.len() - ports.len() / 8
}

impl Endpoint {
    /// Returns a port that is free, else the one that has rested the longest. Others, who could
    /// answer in the place of the endpoint, cannot foresee a free one.
    fn free(&mut self, now: Instant, ports: &[u16]) -> Option<u16> {
        while let Some((_, port)) = self.resting.pop_front_if(|(since, _)| now - *since >= REST) {
            self.taken.remove(&port);
        }
        let start = below(ports.len() as u64) as usize;
        let mut from_start = ports[start..].iter().chain(&ports[..start]);
        // Not in vain: everybody waits for the lock.
        let has_free = self.taken.len() < ports.len();
        let free = has_free.then(|| from_start.find(|port| !self.taken.contains(port))).flatten();
        let free = free.copied();
        // The system may have reserved a port that rests.
        let mut rested = || {
            let at = self.resting.iter().position(|(_, port)| ports.binary_search(port).is_ok())?;
            self.resting.remove(at)
        };
        free.or_else(|| rested().map(|(_, port)| port))
    }

    /// Whether the endpoint has flows, or ports that rest.
    fn is_needed(&self, now: Instant) -> bool {
        self.flows > 0 || self.resting.back().is_some_and(|(since, _)| now - *since < REST)
    }
}

impl SourcePort {
    /// Binds a socket that is to be connected to the endpoint, as that of a client or to all
    /// addresses of this node. The port of another program is not
    /// shared: the first flow of a port binds it alone. Nor is the port of a flow, unless with a
    /// program of the same user that asks for it.
    pub(crate) fn bind(
        &self,
        platform: &dyn Platform,
        socket: &Socket,
        client: Option<IpAddr>,
    ) -> io::Result<()> {
        let any: IpAddr = match self.endpoint {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        if any.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if !self.is_alone {
            platform.share_port(socket)?;
        }
        match client {
            Some(client) => platform.bind_as(socket, SocketAddr::new(client, self.port))?,
            None => socket.bind(&SocketAddr::new(any, self.port).into())?,
        }
        if self.is_alone {
            platform.share_port(socket)?;
            let mut taken = self.ports.lock();
            let sharers = taken.sharers.get_mut(&self.place());
            sharers.into_iter().for_each(|sharers| sharers.is_bound = true);
        }
        Ok(())
    }

    fn place(&self) -> Place {
        (self.endpoint.is_ipv6(), self.port)
    }
}

impl Drop for SourcePort {
    fn drop(&mut self) {
        let place = self.place();
        let mut taken = self.ports.lock();
        let Taken { endpoints, sharers, .. } = &mut *taken;
        if let Some(of_port) = sharers.get_mut(&place) {
            of_port.flows -= 1;
            if of_port.flows == 0 {
                sharers.remove(&place);
            }
        }
        let Some(of_endpoint) = endpoints.get_mut(&self.endpoint) else { return };
        of_endpoint.flows -= 1;
        of_endpoint.resting.push_back((Instant::now(), self.port));
        count_down(&mut of_endpoint.sources, self.source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system with these ports.
    struct System(RangeInclusive<u16>);

    impl Platform for System {
        fn ephemeral_ports(&self) -> Vec<u16> {
            self.0.clone().collect()
        }
    }

    /// A system that takes its time, in which another flow begins.
    struct Slow(Arc<SourcePorts>);

    impl Platform for Slow {
        fn ephemeral_ports(&self) -> Vec<u16> {
            drop(self.0.0.try_lock().expect("nobody has to wait for the system"));
            Vec::new()
        }
    }

    fn client(i: u8) -> IpAddr {
        [192, 0, 2, i].into()
    }

    fn endpoint(i: u8) -> SocketAddr {
        ([10, 0, 0, i], 53).into()
    }

    #[test]
    fn each_endpoint_has_all_ports_and_a_client_half_of_them() {
        let (ports, system) = (Arc::<SourcePorts>::default(), System(40_000..=40_299));
        let take = |to: u8, i| ports.take(&system, endpoint(to), client(i));
        let mut held = Vec::new();
        for to in [1, 2] {
            let before = held.len();
            let full = loop {
                match take(to, 1) {
                    Ok(port) => held.extend(port),
                    Err(full) => break full,
                }
            };
            assert_eq!((held.len() - before, full), (88, LimitReached::Client));
            held.extend((2..=88).map(|i| take(to, i).ok().flatten().unwrap()));
            assert_eq!(take(to, 89).err(), Some(LimitReached::Endpoint));
            assert!(ports.are_taken(endpoint(to)));
            let distinct: HashSet<u16> = held[before..].iter().map(|port| port.port).collect();
            assert_eq!(distinct.len(), 175, "two thirds, without an eighth");
        }
        drop(held);
        let end = Instant::now() + ASK;
        drop(ports.take_at(end, &system, endpoint(3), client(1)));
        let taken = ports.lock();
        assert_eq!((taken.endpoints.len(), taken.sharers.len()), (1, 0));
    }

    #[test]
    fn a_port_rests_before_it_leads_to_the_same_endpoint_again() {
        let (ports, system) = (Arc::<SourcePorts>::default(), System(40_000..=40_023));
        let now = Instant::now();
        let take = |i| ports.take_at(now, &system, endpoint(1), client(i)).unwrap().unwrap();
        let used: HashSet<u16> = (0..16).map(|_| take(1).port).collect();
        assert_eq!(used.len(), 16, "none comes again while there are others");
        // With all flows that there may be, the ports that rest come again in turn.
        let mut held: VecDeque<SourcePort> = (0..14).map(take).collect();
        for i in 14..50 {
            let ended: Vec<u16> = held.drain(..1).map(|ended| ended.port).collect();
            let begun = take(i);
            assert_ne!(ended, [begun.port]);
            held.push_back(begun);
        }
    }

    #[test]
    fn ports_that_are_reserved_later_are_left_out() {
        let (ports, mut system) = (Arc::<SourcePorts>::default(), System(40_000..=40_299));
        let now = Instant::now();
        drop(ports.take_at(now, &Slow(Arc::clone(&ports)), endpoint(1), client(1)));
        drop(ports.take_at(now, &system, endpoint(1), client(1)));
        system.0 = 10_000..=40_000;
        let later = ports.take_at(now + ASK, &system, endpoint(1), client(1)).unwrap().unwrap();
        assert!((32_768..=40_000).contains(&later.port), "nor those that Services listen at");
    }

    #[test]
    fn a_range_within_that_of_services_has_bounds_too() {
        for last in [32_767, 33_000] {
            let ports = Arc::<SourcePorts>::default();
            let take = || ports.take(&System(20_000..=last), endpoint(1), client(1));
            let held: Vec<_> = (0..5_000).map_while(|_| take().ok()).collect();
            assert!((3_000..4_000).contains(&held.len()), "{}", held.len());
            assert!(held.iter().all(Option::is_some), "none that the system chooses");
        }
    }
}
