//! One flow: a client, and the endpoint that the client's datagrams go to.

use std::{
    io::{self, Read},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use socket2::{SockRef, Socket};
use switchyard_core::{model::Protocol, state::PoolKind};
use tokio::{net::UdpSocket, sync::mpsc::UnboundedSender, task::AbortHandle};

use super::{
    answers::{Activity, Answers, Connected, Failure},
    is_refusal,
    send::{bytes, send},
};
use crate::forwarder::{
    counters::Counted,
    ends::Ends,
    limits::LimitReached,
    port::{Chosen, Port},
    shared::Shared,
    slots::Slot,
    source_ports::SourcePort,
};

/// The largest datagram that is kept until there is an answer, to be sent to another endpoint if
/// the first does not exist. More would let clients fill the memory.
const LARGEST_KEPT: usize = 4096;

/// The number of datagrams that are dropped that came before the socket was connected.
const STRAYS: usize = 64;

/// The number of ports that are tried for a flow, if other programs have ports of the same range.
const PORTS: usize = 8;

/// The most endpoints that are tried for a datagram.
const ENDPOINTS: usize = 8;

/// State shared by the flows of a listener.
pub(super) struct Context {
    pub(super) listener: Weak<UdpSocket>,
    pub(super) failures: UnboundedSender<Failure>,
    /// The number of the last way to an endpoint.
    pub(super) numbers: u64,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Flow {
    pub(super) port: Arc<Port>,
    pool: PoolKind,
    ends: Ends,
    /// The endpoints that did not take the datagram at hand.
    tried: Vec<SocketAddr>,
    upstream: Upstream,
    /// The last datagram that was sent, if it is not too large.
    kept: Vec<u8>,
    /// The number of datagrams the client has sent.
    sent: u64,
    /// The time at which a datagram was last seen in either direction, as of the last look.
    pub(super) used: Instant,
    slot: Slot,
}

/// The socket that is connected to an endpoint, and the task that reads answers from it.
pub(super) struct Upstream {
    number: u64,
    chosen: Chosen,
    socket: Arc<Connected>,
    activity: Arc<Activity>,
    answers: AbortHandle,
    shared: Arc<Shared>,
}

/// The reason that a flow has no endpoint.
#[derive(Debug)]
pub(super) enum UpstreamError {
    /// No endpoint takes the datagram.
    NoEndpoint,
    /// There are too many flows.
    Full(LimitReached),
    /// The system has no socket for the flow.
    Exhausted(io::Error),
}

impl Flow {
    /// Starts a flow to an endpoint that takes the client's first datagram, as far as can be seen
    /// at once.
    pub(super) fn start(
        context: &mut Context,
        port: &Arc<Port>,
        pool: PoolKind,
        ends: Ends,
        slot: Slot,
    ) -> Result<Self, UpstreamError> {
        let mut tried = Vec::new();
        let source = slot.source();
        let upstream = Upstream::choose(context, port, pool, ends, source, &mut tried)?;
        Ok(Self {
            port: Arc::clone(port),
            pool,
            ends,
            tried,
            upstream,
            kept: Vec::new(),
            sent: 0,
            used: Instant::now(),
            slot,
        })
    }

    pub(super) fn endpoint(&self) -> SocketAddr {
        self.upstream.chosen.address
    }

    /// The source that the flow counts for.
    pub(super) fn source(&self) -> IpAddr {
        self.slot.source()
    }

    pub(super) fn is_at(&self, upstream: u64) -> bool {
        self.upstream.number == upstream
    }

    /// Sends datagrams of the client. Returns how many the endpoint may have: before the next one
    /// was sent, the system reported that one of these, or an earlier one, was refused.
    pub(super) fn send(&mut self, datagrams: &[&[u8]]) -> usize {
        self.tried.clear();
        if !self.is_awaited() {
            self.kept.clear();
        }
        let taken = self.upstream.send(datagrams);
        self.sent += taken as u64;
        if let Some(last) = datagrams[..taken].last() {
            self.keep(last);
        }
        taken
    }

    fn keep(&mut self, datagram: &[u8]) {
        self.kept.clear();
        if datagram.len() <= LARGEST_KEPT {
            self.kept.extend_from_slice(datagram);
        }
    }

    /// Goes on to another endpoint, since this one has not taken a datagram. The last one is sent
    /// again if it is kept and has had no answer, and then the one at hand, which was not sent.
    pub(super) fn move_on(
        &mut self,
        context: &mut Context,
        at_hand: Option<&[u8]>,
    ) -> Result<(), UpstreamError> {
        if !self.is_awaited() {
            self.kept.clear();
        }
        loop {
            let refused = io::ErrorKind::ConnectionRefused.into();
            failed(context, &self.port, self.endpoint(), self.ends.client.ip(), &refused);
            context.shared.counters.count(Counted::Retries);
            self.tried.push(self.endpoint());
            let Self { port, pool, ends, tried, slot, .. } = self;
            let source = slot.source();
            self.upstream = Upstream::choose(context, port, *pool, *ends, source, tried)?;
            let kept = Some(&self.kept[..]).filter(|kept| !kept.is_empty());
            let datagrams: Vec<&[u8]> = kept.into_iter().chain(at_hand).collect();
            // The datagrams are the first for this endpoint.
            self.sent = datagrams.len() as u64;
            if datagrams.is_empty() || self.upstream.send(&datagrams) == datagrams.len() {
                at_hand.into_iter().for_each(|sent| self.keep(sent));
                return Ok(());
            }
        }
    }

    /// Whether the client has had an answer to each question, as far as numbers show it.
    pub(super) fn is_answered(&self) -> bool {
        self.upstream.activity.answers.load(Ordering::Relaxed) >= self.sent
    }

    /// Whether the last datagram has had no answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.upstream.activity.is_awaited.load(Ordering::Relaxed)
    }

    /// Whether the socket is of no use any more, for which the endpoint is not to blame.
    pub(super) fn is_broken(&self) -> bool {
        self.upstream.activity.is_broken.load(Ordering::Relaxed)
    }

    /// Disconnects the socket, as a program may that destroys sockets.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) fn disconnect(&self) -> rustix::io::Result<()> {
        rustix::net::connect_unspec(&self.upstream.socket.socket)
    }

    /// Whether nothing was seen since the last look.
    pub(super) fn is_quiet(&self) -> bool {
        !self.upstream.activity.is_used.load(Ordering::Relaxed)
    }

    /// Looks whether a datagram was seen.
    pub(super) fn look(&mut self, now: Instant) {
        if self.upstream.activity.is_used.swap(false, Ordering::Relaxed) {
            self.used = now;
        } else if !self.is_awaited() {
            self.kept = Vec::new();
        }
    }
}

impl Upstream {
    /// Chooses an endpoint, unless as many were tried as may be. Those that cannot be reached from
    /// here are added to `tried`.
    fn choose(
        context: &mut Context,
        port: &Arc<Port>,
        pool: PoolKind,
        ends: Ends,
        source: IpAddr,
        tried: &mut Vec<SocketAddr>,
    ) -> Result<Self, UpstreamError> {
        let mut error = UpstreamError::NoEndpoint;
        while tried.len() < ENDPOINTS {
            let Some(chosen) = port.choose(pool, ends, tried) else { break };
            let shown = context.shared.shown(Protocol::Udp, ends, chosen.address);
            match connect(&context.shared, chosen.address, source, shown) {
                Ok(socket) => {
                    context.numbers += 1;
                    return Ok(Self::start(context, port, ends, chosen, socket));
                }
                Err(UpstreamError::NoEndpoint) => {
                    let refused = io::ErrorKind::ConnectionRefused.into();
                    failed(context, port, chosen.address, ends.client.ip(), &refused);
                }
                // The endpoint is not to blame.
                Err(full @ UpstreamError::Full(_)) => {
                    port.spared(chosen.address);
                    error = full;
                }
                Err(error) => {
                    port.spared(chosen.address);
                    context.shared.counters.count(Counted::Exhausted);
                    return Err(error);
                }
            }
            tried.push(chosen.address);
        }
        Err(error)
    }

    fn start(
        context: &Context,
        port: &Arc<Port>,
        ends: Ends,
        chosen: Chosen,
        socket: Connected,
    ) -> Self {
        let number = context.numbers;
        let (socket, activity) = (Arc::new(socket), Arc::new(Activity::default()));
        let answers = Answers {
            listener: Weak::clone(&context.listener),
            shared: Arc::clone(&context.shared),
            failures: context.failures.clone(),
            port: Arc::clone(port),
            socket: Arc::clone(&socket),
            activity: Arc::clone(&activity),
            client: ends.client.into(),
            failure: Failure { client: ends.client, upstream: number },
            endpoint: chosen.address,
        };
        let answers = tokio::spawn(answers.run()).abort_handle();
        let shared = Arc::clone(&context.shared);
        Self { number, chosen, socket, activity, answers, shared }
    }

    /// Sends datagrams. Returns how many the endpoint may have: the next one was refused, or the
    /// socket is broken, and what follows was not sent. A datagram that the system has no room for
    /// is dropped, which is no fault of the endpoint.
    fn send(&self, datagrams: &[&[u8]]) -> usize {
        let Shared { platform, counters, .. } = &*self.shared;
        self.activity.is_used.store(true, Ordering::Relaxed);
        self.activity.is_awaited.store(true, Ordering::Release);
        // Not by the socket of Tokio, which sends nothing until it has heard from the system that
        // it may.
        let socket = SockRef::from(&self.socket.socket);
        // An endpoint of this node that does not exist refuses a datagram before the next is sent,
        // which another endpoint gets.
        let one_by_one = AtomicBool::new(true);
        let is_answered = self.activity.answers.load(Ordering::Relaxed) > 0;
        let is_single = if is_answered { &self.activity.is_single_in } else { &one_by_one };
        let mut sent = |part: &[&[u8]], result: io::Result<()>| match result {
            Ok(()) => {
                counters.add(Counted::DatagramsIn, part.len() as u64);
                counters.add(Counted::BytesIn, bytes(part));
                true
            }
            Err(error) if is_refusal(&error) => false,
            Err(error) if platform.is_passing(&error) => {
                counters.add(Counted::DroppedIn, part.len() as u64);
                true
            }
            Err(_) => {
                self.activity.is_broken.store(true, Ordering::Relaxed);
                false
            }
        };
        // One that has died since it answered refuses the first before the rest is sent together.
        let (first, rest) = datagrams.split_at(datagrams.len().min(1));
        match send(&**platform, &socket, None, first, is_single, &mut sent) {
            1 => 1 + send(&**platform, &socket, None, rest, is_single, sent),
            refused => refused,
        }
    }
}

/// Notes and counts that an endpoint did not take a datagram.
fn failed(context: &Context, port: &Port, endpoint: SocketAddr, client: IpAddr, error: &io::Error) {
    context.shared.counters.count(Counted::failure(error));
    if port.failed(endpoint, client) {
        context.shared.counters.count(Counted::LeftOut);
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.answers.abort();
    }
}

/// Connects a socket to an endpoint, from an address of this node or, if possible, from that of the
/// client. Any error of the system that another endpoint may not have is `NoEndpoint`.
fn connect(
    shared: &Shared,
    endpoint: SocketAddr,
    source: IpAddr,
    client: Option<IpAddr>,
) -> Result<Connected, UpstreamError> {
    let failed = |error: io::Error| match shared.platform.is_exhausted(&error) {
        true => UpstreamError::Exhausted(error),
        false => UpstreamError::NoEndpoint,
    };
    let (socket, source_port) = bind(shared, endpoint, source, client, failed)?;
    let connect = || {
        socket.connect(&endpoint.into())?;
        // Before, anyone could send to the port.
        for _ in 0..STRAYS {
            if (&socket).read(&mut [0]).is_err() {
                break;
            }
        }
        let socket = UdpSocket::from_std(socket.into())?;
        // If no one has the endpoint's port on this node, the socket may have it, and then talks to
        // itself.
        if socket.local_addr()? == endpoint {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(socket)
    };
    Ok(Connected { socket: connect().map_err(failed)?, _port: source_port })
}

/// Opens a socket at a port that other programs do not have.
fn bind(
    shared: &Shared,
    endpoint: SocketAddr,
    source: IpAddr,
    mut client: Option<IpAddr>,
    failed: impl Fn(io::Error) -> UpstreamError,
) -> Result<(Socket, Option<SourcePort>), UpstreamError> {
    for _ in 0..PORTS {
        let platform = &*shared.platform;
        let port = shared.source_ports.take(platform, endpoint, source);
        let port = port.map_err(UpstreamError::Full)?;
        // A socket that could not be bound may share the port of another program.
        let socket = shared.socket_to(Protocol::Udp, endpoint).map_err(&failed)?;
        let Some(port) = port else { return Ok((socket, None)) };
        match port.bind(platform, &socket, client) {
            Ok(()) => return Ok((socket, Some(port))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            // The node's address is left.
            Err(_) if client.is_some() => client = None,
            Err(error) => return Err(UpstreamError::Exhausted(error)),
        }
    }
    // Other programs have what this endpoint's flows leave; other endpoints may have more.
    Err(UpstreamError::Full(LimitReached::Endpoint))
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use switchyard_core::{model::LbAlgorithm, state::ResolvedServicePort};
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::forwarder::{
        platform::{self, Platform},
        shared::ForwarderConfig,
        testing::{self, resolved},
        udp::tests::serving,
    };

    fn any() -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }

    fn start(endpoint: SocketAddr) -> Flow {
        let shared = Arc::new(Shared::new(ForwarderConfig::default()));
        let serving = serving(&[endpoint], any());
        let failures = unbounded_channel().0;
        let mut context =
            Context { listener: Weak::new(), failures, numbers: 0, shared: Arc::clone(&shared) };
        let slot = shared.slots.take(serving.port.id(), any().ip()).unwrap();
        let ends = Ends { client: any(), destination: any(), is_shown: false };
        let (port, pool) = (&serving.port, PoolKind::Cluster);
        let flow = Flow::start(&mut context, port, pool, ends, slot);
        flow.unwrap_or_else(|error| panic!("{error:?}"))
    }

    #[tokio::test]
    async fn a_large_datagram_is_not_kept() {
        let endpoint = std::net::UdpSocket::bind(any()).unwrap();
        let mut flow = start(endpoint.local_addr().unwrap());
        assert_eq!(flow.send(&[&[1; LARGEST_KEPT]]), 1);
        assert_eq!(flow.kept, [1; LARGEST_KEPT]);
        assert_eq!(flow.send(&[&[2; LARGEST_KEPT + 1]]), 1);
        assert!(flow.kept.is_empty());
    }

    #[tokio::test]
    async fn an_endpoint_that_dies_is_not_sent_all_of_a_burst() {
        // A socket that is connected refuses datagrams of others.
        let endpoint = std::net::UdpSocket::bind(any()).unwrap();
        endpoint.connect(endpoint.local_addr().unwrap()).unwrap();
        let taken = || {
            let mut flow = start(endpoint.local_addr().unwrap());
            flow.upstream.activity.answers.store(1, Ordering::Relaxed);
            flow.send(&[&b"?"[..]; 9])
        };
        // Rarely, the system is late with the refusal.
        assert!((0..9).any(|_| taken() == 1));
    }

    /// A system with one port, and with or without memory for sockets.
    struct Scarce(bool);

    impl Platform for Scarce {
        fn ephemeral_ports(&self) -> Vec<u16> {
            vec![31_999]
        }

        fn share_port(&self, _: &Socket) -> io::Result<()> {
            Ok(())
        }

        fn socket(&self, protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
            let has_memory = self.0.then(|| platform::current().socket(protocol, address));
            has_memory.unwrap_or_else(|| Err(io::ErrorKind::OutOfMemory.into()))
        }
    }

    #[tokio::test]
    async fn a_flow_without_a_port_or_a_socket_tries_no_endpoint() {
        let endpoints = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], 53)));
        for has_memory in [false, true] {
            let mut shared = Shared::new(ForwarderConfig::default());
            shared.platform = Box::new(Scarce(has_memory));
            let taken = has_memory.then(|| {
                let taken = shared.source_ports.take(&Scarce(true), endpoints[0], any().ip());
                taken.unwrap().unwrap()
            });
            let port = ResolvedServicePort {
                lb_algorithm: LbAlgorithm::WeightedFailover,
                ..resolved(Protocol::Udp, &endpoints)
            };
            let port = testing::serving(port, any()).port;
            for _ in 0..2 {
                port.failed_at(Instant::now() - Duration::from_secs(2), endpoints[0], any().ip());
            }
            let (failures, shared) = (unbounded_channel().0, Arc::new(shared));
            let mut context = Context { listener: Weak::new(), failures, numbers: 0, shared };
            let ends = Ends { client: any(), destination: any(), is_shown: false };
            let (pool, ip, mut tried) = (PoolKind::Cluster, any().ip(), Vec::new());
            let flow = Upstream::choose(&mut context, &port, pool, ends, ip, &mut tried);
            assert_eq!(flow.is_ok(), has_memory, "at the other endpoint");
            assert_eq!(port.choose(pool, ends, &[]).unwrap().address, endpoints[0]);
            drop(taken);
        }
    }

    /// A system whose next socket is this one.
    struct Prepared(Mutex<Option<Socket>>);

    impl Platform for Prepared {
        fn socket(&self, _protocol: Protocol, _address: SocketAddr) -> io::Result<Socket> {
            Ok(self.0.lock().unwrap().take().unwrap())
        }
    }

    #[tokio::test]
    async fn a_socket_that_would_send_to_itself_is_refused() {
        let socket = platform::current().socket(Protocol::Udp, any()).unwrap();
        socket.bind(&any().into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut shared = Shared::new(ForwarderConfig::default());
        shared.platform = Box::new(Prepared(Mutex::new(Some(socket))));
        let connected = connect(&shared, address, any().ip(), None);
        assert!(matches!(connected, Err(UpstreamError::NoEndpoint)));
    }
}
