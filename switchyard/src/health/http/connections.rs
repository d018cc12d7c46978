//! The limits of the open connections of all servers, and which connection is closed for a new one.
//!
//! Every pod can reach the health servers, and health check node ports can be reached from outside
//! the cluster. No client may keep others out, so a new connection is always accepted: at the limit
//! of an address and port, the connection that has sent no request for the longest time is closed,
//! and at the limit of all connections, that connection of the address and port with the most
//! connections. The kubelet's probes, which come from this node, have a limit apart.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    convert::Infallible,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The file descriptors that [`Limits::new`] leaves to the rest of the program: the standard
/// streams, the health and the metrics listener, watches of the API server, netlink sockets, files,
/// and pipes to programs.
pub const RESERVED_DESCRIPTORS: usize = 128;
/// The largest number of connections, which bounds the memory of idle connections to some 100 MB.
const MOST_CONNECTIONS: usize = 4096;
/// The smallest limit of connections and of servers, however few descriptors there are.
const LEAST: usize = 16;
/// The largest number of connections from one address to one port.
const MOST_OF_CLIENT: usize = 128;

/// The most connections and servers that may be open at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections to all servers. An eighth is for connections from this node.
    pub connections: usize,
    /// Servers of the health of Services, of which each has one listener.
    pub service_health_servers: usize,
}

impl Limits {
    /// Returns the limits for a process that may have this number of file descriptors, of which
    /// [`RESERVED_DESCRIPTORS`] stay free.
    pub fn new(descriptors: usize) -> Self {
        let spare = descriptors.saturating_sub(RESERVED_DESCRIPTORS);
        let connections = (spare / 2).clamp(LEAST, MOST_CONNECTIONS);
        // A server needs a descriptor for its listener, and another for a connection that waits
        // until a connection has been closed for it.
        let servers = spare.saturating_sub(connections) / 2;
        Self { connections, service_health_servers: servers.max(LEAST) }
    }
}

/// The open connections of all servers.
#[derive(Debug)]
pub struct Connections {
    limits: Limits,
    /// The connections from this node.
    own: Arc<Pool>,
    /// All other connections.
    foreign: Arc<Pool>,
}

impl Connections {
    /// Returns a record without connections, for servers that share these limits.
    pub fn new(limits: Limits) -> Arc<Self> {
        let own = (limits.connections / 8).max(1);
        let foreign = limits.connections.saturating_sub(own).max(1);
        Arc::new(Self { limits, own: Pool::new(own), foreign: Pool::new(foreign) })
    }

    /// Returns the limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns the number of open connections, including connections that are being closed.
    pub fn count(&self) -> usize {
        self.own.count() + self.foreign.count()
    }

    /// Returns the slot of a new connection from `peer` to `local`, once there is one. Closes
    /// another connection if need be.
    pub(super) async fn admit(&self, peer: SocketAddr, local: SocketAddr) -> (Slot, Evicted) {
        let (source, destination) = (peer.ip().to_canonical(), local.ip().to_canonical());
        // The kubelet's probes come from the address that they go to.
        let is_own = source.is_loopback() || source == destination;
        let pool = if is_own { &self.own } else { &self.foreign };
        pool.admit((network(source), local.port())).await
    }
}

/// Returns the address that stands for a client: of an IPv6 address the first 64 bits, since every
/// client can have many addresses with the same.
fn network(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

/// The end of the connection of a slot: the receiver fails when the connection is to be closed.
pub(super) type Evicted = oneshot::Receiver<Infallible>;

/// The place of an open connection. Dropping this value frees the place, so the connection has to
/// be closed before.
#[derive(Debug)]
pub(super) struct Slot {
    pool: Arc<Pool>,
    client: Client,
    number: u64,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Slot {
    /// Records a request. Returns whether the connection can stay open after the answer; there
    /// should be some free slots, so that no connection is closed in the middle of a request.
    pub(super) fn touch(&self) -> bool {
        if let Some(open) = self.pool.lock().get_mut(&self.client)
            && let Some(index) = open.iter().position(|(number, _)| *number == self.number)
            && let Some(connection) = open.remove(index)
        {
            open.push_back(connection);
        }
        self.pool.slots.available_permits() >= self.pool.size / 8
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.close(self.client, |open| open.retain(|(number, _)| *number != self.number));
    }
}

/// The address of a client, and the port that it is connected to.
type Client = (IpAddr, u16);
/// The connections of a client by the time of their last request. Dropping the sender of a
/// connection makes it end.
type Open = VecDeque<(u64, oneshot::Sender<Infallible>)>;

/// A number of slots.
#[derive(Debug)]
struct Pool {
    size: usize,
    most_of_client: usize,
    slots: Arc<Semaphore>,
    /// The open connections, without connections that are being closed. No client has none.
    open: Mutex<HashMap<Client, Open>>,
    next: AtomicU64,
}

impl Pool {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self {
            size,
            most_of_client: (size / 4).clamp(1, MOST_OF_CLIENT),
            slots: Arc::new(Semaphore::new(size)),
            open: Mutex::default(),
            next: AtomicU64::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Client, Open>> {
        // Each change is complete when the lock is released.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.size - self.slots.available_permits()
    }

    async fn admit(self: &Arc<Self>, client: Client) -> (Slot, Evicted) {
        if self.lock().get(&client).is_some_and(|open| open.len() >= self.most_of_client) {
            self.close(client, |open| drop(open.pop_front()));
        }
        let permit = match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                // Of equal clients, the one that was connected first.
                let rank =
                    |open: &Open| (open.len(), Reverse(open.front().map(|(number, _)| *number)));
                let largest = self
                    .lock()
                    .iter()
                    .max_by_key(|(_, open)| rank(open))
                    .map(|(client, _)| *client);
                if let Some(largest) = largest {
                    self.close(largest, |open| drop(open.pop_front()));
                }
                // The slot is free as soon as the connection is closed. The semaphore is never
                // closed.
                Arc::clone(&self.slots).acquire_owned().await.ok()
            }
        };
        let (sender, evicted) = oneshot::channel();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().entry(client).or_default().push_back((number, sender));
        (Slot { pool: Arc::clone(self), client, number, _permit: permit }, evicted)
    }

    /// Closes some of a client's connections.
    fn close(&self, client: Client, close: impl FnOnce(&mut Open)) {
        let mut clients = self.lock();
        if let Some(open) = clients.get_mut(&client) {
            close(open);
            if open.is_empty() {
                clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "192.0.2.1:10256";

    /// A connection that ends when it is evicted.
    struct Open(Slot, Evicted);

    impl Open {
        fn is_evicted(&mut self) -> bool {
            self.1.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        }
    }

    async fn open(connections: &Connections, peer: &str, local: &str) -> Open {
        let (slot, evicted) =
            connections.admit(peer.parse().unwrap(), local.parse().unwrap()).await;
        Open(slot, evicted)
    }

    /// Opens a connection while a task closes the connections of `all` that are evicted.
    async fn open_among(all: &mut Vec<Open>, connections: &Connections, peer: &str) -> Open {
        let admission = open(connections, peer, LOCAL);
        tokio::pin!(admission);
        loop {
            tokio::select! {
                biased;
                admitted = &mut admission => return admitted,
                () = tokio::task::yield_now() => all.retain_mut(|open| !open.is_evicted()),
            }
        }
    }

    fn connections(count: usize) -> Arc<Connections> {
        Connections::new(Limits { connections: count, service_health_servers: 1 })
    }

    #[test]
    fn limits_leave_descriptors_to_the_rest() {
        let limits = |descriptors| {
            let limits = Limits::new(descriptors);
            (limits.connections, limits.service_health_servers)
        };
        assert_eq!(limits(524_288), (4096, (524_288 - 128 - 4096) / 2));
        assert_eq!(limits(1024), (448, 224));
        assert_eq!(limits(256), (64, 32));
        assert_eq!(limits(64), (LEAST, LEAST));
        for descriptors in [192, 256, 1000, 1024, 4096, 65_536, 1 << 32] {
            let (connections, servers) = limits(descriptors);
            let used = connections + 2 * servers;
            assert!(used + RESERVED_DESCRIPTORS <= descriptors, "{descriptors}: {used}");
        }
        assert_eq!(limits(usize::MAX).0, 4096);
    }

    #[tokio::test]
    async fn the_oldest_idle_connection_of_a_client_gives_way() {
        // 56 foreign slots, of which one client can have 14.
        let connections = connections(64);
        let mut all = Vec::new();
        for port in 0..14 {
            all.push(open(&connections, &format!("10.1.0.1:{}", 1000 + port), LOCAL).await);
        }
        assert!(all[0].0.touch());
        let mut other = open(&connections, "10.1.0.2:1000", LOCAL).await;
        all.push(open(&connections, "10.1.0.1:2000", LOCAL).await);
        let evicted: Vec<bool> = all.iter_mut().map(Open::is_evicted).collect();
        assert_eq!(evicted.iter().position(|evicted| *evicted), Some(1), "the first has been used");
        assert_eq!(evicted.iter().filter(|evicted| **evicted).count(), 1);
        assert!(!other.is_evicted());
        // Another port, and another network, have their own connections.
        all.push(open(&connections, "10.1.0.1:3000", "192.0.2.1:31000").await);
        all.push(open(&connections, "[fd00::1]:3000", "[fd00:1::1]:10256").await);
        let evicted = all.iter_mut().filter_map(|open| open.is_evicted().then_some(()));
        assert_eq!(evicted.count(), 1);
    }

    #[tokio::test]
    async fn the_largest_client_gives_way_to_others() {
        let connections = connections(64);
        let mut all = Vec::new();
        let mut small = open(&connections, "10.2.0.1:1000", LOCAL).await;
        for client in 1..=5 {
            for port in 0..14 {
                let peer = format!("10.1.0.{client}:{}", 1000 + port);
                let new = open_among(&mut all, &connections, &peer).await;
                all.push(new);
            }
        }
        for client in 1..=20 {
            let new = open_among(&mut all, &connections, &format!("10.3.0.{client}:1")).await;
            all.push(new);
            assert!(connections.count() <= 56);
        }
        assert!(!small.is_evicted(), "a client with one connection");
        assert!(!small.0.touch(), "after its next answer, it is closed");
    }

    #[tokio::test]
    async fn this_node_has_slots_of_its_own() {
        let connections = connections(64);
        let mut all = Vec::new();
        for client in 0..100 {
            let new = open_among(&mut all, &connections, &format!("10.1.0.{client}:1")).await;
            all.push(new);
        }
        assert_eq!(connections.count(), 56);
        let mut own = [
            open(&connections, "127.0.0.1:9", "127.0.0.1:10256").await,
            open(&connections, "192.0.2.1:9", LOCAL).await,
            open(&connections, "[::ffff:192.0.2.1]:9", "[::ffff:192.0.2.1]:10256").await,
        ];
        assert_eq!(connections.count(), 59);
        for client in 100..200 {
            let new = open_among(&mut all, &connections, &format!("10.1.0.{client}:1")).await;
            all.push(new);
        }
        assert!(own.iter_mut().all(|own| !own.is_evicted() && own.0.touch()));
        drop((own, all));
        assert_eq!(connections.count(), 0);
        assert!(connections.foreign.lock().is_empty());
    }

    #[test]
    fn a_client_of_ipv6_is_a_network() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
