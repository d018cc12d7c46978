//! One connection, from its client's arrival to its end.

use std::{
    io::{self, Read},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    time::Duration,
};

use socket2::SockRef;
use switchyard_core::{model::Protocol, state::PoolKind};
use tokio::{io::Interest, net::TcpStream, select, time::timeout};

use super::{
    connect::connect,
    copy::{Ending, copy},
    delivery::{Delivery, delivered, taken},
    header::header,
    ready_io::with_buffer,
    release, tune, tune_lasting,
};
use crate::forwarder::{
    counters::Counted,
    ends::Ends,
    port::Chosen,
    shared::{OpenListener, Serving, Shared},
    slots::Slot,
};

/// The most bytes that are read before there is an endpoint.
const FIRST: usize = 4096;

/// Starts a task for the connection of a client, if the client may have it.
pub(super) fn admit(open: &Arc<OpenListener>, client: TcpStream, address: SocketAddr) {
    let serving = open.serving();
    let shared = &open.shared;
    let protocol = serving.port.id().name.protocol;
    if !shared.platform.inherits_options() {
        tune(shared, protocol, &SockRef::from(&client));
        tune_lasting(shared, protocol, &SockRef::from(&client));
    }
    let (listener, client_ip) = (&serving.listener, address.ip());
    // A connection that is dropped is reset.
    if !listener.allows(client_ip) {
        shared.counters.count(Counted::RefusedSource);
        return;
    }
    let unserved = Counted::unserved(protocol);
    let Some(pool) = listener.pool(client_ip, &shared.clients) else {
        return shared.counters.count(unserved);
    };
    let id = serving.port.id();
    match shared.slots.take(id, shared.source(client_ip)) {
        Ok(slot) => {
            let (shared, counters) = (Arc::clone(shared), Arc::clone(&shared.counters));
            let run = move |client| run(shared, serving, pool, client, address, slot);
            let Some(loops) = &open.handed_to else {
                tokio::spawn(run(client));
                return;
            };
            if let (Some(thread), Ok(client)) = (loops.all().next(), client.into_std()) {
                thread.spawn(async move {
                    // One that the thread has no room for is reset.
                    match TcpStream::from_std(client) {
                        Ok(client) => run(client).await,
                        Err(_) => counters.count(unserved),
                    }
                });
            }
        }
        Err(full) => shared.slots.refuse(&serving.port, client_ip, full),
    }
}

async fn run(
    shared: Arc<Shared>,
    serving: Arc<Serving>,
    pool: PoolKind,
    client: TcpStream,
    address: SocketAddr,
    _slot: Slot,
) {
    let protocol = serving.port.id().name.protocol;
    // Most of a connection's life is that of `copy`, whose task should not be as big as that.
    let starting = Box::pin(start(&shared, &serving, pool, &client, address));
    let Some(Started { endpoint, first, mut chosen }) = starting.await else { return };
    drop(serving);
    match copy(&shared, protocol, &client, &endpoint, first).await {
        Ending::Complete { is_client_first } => {
            if is_client_first {
                chosen.closed_first();
            }
            for (end, other) in [(&client, &endpoint), (&endpoint, &client)] {
                if is_pending(&shared, end) {
                    // What the system keeps for an end takes the place as long.
                    let _ = SockRef::from(other).shutdown(Shutdown::Write);
                    let _ = SockRef::from(end).shutdown(Shutdown::Write);
                    if Box::pin(taken(&shared, end)).await == Delivery::Failed {
                        continue;
                    }
                }
                release(end);
            }
        }
        Ending::EndpointGone => {
            drop(endpoint);
            if Box::pin(delivered(&shared, &client)).await != Delivery::Failed {
                // Has the system reset the connection when the client sends something.
                release(&client);
            }
        }
        Ending::ClientGone => {
            drop(client);
            // An endpoint that works for a client who is gone should know. A reset takes nothing
            // from the endpoint that it has.
            let delivery = Box::pin(delivered(&shared, &endpoint)).await;
            if delivery == Delivery::Closed {
                release(&endpoint);
            }
            // The end of the endpoint may be behind what the client has not taken.
            if delivery == Delivery::Closed || has_ended(&endpoint).await {
                chosen.closed_first();
            }
        }
        Ending::Failed => {}
    }
}

/// Whether something is known to be on its way to an end.
fn is_pending(shared: &Shared, end: &TcpStream) -> bool {
    shared.platform.has_acknowledged(&SockRef::from(end)) == Some(false)
}

/// Whether the other end is known to have sent everything.
async fn has_ended(stream: &TcpStream) -> bool {
    let ready = timeout(Duration::ZERO, stream.ready(Interest::READABLE)).await;
    ready.is_ok_and(|ready| ready.is_ok_and(|ready| ready.is_read_closed()))
}

/// A connection that an endpoint has taken.
struct Started {
    endpoint: TcpStream,
    /// The bytes to send to the endpoint first.
    first: Vec<u8>,
    chosen: Chosen,
}

/// Connects a client to an endpoint. Returns `None` if no endpoint takes the connection, or if the
/// client does not wait.
async fn start(
    shared: &Shared,
    serving: &Serving,
    pool: PoolKind,
    client: &TcpStream,
    address: SocketAddr,
) -> Option<Started> {
    let protocol = serving.port.id().name.protocol;
    let destination = if serving.port.needs_destination() {
        let original = shared.platform.original_destination(SockRef::from(client));
        original.or_else(|| client.local_addr().ok())?
    } else {
        serving.listener.address
    };
    let ends = Ends { client: address, destination, is_shown: serving.listener.shows_clients() };
    let version = serving.port.proxy_protocol().filter(|_| protocol == Protocol::Tcp);
    let mut first = version.map_or(Vec::new(), |version| header(version, ends));
    let of_client =
        if protocol == Protocol::Tcp { read_first(client, &mut first).ok()? } else { 0 };
    let (endpoint, chosen) = select! {
        biased;
        endpoint = connect(shared, &serving.port, pool, ends, &mut first) => endpoint?,
        // The client has reset the connection. One that only sends no more may still read.
        _ = client.ready(Interest::ERROR) => return None,
    };
    shared.counters.add(Counted::BytesIn, of_client as u64);
    Some(Started { endpoint, first, chosen })
}

/// Appends what a client has sent already, which then takes no packet, and wakes no endpoint, of
/// its own. Returns how many bytes that was.
fn read_first(client: &TcpStream, first: &mut Vec<u8>) -> io::Result<usize> {
    with_buffer(|buffer| match (&*SockRef::from(client)).read(&mut buffer[..FIRST]) {
        Ok(read) => {
            first.extend_from_slice(&buffer[..read]);
            Ok(read)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream as Blocking},
    };

    use socket2::{Domain, Socket, Type};
    use switchyard_core::{
        model::{LbAlgorithm, ProxyProtocol},
        state::ResolvedServicePort,
    };
    use test_netns::wait::{PATIENCE, scaled};
    use tokio::runtime::Builder;

    use super::*;
    use crate::forwarder::{
        shared::ForwarderConfig,
        testing::{self, resolved},
    };

    const ANY: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

    #[test]
    fn what_came_before_there_was_an_endpoint_arrives_once_and_in_order() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _inside = runtime.enter();
        let shared = Arc::new(Shared::new(ForwarderConfig::default()));
        let intake = TcpListener::bind(SocketAddr::from(ANY)).unwrap();
        let address = |socket: &Socket| socket.local_addr().unwrap().as_socket().unwrap();
        let mut sockets = [(); 2].map(|()| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from(ANY).into()).unwrap();
            socket
        });
        // The first endpoint has its port, but does not listen.
        sockets.sort_by_key(address);
        let [refuses, takes] = sockets.each_ref().map(address);
        let [_refusing, endpoint] = sockets;
        endpoint.listen(16).unwrap();
        let (to, endpoint) = (intake.local_addr().unwrap(), TcpListener::from(endpoint));

        #[cfg(target_os = "linux")]
        let mut fewest = u32::MAX;
        for case in 0..32 {
            let is = |bit: usize| case & (1 << bit) != 0;
            let (has_header, is_retried, is_half_closed) = (is(0), is(1), is(2));
            let size = [1, FIRST, FIRST + 1, 3 * FIRST][case >> 3];
            let bytes: Vec<u8> = (0..size).map(|place| (place % 251) as u8).collect();
            let mut client = patient(Blocking::connect(to).unwrap());
            client.write_all(&bytes).unwrap();
            if is_half_closed {
                client.shutdown(Shutdown::Write).unwrap();
            }

            let endpoints = if is_retried { &[refuses, takes][..] } else { &[takes] };
            let version = has_header.then_some(ProxyProtocol::V1);
            let port = ResolvedServicePort {
                lb_algorithm: LbAlgorithm::WeightedFailover,
                proxy_protocol: version,
                ..resolved(Protocol::Tcp, endpoints)
            };
            let open = OpenListener::new(&shared, to, testing::serving(port, to), None);
            let (accepted, from) = intake.accept().unwrap();
            accepted.set_nonblocking(true).unwrap();
            admit(&Arc::new(open), TcpStream::from_std(accepted).unwrap(), from);

            let ends = Ends { client: from, destination: to, is_shown: false };
            let header = version.map_or(Vec::new(), |version| header(version, ends));
            let mut at_endpoint = patient(endpoint.accept().unwrap().0);
            let mut first = vec![0; header.len() + size];
            at_endpoint.read_exact(&mut first).unwrap();
            assert_eq!(first, [header, bytes].concat(), "{case}");
            #[cfg(target_os = "linux")]
            if size == 1 && !is_half_closed {
                fewest = fewest.min(testing::packets_in(&at_endpoint));
            }
            at_endpoint.write_all(b"answer").unwrap();
            client.read_exact(&mut [0; 6]).unwrap();
            let mut rest = Vec::new();
            if !is_half_closed {
                client.write_all(b"later").unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            }
            at_endpoint.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, if is_half_closed { &b""[..] } else { b"later" }, "{case}");
        }
        // The system sends the end of a handshake alone if the bytes are late.
        #[cfg(target_os = "linux")]
        assert_eq!(fewest, 2, "the end of a handshake has the bytes");
        assert_eq!(shared.counters.get(Counted::Retries), 16);
    }

    fn patient(stream: Blocking) -> Blocking {
        stream.set_read_timeout(Some(scaled(PATIENCE))).unwrap();
        stream
    }
}
