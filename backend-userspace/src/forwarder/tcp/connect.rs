//! Connecting to an endpoint, or to the next one.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use socket2::SockRef;
use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, Protocol},
    state::PoolKind,
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{PAUSE, tune};
use crate::forwarder::{
    counters::Counted,
    ends::Ends,
    limits::LimitReached,
    port::{Chosen, Port, Warning},
    shared::Shared,
};

/// The most endpoints that are tried for a connection, if there are not more timeouts.
const TRIES: usize = 8;

/// Connects to an endpoint of a pool, which is sent the first bytes at once if there are some. The
/// caller sends those that are left. Endpoints that do not take the connection are passed over;
/// when all have been tried and timeouts are left, the first is tried again. Returns `None` if none
/// takes it.
pub(super) async fn connect(
    shared: &Shared,
    port: &Port,
    pool: PoolKind,
    ends: Ends,
    first: &mut Vec<u8>,
) -> Option<(TcpStream, Chosen)> {
    let timeouts = &shared.config.connect_timeouts;
    let protocol = port.id().name.protocol;
    let mut tried = Vec::new();
    let mut tries = 0;
    let mut is_without_port = false;
    let mut last = None;
    let mut refused = None;
    while tries < timeouts.len().max(TRIES) {
        let Some(mut chosen) = port.choose(pool, ends, &tried) else {
            if tried.is_empty() || tries >= timeouts.len() {
                break;
            }
            tried.clear();
            if is_without_port {
                sleep(PAUSE).await;
            }
            continue;
        };
        let limit = timeouts.get(tries).or(timeouts.last()).copied().unwrap_or(Duration::MAX);
        let address = chosen.address;
        let result = match shared.shown(protocol, ends, address) {
            None => {
                let client = ends.client.ip();
                attempt_as_node(shared, protocol, &mut chosen, client, first, limit).await
            }
            Some(client) => show(shared, port, &mut chosen, client, first, limit).await,
        };
        tries += 1;
        let result = match result {
            Ok(result) => result,
            Err(full) => {
                refused = Some(full);
                port.spared(address);
                tried.push(address);
                continue;
            }
        };
        if tries > 1 {
            shared.counters.count(Counted::Retries);
        }
        match result {
            Ok(stream) => {
                port.succeeded(address);
                shared.counters.count(Counted::connection(protocol));
                return Some((stream, chosen));
            }
            Err(error) => {
                tracing::debug!(
                    service = %port.id().name, endpoint = %address, err = %ErrorChain(&error),
                    "Failed to connect to an endpoint"
                );
                if shared.platform.is_exhausted(&error) {
                    port.spared(address);
                    shared.counters.count(Counted::Exhausted);
                    sleep(PAUSE).await;
                    last = Some(error);
                    continue;
                }
                tried.push(address);
                if error.kind() == io::ErrorKind::AddrNotAvailable && has_source(shared, address) {
                    // All ports are connected to the endpoint, which is not to blame.
                    is_without_port = true;
                    port.spared(address);
                    shared.counters.count(Counted::Exhausted);
                    if port.is_due(Warning::NoLocalPort) {
                        tracing::warn!(
                            service = %port.id().name, endpoint = %address,
                            "Endpoint passed over: all local ports are connected to it, or have \
                             been within a minute (ip_local_port_range)"
                        );
                    }
                } else {
                    shared.counters.count(Counted::failure(&error));
                    if port.failed(address, ends.client.ip()) {
                        shared.counters.count(Counted::LeftOut);
                    }
                }
                last = Some(error);
            }
        }
    }
    if let Some(full) = refused.filter(|_| last.is_none()) {
        shared.slots.refuse(port, ends.client.ip(), full);
        return None;
    }
    shared.counters.count(Counted::unserved(protocol));
    if port.is_due(Warning::Unserved) {
        let err =
            last.map_or("no endpoint is left".to_owned(), |last| ErrorChain(&last).to_string());
        tracing::warn!(service = %port.id().name, client = %ends.client, err, "No endpoint took a connection");
    }
    None
}

/// Connects to an endpoint from the address of the client or, if that fails and the endpoint has
/// not refused, from the node's at once.
async fn show(
    shared: &Shared,
    port: &Port,
    chosen: &mut Chosen,
    client: IpAddr,
    first: &mut Vec<u8>,
    limit: Duration,
) -> Result<io::Result<TcpStream>, LimitReached> {
    let endpoint = chosen.address;
    let shown = attempt(shared, Protocol::Tcp, endpoint, Some(client), first, limit).await;
    let error = match shown {
        Ok(stream) => {
            shared.showing.worked(client, endpoint.ip());
            return Ok(Ok(stream));
        }
        Err(error)
            if error.kind() == io::ErrorKind::ConnectionRefused
                || shared.platform.is_exhausted(&error) =>
        {
            return Ok(Err(error));
        }
        Err(error) => error,
    };
    let result = attempt_as_node(shared, Protocol::Tcp, chosen, client, first, limit).await?;
    // A client whose ports are all connected to the endpoint shows nothing about answers.
    if result.is_err() || error.kind() == io::ErrorKind::AddrNotAvailable {
        return Ok(result);
    }
    if port.is_due(Warning::NotShown) {
        tracing::warn!(
            service = %port.id().name, %endpoint, %client, err = %ErrorChain(&error),
            "Failed to connect from the client's address, unlike from the node's, which the endpoint sees"
        );
    }
    let service = &port.id().name.service;
    if shared.showing.failed(service, client, endpoint.ip(), Instant::now()) {
        tracing::warn!(
            family = %IpFamily::of(&client),
            "Endpoints see the node instead of clients: their answers to clients do not come back \
             here; single connections try it again"
        );
    }
    Ok(result)
}

/// Connects to an endpoint from an address of this node, whose ports all clients share.
async fn attempt_as_node(
    shared: &Shared,
    protocol: Protocol,
    chosen: &mut Chosen,
    client: IpAddr,
    first: &mut Vec<u8>,
    limit: Duration,
) -> Result<io::Result<TcpStream>, LimitReached> {
    if protocol == Protocol::Tcp {
        let source = shared.source(client);
        chosen.keep(shared.local_ports.take(&*shared.platform, chosen.address, source)?);
    }
    Ok(attempt(shared, protocol, chosen.address, None, first, limit).await)
}

/// Whether this node has an address for sockets that connect to an endpoint. Without one, which
/// happens with IPv6, the error is the same as without a port. UDP has ports of its own.
fn has_source(shared: &Shared, endpoint: SocketAddr) -> bool {
    let source = source(shared, endpoint);
    !source.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

/// Returns the address of this node from which its route leads to an endpoint, without a port.
fn source(shared: &Shared, endpoint: SocketAddr) -> io::Result<SocketAddr> {
    let socket = shared.socket_to(Protocol::Udp, endpoint)?;
    socket.connect(&endpoint.into())?;
    let source = socket.local_addr()?.as_socket();
    let mut source = source.ok_or(io::ErrorKind::AddrNotAvailable)?;
    source.set_port(0);
    Ok(source)
}

/// Connects to an endpoint, from an address of this node or from that of the client.
async fn attempt(
    shared: &Shared,
    protocol: Protocol,
    address: SocketAddr,
    client: Option<IpAddr>,
    first: &mut Vec<u8>,
    limit: Duration,
) -> io::Result<TcpStream> {
    let socket = shared.socket_to(protocol, address)?;
    match (protocol, client) {
        (_, Some(client)) => shared.platform.bind_as(&socket, SocketAddr::new(client, 0))?,
        // Else the endpoint learns all addresses of this node, and sends heartbeats to each: who
        // has the same address there knows no such association, and ends it.
        (Protocol::Sctp, None) => {
            let source = source(shared, address)?.into();
            // The word of a connect if no port is free.
            let without_port = |error: io::Error| match error.kind() {
                io::ErrorKind::AddrInUse => io::ErrorKind::AddrNotAvailable.into(),
                _ => error,
            };
            socket.bind(&source).map_err(without_port)?;
        }
        _ => {}
    }
    if protocol == Protocol::Tcp {
        // A server of this node can listen at the port meanwhile, and while the port rests.
        shared.platform.reuse_address(&socket)?;
    }
    tune(shared, protocol, &SockRef::from(&socket));
    if !first.is_empty() {
        // Otherwise the bytes follow in a packet of their own.
        let _ = shared.platform.connect_with_bytes(&socket);
    }
    shared.platform.connect(&socket, address)?;
    // No one listens at a port of this node from which the system lets sockets connect: then the
    // socket may have been connected to itself (RFC 9293, section 3.5, simultaneous open).
    if socket.local_addr()?.as_socket() == Some(address) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let stream = TcpStream::from_std(socket.into())?;
    if !first.is_empty() {
        // An endpoint of this node has answered by now.
        let socket = SockRef::from(&stream);
        match shared.platform.write_first(&socket, first) {
            // No error may follow, or another endpoint would be sent the same bytes.
            Ok(sent) => {
                let _ = shared.platform.end_handshake(&socket);
                first.drain(..sent);
                return Ok(stream);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                ) => {}
            Err(error) => return Err(error),
        }
    }
    timeout(limit, stream.writable())
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    stream.take_error()?.map_or(Ok(stream), Err)
}

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        sync::{Arc, Mutex, PoisonError},
    };

    use socket2::Socket;
    use switchyard_core::state::ResolvedServicePort;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::forwarder::{
        platform::{self, Platform},
        shared::ForwarderConfig,
        testing::{resolved, warnings},
    };

    /// A system that returns these results before it makes sockets, calls exhaustion a quota, has
    /// ten local ports, and none at addresses of clients.
    struct Scripted(Arc<Mutex<Vec<io::Result<Socket>>>>);

    impl Platform for Scripted {
        fn socket(&self, protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
            let next = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
            next.unwrap_or_else(|| platform::current().socket(protocol, address))
        }

        fn is_exhausted(&self, error: &io::Error) -> bool {
            error.kind() == io::ErrorKind::QuotaExceeded
        }

        fn ephemeral_ports(&self) -> Vec<u16> {
            (40_000..40_010).collect()
        }

        fn bind_as(&self, _: &Socket, _: SocketAddr) -> io::Result<()> {
            Err(io::ErrorKind::AddrNotAvailable.into())
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// A Service port with affinity and these endpoints.
    fn port(mut endpoints: [SocketAddr; 2]) -> Port {
        endpoints.sort();
        let affinity = Some(Duration::from_secs(100));
        let port = ResolvedServicePort { affinity, ..resolved(Protocol::Tcp, &endpoints) };
        Port::new(&Arc::new(port), &Arc::default())
    }

    #[test]
    fn no_endpoint_is_to_blame_for_a_lack_of_descriptors_or_ports() {
        let results = Arc::default();
        let mut shared = Shared::new(ForwarderConfig::default());
        shared.platform = Box::new(Scripted(Arc::clone(&results)));
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = port(listeners.each_ref().map(|listener| listener.local_addr().unwrap()));
        let client = SocketAddr::from(([127, 0, 0, 1], 4711));
        let ends = Ends { client, destination: client, is_shown: false };
        let endpoint = || {
            let connected = runtime().block_on(connect(
                &shared,
                &port,
                PoolKind::Cluster,
                ends,
                &mut Vec::new(),
            ));
            connected.map(|(_, chosen)| chosen.address)
        };
        let first = endpoint().unwrap();
        let tries_again = |first| {
            let (at, other) = (Instant::now() - Duration::from_secs(2), [127, 0, 0, 2].into());
            for _ in 0..2 {
                port.failed_at(at, first, other);
            }
        };
        tries_again(first);
        results.lock().unwrap().push(Err(io::ErrorKind::QuotaExceeded.into()));
        assert_eq!(endpoint(), Some(first), "the client stays with its endpoint");
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        results.lock().unwrap().push(Err(refused));
        assert_ne!(endpoint(), Some(first));
        results
            .lock()
            .unwrap()
            .extend([(); TRIES].map(|()| Err(io::ErrorKind::QuotaExceeded.into())));
        assert!(port.is_due(Warning::NoLocalPort));
        let logged = warnings(|| assert_eq!(endpoint(), None));
        assert!(matches!(&logged[..], [one] if one.contains("quota exceeded")), "{logged:?}");

        let first = endpoint().unwrap();
        tries_again(first);
        results.lock().unwrap().push(Err(io::ErrorKind::AddrNotAvailable.into()));
        assert_ne!(endpoint(), Some(first));
        let is_first = |last| {
            let ends = Ends { client: ([127, 0, 0, last], 4711).into(), ..ends };
            port.choose(PoolKind::Cluster, ends, &[]).unwrap().address == first
        };
        assert!((2..6).any(is_first), "a connection without a port tries no endpoint");
    }

    /// Tests that need root.
    mod kernel_tests {
        use switchyard_core::model::PerFamily;

        use super::*;

        #[test]
        fn an_endpoint_that_no_address_of_the_node_leads_to_is_left_out() {
            test_netns::in_namespace(|| {
                test_netns::run("ip link add name br7 type bridge");
                test_netns::run("ip link set br7 addrgenmode none");
                test_netns::run("ip link set br7 up");
                test_netns::run("ip -6 route add 2001:db8::/64 dev br7");
                let shared = Shared::new(ForwarderConfig::default());
                let port =
                    port(["[2001:db8::1]:80", "[2001:db8::2]:80"].map(|at| at.parse().unwrap()));
                let client = SocketAddr::from(([127, 0, 0, 1], 4711));
                let ends = Ends { client, destination: client, is_shown: false };
                for _ in 0..2 {
                    let mut first = Vec::new();
                    let connected = connect(&shared, &port, PoolKind::Cluster, ends, &mut first);
                    assert!(runtime().block_on(connected).is_none());
                }
                assert_eq!(shared.counters.get(Counted::Exhausted), 0);
                assert!(shared.counters.get(Counted::EndpointUnreachable) > 0);
                assert!(shared.counters.get(Counted::LeftOut) > 0);
            });
        }

        #[test]
        fn a_client_that_an_endpoint_does_not_see_after_all_leaves_others_ports() {
            test_netns::in_namespace(|| {
                test_netns::run("ip link set lo up");
                test_netns::run("ip addr add 192.0.2.1/24 dev lo");
                let mut shared = Shared::new(ForwarderConfig::default());
                shared.platform = Box::new(Scripted(Arc::default()));
                shared.showing.set(PerFamily { v4: true, v6: true });
                let listeners =
                    ["192.0.2.2:80", "192.0.2.3:80"].map(|at| TcpListener::bind(at).unwrap());
                let port = port(listeners.each_ref().map(|server| server.local_addr().unwrap()));
                let client = SocketAddr::from(([203, 0, 113, 1], 4711));
                let ends = Ends { client, destination: client, is_shown: true };
                let runtime = runtime();
                let connect = || {
                    let mut first = Vec::new();
                    let connected = connect(&shared, &port, PoolKind::Cluster, ends, &mut first);
                    runtime.block_on(connected)
                };
                let held: Vec<_> = (0..20).filter_map(|_| connect()).collect();
                // Of ten ports, six: one may be tried while none is taken.
                assert_eq!(held.len(), 2 * 6);
            });
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_endpoint_of_this_node_is_sent_the_first_bytes_at_once() {
        let shared = Shared::new(ForwarderConfig::default());
        let endpoint = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = endpoint.local_addr().unwrap();
        let are_sent = || {
            let mut first = b"first".to_vec();
            let connected =
                attempt(&shared, Protocol::Tcp, address, None, &mut first, Duration::MAX);
            runtime().block_on(connected).unwrap();
            first.is_empty()
        };
        // Rarely, the system is late with the answer.
        assert!((0..9).any(|_| are_sent()));
    }

    /// A system whose sockets of SCTP are of TCP, and the addresses they connect from.
    struct Recording(Arc<Mutex<Vec<IpAddr>>>);

    impl Platform for Recording {
        fn socket(&self, protocol: Protocol, address: SocketAddr) -> io::Result<Socket> {
            let is_udp = protocol == Protocol::Udp;
            platform::current().socket(if is_udp { protocol } else { Protocol::Tcp }, address)
        }

        fn connect(&self, socket: &Socket, address: SocketAddr) -> io::Result<()> {
            let from = socket.local_addr()?.as_socket().map(|from| from.ip());
            self.0.lock().unwrap().extend(from);
            platform::current().connect(socket, address)
        }
    }

    #[test]
    fn associations_have_the_address_of_the_route_alone() {
        let (from, mut shared) = (Arc::default(), Shared::new(ForwarderConfig::default()));
        shared.platform = Box::new(Recording(Arc::clone(&from)));
        let endpoint = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = endpoint.local_addr().unwrap();
        for protocol in [Protocol::Tcp, Protocol::Sctp] {
            let mut first = Vec::new();
            let connected = attempt(&shared, protocol, to, None, &mut first, Duration::MAX);
            runtime().block_on(connected).unwrap();
        }
        assert_eq!(*from.lock().unwrap(), [[0, 0, 0, 0], [127, 0, 0, 1]].map(IpAddr::from));
    }

    #[test]
    fn a_connection_of_a_socket_to_itself_is_refused() {
        let socket = platform::current().socket(Protocol::Tcp, ([127, 0, 0, 1], 0).into()).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let mut shared = Shared::new(ForwarderConfig::default());
        shared.platform = Box::new(Scripted(Arc::new(Mutex::new(vec![Ok(socket)]))));
        let connected = runtime().block_on(attempt(
            &shared,
            Protocol::Tcp,
            address,
            None,
            &mut Vec::new(),
            Duration::MAX,
        ));
        assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
