//! Service ports, clients and endpoints on loopback addresses.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
pub use switchyard_core::testing::{pool, port_id as id, resolved_port as service};
use switchyard_core::{
    model::{Protocol, ServicePortId},
    state::{Action, Masquerade, PoolKind},
};
use switchyard_userspace::forwarder::{Counted, Counters, Forwarder, ForwarderConfig, Listener};
pub use test_netns::wait::{PATIENCE, until};

pub const CLUSTER: Action =
    Action::Pool { pool: PoolKind::Cluster, masquerade: Masquerade::Always };

/// Starts a forwarder with two threads, whose configuration can be changed first.
pub fn forwarder(change: impl FnOnce(&mut ForwarderConfig)) -> Forwarder {
    counting(change).0
}

/// Starts a forwarder as [`forwarder`] does, and returns its counters as well.
pub fn counting(change: impl FnOnce(&mut ForwarderConfig)) -> (Forwarder, Arc<Counters>) {
    let (mut config, counters) = (ForwarderConfig::default(), Arc::default());
    config.threads = Some(2);
    change(&mut config);
    (Forwarder::start_counting(config, &counters).unwrap(), counters)
}

/// The number of connections and flows that were refused, since they were too many.
pub fn refused(counters: &Counters) -> u64 {
    use Counted::{RefusedAll, RefusedClient, RefusedEndpoint, RefusedService};
    let all = [RefusedAll, RefusedService, RefusedClient, RefusedEndpoint];
    all.map(|refused| counters.get(refused)).iter().sum()
}

/// A listener on a loopback address, on a port that the system chooses.
pub fn listener(id: &ServicePortId) -> Listener {
    Listener {
        port: id.clone(),
        address: "127.0.0.1:0".parse().unwrap(),
        action: CLUSTER,
        allowed_sources: None,
    }
}

/// Serves a TCP Service with these endpoints, and returns the address of its listener.
pub fn serve(forwarder: &Forwarder, name: &str, endpoints: &[SocketAddr]) -> SocketAddr {
    let id = id(name, Protocol::Tcp);
    forwarder.serve(&Arc::new(service(&id, endpoints)));
    forwarder.listen(&listener(&id)).unwrap()
}

/// Starts an endpoint, which handles each connection on its own thread.
pub fn endpoint(handle: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        for stream in socket.incoming() {
            // A test takes all descriptors of the process.
            let Ok(stream) = stream else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            patient(&stream);
            let handle = handle.clone();
            thread::spawn(move || handle(stream));
        }
    });
    address
}

/// Starts an endpoint that sends its name to each client, and then what it receives.
pub fn echo(name: &'static str) -> SocketAddr {
    endpoint(move |stream| {
        let _ = (&stream).write_all(name.as_bytes());
        let _ = io::copy(&mut &stream, &mut &stream);
    })
}

/// Returns an address that refuses connections.
pub fn refusing() -> SocketAddr {
    // The socket stays bound, so that no one else gets the port.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    address
}

/// A listener whose queue is full, so that the system does not answer clients.
pub struct Silent {
    pub address: SocketAddr,
    pub socket: Socket,
    _queue: Vec<Socket>,
}

/// Makes an endpoint that does not answer.
pub fn silent() -> Silent {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap();
    let queue = (0..8).map(|_| {
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client.set_nonblocking(true).unwrap();
        let _ = client.connect(&address);
        client
    });
    let queue: Vec<Socket> = queue.collect();
    let address = address.as_socket().unwrap();
    let answer = TcpStream::connect_timeout(&address, Duration::from_millis(100));
    assert_eq!(answer.expect_err("the queue is full").kind(), ErrorKind::TimedOut);
    Silent { address, socket, _queue: queue }
}

/// Connects from a loopback address.
pub fn connect_from(client: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let client: IpAddr = Ipv4Addr::from(client).into();
    socket.bind(&SocketAddr::new(client, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = socket.into();
    patient(&stream);
    stream
}

pub fn connect(to: SocketAddr) -> TcpStream {
    connect_from([127, 0, 0, 1], to)
}

fn patient(stream: &TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
}

/// Reads as many bytes as `text` has, which must be `text`.
#[track_caller]
pub fn expect(stream: &mut TcpStream, text: &str) {
    let mut read = vec![0; text.len()];
    stream.read_exact(&mut read).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), text);
}

/// Expects the end of what the other side sends.
#[track_caller]
pub fn expect_end(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
}

/// Expects that the other side resets the connection, perhaps after some bytes.
#[track_caller]
pub fn expect_reset(stream: &mut TcpStream) {
    let read = stream.read_to_end(&mut Vec::new());
    assert_eq!(read.expect_err("the connection is reset").kind(), ErrorKind::ConnectionReset);
}

/// Sends the end of what there is to send.
pub fn end(stream: &TcpStream) {
    stream.shutdown(Shutdown::Write).unwrap();
}

/// Closes a connection by RST.
pub fn reset(stream: TcpStream) {
    Socket::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}
