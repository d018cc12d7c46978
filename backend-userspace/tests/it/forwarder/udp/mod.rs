//! UDP flows.

mod endings;
mod flows;
mod gone;
mod limits;
mod refusals;

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    thread,
    time::Duration,
};

use switchyard_core::{model::Protocol, state::ResolvedServicePort};
use switchyard_userspace::forwarder::{Forwarder, Listener};

use crate::forwarder::support::{PATIENCE, id, listener, service};

/// A client on a loopback address.
struct Client {
    socket: UdpSocket,
    to: SocketAddr,
}

impl Client {
    fn new(last: u8, to: SocketAddr) -> Self {
        Self { socket: socket(last, 0), to }
    }

    fn send(&self, text: &str) {
        self.socket.send_to(text.as_bytes(), self.to).unwrap();
    }

    #[track_caller]
    fn receive(&self) -> String {
        let mut buffer = [0; 1000];
        let (length, from) = self.socket.recv_from(&mut buffer).unwrap();
        assert_eq!(from, self.to, "answers come from where the client has sent to");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Sends a datagram, and returns the name of the endpoint that answers.
    #[track_caller]
    fn ask(&self) -> String {
        self.send("?");
        self.receive().strip_suffix('?').unwrap().to_owned()
    }

    /// Whether there is no answer that is late.
    fn is_silent(&self) -> bool {
        self.socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let answer = self.socket.recv_from(&mut [0; 16]);
        self.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        answer.is_err()
    }
}

/// Binds a socket of a client or an endpoint; with port 0, to one that the system chooses.
pub(super) fn socket(last: u8, port: u16) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::from(([127, 0, 0, last], port))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Binds the socket of an endpoint.
fn bind() -> (UdpSocket, SocketAddr) {
    let socket = socket(1, 0);
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Starts an endpoint that answers with its name, and what it was sent.
fn echo(name: &str) -> SocketAddr {
    echo_at(0, name)
}

pub(super) fn echo_at(port: u16, name: &str) -> SocketAddr {
    let socket = socket(1, port);
    let address = socket.local_addr().unwrap();
    socket.set_read_timeout(None).unwrap();
    let name = name.as_bytes().to_vec();
    thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&[&name, &buffer[..length]].concat(), client);
        }
    });
    address
}

/// Returns an address that refuses datagrams, and the socket that keeps others from binding it: the
/// socket is connected elsewhere.
fn refusing() -> (UdpSocket, SocketAddr) {
    let (socket, address) = bind();
    socket.connect(address).unwrap();
    (socket, address)
}

/// A UDP Service port with these endpoints.
fn port(endpoints: &[SocketAddr]) -> ResolvedServicePort {
    service(&id("dns", Protocol::Udp), endpoints)
}

/// Serves a Service port, and returns the address of its listener.
fn serve(forwarder: &Forwarder, port: ResolvedServicePort) -> SocketAddr {
    serve_at(forwarder, port, |_| {})
}

pub(super) fn serve_at(
    forwarder: &Forwarder,
    port: ResolvedServicePort,
    change: impl FnOnce(&mut Listener),
) -> SocketAddr {
    let mut listener = listener(&port.id);
    change(&mut listener);
    forwarder.serve(&Arc::new(port));
    forwarder.listen(&listener).unwrap()
}
