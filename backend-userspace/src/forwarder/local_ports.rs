//! The local ports that connections of TCP have, which all clients of an endpoint share.
//!
//! The system chooses the ports, which are counted here so that no client takes all those of an
//! endpoint: also those of connections that the client has closed first, which the system keeps for
//! a minute, as long as it does not keep too many.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::forwarder::{
    limits::{LimitReached, count_down},
    platform::{Platform, Reuse},
};

/// The time that the system keeps a port (`TCP_TIMEWAIT_LEN` of Linux).
const REST: Duration = Duration::from_secs(60);

/// The interval at which the system is asked for its settings, which may change.
const ASK: Duration = Duration::from_secs(10);

/// The ports of all connections.
#[derive(Default)]
pub(crate) struct LocalPorts(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    /// The number of ports; 0 where it is not known.
    ports: usize,
    reuse: Reuse,
    /// The most ports that rest, of all endpoints together, and the number of those that do.
    most_resting: usize,
    resting: usize,
    asked: Option<Instant>,
    endpoints: HashMap<SocketAddr, Endpoint>,
}

#[derive(Default)]
struct Endpoint {
    taken: usize,
    /// The number of ports of each source.
    sources: HashMap<IpAddr, usize>,
    /// The ports that rest, each with the beginning and the source.
    resting: VecDeque<(Instant, IpAddr)>,
}

/// The port of a connection, until it is dropped.
pub(crate) struct LocalPort {
    ports: Arc<LocalPorts>,
    endpoint: SocketAddr,
    source: IpAddr,
    rests: bool,
}

impl LocalPorts {
    /// Counts a port, or nothing where the number of ports is not known. The limit is a dynamic
    /// threshold as in [`slots`](crate::forwarder::slots): a client may have as many as are free,
    /// so that one alone leaves half.
    pub(crate) fn take(
        self: &Arc<Self>,
        platform: &dyn Platform,
        endpoint: SocketAddr,
        source: IpAddr,
    ) -> Result<Option<LocalPort>, LimitReached> {
        self.take_at(Instant::now(), platform, endpoint, source)
    }

    fn take_at(
        self: &Arc<Self>,
        now: Instant,
        platform: &dyn Platform,
        endpoint: SocketAddr,
        source: IpAddr,
    ) -> Result<Option<LocalPort>, LimitReached> {
        let mut taken = self.lock();
        if taken.asked.is_none_or(|asked| now - asked >= ASK) {
            // Others take ports meanwhile.
            taken.asked = Some(now);
            drop(taken);
            let (ports, reuse) = (platform.ephemeral_ports().len(), platform.reuse());
            let most_resting = platform.most_resting();
            taken = self.lock();
            // A system that could be asked before is out of descriptors for a moment.
            if ports > 0 {
                (taken.ports, taken.reuse, taken.most_resting) = (ports, reuse, most_resting);
            }
            let Taken { endpoints, resting, .. } = &mut *taken;
            endpoints.retain(|_, of_endpoint| {
                *resting -= of_endpoint.end_rest(now);
                if of_endpoint.resting.capacity() > 4 * of_endpoint.resting.len() {
                    of_endpoint.resting.shrink_to_fit();
                }
                of_endpoint.taken > 0
            });
        }
        let Taken { ports, endpoints, resting, .. } = &mut *taken;
        if *ports == 0 {
            return Ok(None);
        }
        let of_endpoint = endpoints.entry(endpoint).or_default();
        *resting -= of_endpoint.end_rest(now);
        let of_source = of_endpoint.sources.entry(source).or_default();
        // Without any of its own, a client may try whether the system has one.
        if *of_source > ports.saturating_sub(of_endpoint.taken) {
            return Err(LimitReached::Ports);
        }
        *of_source += 1;
        of_endpoint.taken += 1;
        Ok(Some(LocalPort { ports: Arc::clone(self), endpoint, source, rests: false }))
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoint {
    /// Frees the ports that have rested. Returns how many they were.
    fn end_rest(&mut self, now: Instant) -> usize {
        let before = self.resting.len();
        while let Some((_, source)) = self.resting.pop_front_if(|(since, _)| now - *since >= REST) {
            self.end(source);
        }
        before - self.resting.len()
    }

    fn end(&mut self, source: IpAddr) {
        self.taken -= 1;
        count_down(&mut self.sources, source);
    }
}

impl LocalPort {
    /// Has the system keep the port when the connection ends, which was closed from here first.
    pub(crate) fn rest(&mut self) {
        self.rests = true;
    }
}

impl Drop for LocalPort {
    fn drop(&mut self) {
        let mut taken = self.ports.lock();
        let Taken { reuse, most_resting, resting, endpoints, .. } = &mut *taken;
        let is_reused = match reuse {
            Reuse::None => false,
            Reuse::Loopback => self.endpoint.ip().to_canonical().is_loopback(),
            Reuse::All => true,
        };
        let Some(of_endpoint) = endpoints.get_mut(&self.endpoint) else { return };
        if self.rests && !is_reused && *resting < *most_resting {
            *resting += 1;
            of_endpoint.resting.push_back((Instant::now(), self.source));
        } else {
            of_endpoint.end(self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system with this many ports, of which so many rest at most.
    struct System(u16, Reuse, usize);

    impl Platform for System {
        fn ephemeral_ports(&self) -> Vec<u16> {
            (40_000..40_000 + self.0).collect()
        }

        fn reuse(&self) -> Reuse {
            self.1
        }

        fn most_resting(&self) -> usize {
            self.2
        }
    }

    #[test]
    fn a_client_leaves_half_of_the_ports_also_by_connections_that_have_ended() {
        let client = |i: u8| IpAddr::from([192, 0, 2, i]);
        for (endpoint, reuse, most_resting, is_limited) in [
            ([10, 0, 0, 1], Reuse::None, 51, true),
            ([10, 0, 0, 1], Reuse::None, 50, false),
            ([10, 0, 0, 1], Reuse::Loopback, 51, true),
            ([10, 0, 0, 1], Reuse::All, 51, false),
            ([127, 0, 0, 1], Reuse::None, 51, true),
            ([127, 0, 0, 1], Reuse::Loopback, 51, false),
        ] {
            let (ports, system) = (Arc::<LocalPorts>::default(), System(100, reuse, most_resting));
            let start = Instant::now();
            let take = |at, i| ports.take_at(at, &system, (endpoint, 80).into(), client(i));
            for rests in [false, true] {
                for _ in 0..51 {
                    let mut port = take(start, 1).unwrap().unwrap();
                    if rests {
                        port.rest();
                    }
                }
            }
            assert_eq!(take(start, 1).is_err(), is_limited, "{endpoint:?} {reuse:?}");
            let later = Instant::now() + REST;
            let held: Vec<_> = (0..200).map_while(|_| take(later, 1).ok()).collect();
            assert_eq!(held.len(), 51, "{endpoint:?} {reuse:?}");
            assert_eq!(take(later, 1).err(), Some(LimitReached::Ports));
            assert!((2..60).all(|i| take(later, i).is_ok()));
            drop(held);
            drop(take(later, 1));
            let taken = ports.lock();
            assert!(taken.endpoints.values().all(|of| of.taken == 0 && of.sources.is_empty()));
            assert_eq!(taken.resting, 0);
        }
    }
}
