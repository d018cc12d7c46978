//! The forwarder: its Service ports, and its listeners, which its threads serve.

use std::{
    collections::{HashMap, HashSet},
    io, mem,
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::forwarder::{
    clients::LocalClients,
    counters::Counters,
    listener::{ListenError, Listener, TooManyListeners},
    loops::{self, Loops, Threads},
    panicked::Panicked,
    port::Port,
    shared::{self, ForwarderConfig, OpenListener, Serving, Shared},
    socket::{Address, Socket},
    supervisor,
    task::Task,
};
use switchyard_core::{
    error::ErrorChain,
    model::{PerFamily, Protocol, ServicePortId},
    state::ResolvedServicePort,
};

/// Why a [`Forwarder`] could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwarderError {
    /// The threads could not be started.
    #[error("cannot start the forwarder's threads")]
    Threads(#[source] io::Error),
}

/// The open listeners, connections and flows of a [`Forwarder`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Connections and flows.
    pub connections: usize,
    /// The most connections and flows that there may be.
    pub limit: usize,
}

/// The interval at which connections are looked at while they are waited for.
const LOOK: Duration = Duration::from_millis(20);

/// Forwards connections and datagrams, on threads of its own, in the network namespace of the
/// thread that started it. When the value is dropped, all connections end.
pub struct Forwarder {
    shared: Arc<Shared>,
    state: Mutex<State>,
    loops: Arc<Loops>,
    _threads: Threads,
}

#[derive(Default)]
struct State {
    ports: HashMap<ServicePortId, Arc<Port>>,
    listeners: HashMap<(Protocol, SocketAddr), (Arc<OpenListener>, Vec<Task>)>,
}

impl Forwarder {
    /// Starts the threads. Nothing is forwarded yet.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn start(config: ForwarderConfig) -> Result<Self, ForwarderError> {
        Self::start_counting(config, &Arc::default())
    }

    /// Starts the threads, as [`Forwarder::start`] does, with the counters of the caller, which no
    /// other forwarder should have.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn start_counting(
        config: ForwarderConfig,
        counters: &Arc<Counters>,
    ) -> Result<Self, ForwarderError> {
        let processors = || thread::available_parallelism().map_or(1, usize::from);
        // Many processors leave descriptors for listeners and connections.
        let most = (shared::descriptors(&config) / (8 * loops::DESCRIPTORS)).max(1);
        let count = config.threads.unwrap_or_else(|| processors().min(most)).max(1);
        let shared = Arc::new(Shared::counting(config, count, Arc::clone(counters)));
        let (loops, _threads) =
            Loops::start(count, &shared.slots).map_err(ForwarderError::Threads)?;
        Ok(Self { shared, state: Mutex::default(), loops, _threads })
    }

    /// Returns what is open.
    pub fn usage(&self) -> Usage {
        let slots = &self.shared.slots;
        Usage { connections: slots.taken(), limit: slots.limit() }
    }

    /// The Service ports with a listener that panicked, which is served again.
    pub fn panicked(&self) -> Panicked {
        self.shared.panicked.clone()
    }

    /// Returns the ports that the system has reserved for programs that ask for them by number.
    pub(crate) fn reserved_ports(&self) -> Vec<RangeInclusive<u16>> {
        self.shared.platform.reserved_ports().unwrap_or_default()
    }

    /// Sets which clients run on this node.
    pub fn set_local_clients(&self, clients: LocalClients) {
        *self.shared.clients.write().unwrap_or_else(PoisonError::into_inner) = clients;
    }

    /// Sets the families whose endpoints see the address of a client from elsewhere instead of the
    /// node's, where the [action](Listener::action) of the listener has the client never
    /// masqueraded. The ports are the node's. The caller has the system deliver what endpoints send
    /// to clients to sockets of this program that have `IP_TRANSPARENT`; none at first. If
    /// connections show that answers do not come back, as they succeed from the node's address
    /// alone, the client is left out for a while or, with several clients, the family. SCTP is left
    /// out.
    pub fn show_clients(&self, families: PerFamily<bool>) {
        self.shared.showing.set(families);
    }

    /// Adds a Service port, or changes the endpoints of one. New connections use the new endpoints;
    /// TCP connections stay where they are, and flows end whose endpoint no longer serves.
    pub fn serve(&self, resolved: &Arc<ResolvedServicePort>) {
        let mut state = self.lock();
        match state.ports.get(&resolved.id) {
            Some(port) => port.update(resolved),
            None => {
                let port = Port::new(resolved, &self.shared.remembered);
                state.ports.insert(resolved.id.clone(), Arc::new(port));
            }
        }
    }

    /// Forgets Service ports, and closes their listeners. TCP connections go on until they end;
    /// flows end.
    pub fn remove(&self, ids: &HashSet<&ServicePortId>) {
        if ids.is_empty() {
            return;
        }
        let mut state = self.lock();
        state.ports.retain(|id, _| !ids.contains(id));
        let is_closed = |open: &OpenListener| ids.contains(open.serving().port.id());
        let closed = state.listeners.iter().filter(|(_, (open, _))| is_closed(open));
        let closed: Vec<_> = closed.map(|(place, _)| *place).collect();
        drop(state);
        self.close(closed);
    }

    /// Opens a listener for a Service port that is [served](Self::serve), in the network namespace
    /// of the calling thread. A listener that is open at the address stays open, with the Service
    /// port, the route and the sources of the new one. Returns the address that was bound.
    ///
    /// # Errors
    /// [`ListenError`], if the system refuses.
    pub fn listen(&self, listener: &Listener) -> Result<SocketAddr, ListenError> {
        let failed =
            |source| ListenError { port: listener.port.clone(), address: listener.address, source };
        let mut state = self.lock();
        let protocol = listener.port.name.protocol;
        let port = state.ports.get(&listener.port).cloned();
        let port = port.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let serving = Serving { port, listener: listener.clone() };
        if let Some((open, _)) = state.listeners.get(&(protocol, listener.address)) {
            open.change(serving);
            return Ok(open.address);
        }
        let (open, tasks) = self.open(protocol, listener.address, serving).map_err(failed)?;
        let place = (protocol, open.address);
        self.shared.listening.write().unwrap_or_else(PoisonError::into_inner).insert(place);
        state.listeners.insert(place, (open, tasks));
        Ok(place.1)
    }

    /// Opens a socket for each thread, or one if there cannot be as many.
    fn open(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        serving: Serving,
    ) -> io::Result<(Arc<OpenListener>, Vec<Task>)> {
        let Self { shared, loops, .. } = self;
        let slot = shared.slots.take_for_listener();
        let slot = slot.ok_or_else(|| io::Error::other(TooManyListeners))?;
        let mut all = loops.all();
        let Some(first) = all.next() else { return Err(io::ErrorKind::Other.into()) };
        let inside = first.enter();
        let others: Vec<_> = all.collect();
        // Another program's socket is noticed by the first alone.
        let is_shared = protocol != Protocol::Sctp && !others.is_empty();
        let how = if is_shared { Address::Shareable } else { Address::Own };
        let socket = Socket::bind(shared, protocol, address, how)?;
        let address = socket.address()?;
        drop(inside);
        let mut sockets = vec![(first, slot, socket)];
        // All places first: a socket that is closed resets who has connected to it.
        let places: Option<Vec<_>> =
            others.iter().map(|_| shared.slots.take_for_another_socket()).collect();
        let places = places.filter(|_| is_shared).unwrap_or_default();
        for (thread, slot) in others.iter().zip(places) {
            let _inside = thread.enter();
            match Socket::bind(shared, protocol, address, Address::Shared) {
                Ok(socket) => sockets.push((*thread, slot, socket)),
                Err(error) => {
                    let err = ErrorChain(&error);
                    tracing::debug!(%address, %err, "One thread serves a listener");
                    break;
                }
            }
        }
        let is_one_for_all = sockets.len() <= others.len();
        let handed_to = is_one_for_all.then(|| {
            sockets.truncate(1);
            Arc::clone(loops)
        });
        let open = Arc::new(OpenListener::new(shared, address, serving, handed_to));
        let start = |(thread, slot, socket)| {
            let serving = supervisor::serve(Arc::clone(&open), socket);
            Task::start(thread, async move {
                let _slot = slot;
                serving.await;
            })
        };
        let tasks = sockets.into_iter().map(start).collect();
        Ok((open, tasks))
    }

    /// Closes listeners, by the addresses that were bound. TCP connections go on until they end;
    /// flows end. Returns the number of listeners that were open.
    pub fn close(&self, places: impl IntoIterator<Item = (Protocol, SocketAddr)>) -> usize {
        let mut state = self.lock();
        let mut listening = self.shared.listening.write().unwrap_or_else(PoisonError::into_inner);
        let close = |place| {
            listening.remove(&place);
            state.listeners.remove(&place)
        };
        let closed: Vec<_> = places.into_iter().filter_map(close).collect();
        drop((state, listening));
        let count = closed.len();
        // Without the locks: all wait for the threads at the same time.
        Task::end_all(closed.into_iter().flat_map(|(_, tasks)| tasks));
        count
    }

    /// Returns a function that returns whether there are connections of TCP or SCTP.
    pub(crate) fn streams(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let slots = Arc::clone(&self.shared.slots);
        move || slots.streams() > 0
    }

    /// Closes all listeners, and lets connections of TCP and SCTP go on until none is left, at most
    /// for a time. Blocks until then. Whatever is left ends with this value.
    pub fn drain(&self, limit: Duration) {
        self.close_all();
        let (start, streams) = (Instant::now(), self.streams());
        while streams() && start.elapsed() < limit {
            thread::sleep(LOOK);
        }
    }

    fn close_all(&self) {
        let listeners = mem::take(&mut self.lock().listeners);
        Task::end_all(listeners.into_values().flat_map(|(_, tasks)| tasks));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.close_all();
    }
}
