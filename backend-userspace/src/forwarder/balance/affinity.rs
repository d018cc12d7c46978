//! `sessionAffinity: ClientIP`: which endpoint a client has used last.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// The most clients that are remembered for all Service ports, some 60 MiB. A Service port may have
/// as many as are left to others, so half of them if it is alone; those that are over are
/// forgotten, the longest unused first.
const MOST_CLIENTS: usize = 524_288;

/// The number of clients whose time is over that are forgotten with each new connection. More than
/// one, so that all are in the end.
const FORGOTTEN_AT_ONCE: usize = 16;

/// The clients of a Service port that are remembered.
#[derive(Default)]
pub(crate) struct Affinity {
    /// The number of clients of all Service ports.
    all: Arc<AtomicUsize>,
    clients: HashMap<IpAddr, Entry>,
    /// The clients in the order of their last connections, which are numbered.
    order: BTreeMap<u64, IpAddr>,
    next: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    endpoint: SocketAddr,
    used: Instant,
    number: u64,
}

impl Affinity {
    /// Remembers no client, and counts those to come in `all`, as other Service ports do.
    pub(crate) fn new(all: &Arc<AtomicUsize>) -> Self {
        Self { all: Arc::clone(all), clients: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }

    /// The endpoint of a client whose last connection is not older than the timeout.
    pub(crate) fn endpoint(
        &self,
        client: IpAddr,
        timeout: Duration,
        now: Instant,
    ) -> Option<SocketAddr> {
        let entry = self.clients.get(&client.to_canonical())?;
        (now.saturating_duration_since(entry.used) < timeout).then_some(entry.endpoint)
    }

    /// Notes a connection of a client.
    pub(crate) fn remember(
        &mut self,
        client: IpAddr,
        endpoint: SocketAddr,
        timeout: Duration,
        now: Instant,
    ) {
        let client = client.to_canonical();
        let number = self.next;
        self.next += 1;
        if let Some(before) = self.clients.insert(client, Entry { endpoint, used: now, number }) {
            self.order.remove(&before.number);
        } else {
            self.all.fetch_add(1, Ordering::Relaxed);
        }
        self.order.insert(number, client);
        for _ in 0..FORGOTTEN_AT_ONCE {
            let free = MOST_CLIENTS.saturating_sub(self.all.load(Ordering::Relaxed));
            if self.clients.len() <= free {
                break;
            }
            self.forget_first();
        }
        self.purge(FORGOTTEN_AT_ONCE, timeout, now);
    }

    /// Forgets a client, if the client is remembered with this endpoint.
    pub(crate) fn forget(&mut self, client: IpAddr, endpoint: SocketAddr) {
        let client = client.to_canonical();
        if self.clients.get(&client).is_some_and(|entry| entry.endpoint == endpoint)
            && let Some(entry) = self.clients.remove(&client)
        {
            self.order.remove(&entry.number);
            self.all.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Forgets all clients of endpoints that are gone.
    pub(crate) fn retain(&mut self, stays: impl Fn(SocketAddr) -> bool) {
        let Self { all, clients, order, .. } = self;
        clients.retain(|_, entry| {
            let stays = stays(entry.endpoint);
            if !stays {
                order.remove(&entry.number);
                all.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
    }

    /// Forgets clients whose time is over.
    pub(crate) fn purge(&mut self, most: usize, timeout: Duration, now: Instant) {
        for _ in 0..most {
            let Some((_, first)) = self.order.first_key_value() else { return };
            if self.endpoint(*first, timeout, now).is_some() {
                return;
            }
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, client)) = self.order.pop_first() {
            self.clients.remove(&client);
            self.all.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        self.all.fetch_sub(self.clients.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(100);

    fn endpoint(i: u8) -> SocketAddr {
        ([10, 0, 0, i], 80).into()
    }

    fn client(i: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(i).into()
    }

    #[test]
    fn clients_are_forgotten_after_their_time_and_with_their_endpoints() {
        let (mut affinity, start) = (Affinity::default(), Instant::now());
        for i in 0..10 {
            affinity.remember(client(i), endpoint(1), TIMEOUT, start);
        }
        affinity.remember(client(10), endpoint(1), TIMEOUT, start + TIMEOUT);
        assert_eq!((affinity.clients.len(), affinity.order.len()), (1, 1));
        affinity.remember(client(11), endpoint(2), TIMEOUT, start + TIMEOUT);
        affinity.forget(client(10), endpoint(2));
        assert_eq!(affinity.clients.len(), 2, "the client is at another endpoint by now");
        affinity.forget(client(10), endpoint(1));
        affinity.retain(|address| address != endpoint(2));
        assert!(affinity.clients.is_empty() && affinity.order.is_empty());
    }

    #[test]
    fn the_longest_unused_is_forgotten_first() {
        let (mut affinity, now) = (Affinity::default(), Instant::now());
        let most = MOST_CLIENTS as u32 / 2;
        for i in 0..most {
            affinity.remember(client(i), endpoint(1), TIMEOUT, now);
        }
        affinity.remember(client(0), endpoint(2), TIMEOUT, now);
        affinity.remember(client(most), endpoint(1), TIMEOUT, now);
        assert_eq!(affinity.endpoint(client(0), TIMEOUT, now), Some(endpoint(2)));
        assert_eq!(affinity.endpoint(client(1), TIMEOUT, now), None);
        assert_eq!((affinity.clients.len(), affinity.order.len()), (most as usize, most as usize));

        // Another Service port has its share, which the first gives up.
        let mut other = Affinity::new(&affinity.all);
        (0..1000).for_each(|i| other.remember(client(i), endpoint(1), TIMEOUT, now));
        assert_eq!(other.clients.len(), 1000);
        affinity.remember(client(0), endpoint(2), TIMEOUT, now);
        assert!(affinity.clients.len() < most as usize);
        let all = Arc::clone(&affinity.all);
        assert_eq!(all.load(Ordering::Relaxed), affinity.clients.len() + 1000);
        drop((affinity, other));
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
