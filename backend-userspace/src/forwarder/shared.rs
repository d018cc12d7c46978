//! State shared by listeners, connections and flows: the settings, the limits, and what each
//! listener serves.

use std::{
    collections::HashSet,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError, RwLock, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use socket2::Socket;
use switchyard_core::model::{IpFamily, Protocol};

use crate::forwarder::{
    clients::LocalClients,
    counters::Counters,
    ends::Ends,
    everywhere::Everywhere,
    listener::Listener,
    local_ports::LocalPorts,
    loops::{self, Loops},
    panicked::Panicked,
    pipes::Pipes,
    platform::{self, Platform},
    port::Port,
    showing::Showing,
    slots::Slots,
    source_ports::SourcePorts,
};

/// The memory that a connection may take as a rule: buffers of the proxy and of the kernel.
const MEMORY_OF_CONNECTION: usize = 256 * 1024;

/// The size of the receive buffer of a listener for datagrams, as far as the system allows:
/// datagrams wait there while the threads do something else. And that of the send buffer: datagrams
/// to clients that are gone wait there, while others are sent.
pub(crate) const BUFFER: usize = 2 << 20;

/// The size that sockets have without being asked, as a rule.
const USUAL_BUFFER: usize = 104 << 10;

/// The part of the memory that listeners share for either kind of buffers, unless they are so many
/// that even the usual size takes more.
const FOR_BUFFERS: usize = 128;

/// The settings of a [`Forwarder`](crate::forwarder::Forwarder).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForwarderConfig {
    /// The number of threads; by default one for each processor.
    pub threads: Option<usize>,
    /// The most connections and flows at a time; by default, and at most, as many as the limit of
    /// file descriptors allows, of which a thread needs four, a listener one, or one for each
    /// thread while there are few listeners, and a connection two, and as the memory allows, of
    /// which a connection counts for 256 KiB.
    pub connections: Option<usize>,
    /// The most file descriptors that the forwarder takes; by default, all those of the process
    /// except [`spare_descriptors`].
    pub descriptors: Option<usize>,
    /// The time that a UDP flow lasts without a datagram in either direction; a minute by default.
    /// Half of that, if the client has had as many answers as it has sent datagrams.
    pub udp_idle: Duration,
    /// The time to wait for an endpoint to take a connection, try after try; the last value counts
    /// for all further tries. By default 250 ms, 500 ms, 1 s and 2 s, as in kube-proxy's userspace
    /// mode.
    pub connect_timeouts: Vec<Duration>,
    /// The time after which an end of a TCP connection that does not answer is taken for gone;
    /// three minutes by default. An end that answers, but takes nothing of what was sent, is there.
    pub dead_after: Duration,
    /// The packet mark of connections to endpoints, so that rules which lead to the forwarder can
    /// let these pass. Needs CAP_NET_ADMIN; without it, and on other systems than Linux, there is
    /// no mark.
    pub mark: Option<u32>,
}

impl Default for ForwarderConfig {
    fn default() -> Self {
        Self {
            threads: None,
            connections: None,
            descriptors: None,
            udp_idle: Duration::from_secs(60),
            connect_timeouts: [250, 500, 1000, 2000].map(Duration::from_millis).into(),
            dead_after: Duration::from_secs(180),
            mark: None,
        }
    }
}

/// Returns the most file descriptors that a forwarder takes.
pub(crate) fn descriptors(config: &ForwarderConfig) -> usize {
    config.descriptors.unwrap_or_else(|| {
        let all = platform::current().descriptors();
        all - spare_descriptors(all)
    })
}

/// The file descriptors that a [`Forwarder`](crate::forwarder::Forwarder) leaves to everything else in a
/// process that may have `all`: a tenth, and at least 256.
pub fn spare_descriptors(all: usize) -> usize {
    (all / 10).max(256).min(all)
}

/// State shared by listeners, connections and flows.
pub(crate) struct Shared {
    pub(crate) config: ForwarderConfig,
    pub(crate) slots: Arc<Slots>,
    pub(crate) platform: Box<dyn Platform>,
    pub(crate) pipes: Pipes,
    pub(crate) counters: Arc<Counters>,
    pub(crate) panicked: Panicked,
    pub(crate) clients: RwLock<LocalClients>,
    pub(crate) showing: Showing,
    /// The ports that flows come from.
    pub(crate) source_ports: Arc<SourcePorts>,
    /// The ports that connections of TCP come from.
    pub(crate) local_ports: Arc<LocalPorts>,
    /// The addresses that are listened on.
    pub(crate) listening: RwLock<HashSet<(Protocol, SocketAddr)>>,
    /// The clients that affinity remembers.
    pub(crate) remembered: Arc<AtomicUsize>,
    /// The memory for the receive buffers of all listeners, and as much for the send buffers.
    for_buffers: usize,
}

impl Shared {
    #[cfg(test)]
    pub(crate) fn new(config: ForwarderConfig) -> Self {
        Self::counting(config, 0, Arc::default())
    }

    /// The limits count what the event loops of so many threads take.
    pub(crate) fn counting(
        config: ForwarderConfig,
        threads: usize,
        counters: Arc<Counters>,
    ) -> Self {
        let platform = platform::current();
        let descriptors =
            descriptors(&config).saturating_sub(threads.saturating_mul(loops::DESCRIPTORS));
        let memory = platform.memory();
        let by_memory = memory.map(|memory| memory / MEMORY_OF_CONNECTION);
        let most = config.connections.into_iter().chain(by_memory).min();
        let slots = Slots::within(descriptors, most, Arc::clone(&counters));
        Self {
            config,
            slots,
            platform,
            pipes: Pipes::default(),
            counters,
            panicked: Panicked::default(),
            clients: RwLock::default(),
            showing: Showing::default(),
            source_ports: Arc::default(),
            local_ports: Arc::default(),
            listening: RwLock::default(),
            remembered: Arc::default(),
            for_buffers: memory.map_or(usize::MAX, |memory| memory / FOR_BUFFERS),
        }
    }

    /// The source that connections of a client are counted for.
    pub(crate) fn source(&self, client: IpAddr) -> IpAddr {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).source(client)
    }

    /// Returns the address of a client, if an endpoint is to see it instead of the node's.
    pub(crate) fn shown(
        &self,
        protocol: Protocol,
        ends: Ends,
        endpoint: SocketAddr,
    ) -> Option<IpAddr> {
        let family = IpFamily::of(&endpoint.ip());
        if !ends.is_shown || !self.showing.is_on(protocol, family) {
            return None;
        }
        let client = ends.client.ip().to_canonical();
        let clients = self.clients.read().unwrap_or_else(PoisonError::into_inner);
        let is_shown = clients.are_behind(client, endpoint.ip())
            && self.showing.shows(protocol, client, endpoint.ip(), Instant::now());
        is_shown.then_some(client)
    }

    /// The size of the receive buffer, and of the send buffer, of one more listener.
    pub(crate) fn buffer(&self) -> usize {
        let share = self.for_buffers / self.slots.listeners().max(1);
        share.clamp(USUAL_BUFFER, BUFFER)
    }

    /// Makes a socket that is to be connected to an endpoint. An endpoint that is a listener of the
    /// forwarder refuses: each of its connections would make another one.
    pub(crate) fn socket_to(&self, protocol: Protocol, endpoint: SocketAddr) -> io::Result<Socket> {
        let listening = self.listening.read().unwrap_or_else(PoisonError::into_inner);
        if listening.contains(&(protocol, endpoint)) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        drop(listening);
        let socket = self.platform.socket(protocol, endpoint)?;
        if let Some(mark) = self.config.mark {
            // An endpoint that no rule leads back from can be reached without the mark.
            let _ = self.platform.set_mark(&socket, mark);
        }
        Ok(socket)
    }
}

/// A listener that is open, shared by its task and its connections or flows.
pub(crate) struct OpenListener {
    pub(crate) shared: Arc<Shared>,
    pub(crate) address: SocketAddr,
    /// The threads that connections are handed to, if one accepts for all.
    pub(crate) handed_to: Option<Arc<Loops>>,
    /// The flows, if the listener is for datagrams.
    pub(crate) everywhere: Arc<Everywhere>,
    serving: RwLock<Arc<Serving>>,
}

/// The target of a listener.
pub(crate) struct Serving {
    pub(crate) port: Arc<Port>,
    pub(crate) listener: Listener,
}

impl OpenListener {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        address: SocketAddr,
        serving: Serving,
        handed_to: Option<Arc<Loops>>,
    ) -> Self {
        let serving = RwLock::new(Arc::new(serving));
        let everywhere = Arc::default();
        Self { shared: Arc::clone(shared), address, handed_to, everywhere, serving }
    }

    /// Returns what the listener serves: read again for each connection and datagram.
    pub(crate) fn serving(&self) -> Arc<Serving> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn change(&self, serving: Serving) {
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(serving);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_the_memory_for_buffers() {
        let mut shared = Shared::new(ForwarderConfig::default());
        shared.for_buffers = 64 << 20;
        let taken = (0..500).map(|_| (shared.slots.take_for_listener(), shared.buffer()));
        let (_slots, sizes): (Vec<_>, Vec<usize>) = taken.unzip();
        assert_eq!(sizes[..32], [BUFFER; 32]);
        assert_eq!(sizes[499], (64 << 20) / 500);
        assert!(sizes.iter().sum::<usize>() < 4 * (64 << 20), "as many as there may be");
    }
}
