//! Servers that answer with their name and the address of the client.
//!
//! Every line (TCP) or datagram (UDP) is answered with one line: the server's name, and the
//! address and port that the request came from.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd, RawFd},
    thread::{self, JoinHandle},
};

use socket2::Domain;

use crate::{
    error::{Result, RigError},
    netns::NetNs,
    protocol::Protocol,
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// An answer of an echo server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The server's name.
    pub endpoint: String,
    /// The address and port of the client, as the server saw them.
    pub seen: SocketAddr,
}

impl Answer {
    /// Reads a line that a server sent.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let endpoint = words.next()?.to_owned();
        let address: IpAddr = words.next()?.parse().ok()?;
        let port = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Self { endpoint, seen: (address, port).into() })
    }

    fn line(endpoint: &str, peer: SocketAddr) -> String {
        // A dual-stack socket shows IPv4 peers as mapped addresses.
        format!("{endpoint} {} {}\n", peer.ip().to_canonical(), peer.port())
    }
}

/// A running server on one port, for both families. Dropping it closes the port and every
/// connection.
#[derive(Debug)]
pub struct EchoServer {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// Starts a server named `name` on all addresses of the namespace.
    pub fn start(namespace: &NetNs, name: &str, port: u16, protocols: &[Protocol]) -> Result<Self> {
        let socket = |source| RigError::Socket {
            what: format!("echo server {name} on port {port}"),
            source,
        };
        let (stopped, stop) = io::pipe().map_err(socket)?;
        let sockets = namespace.run(|| Sockets::open(port, protocols))?.map_err(socket)?;
        let name = name.to_owned();
        let thread = thread::spawn(move || serve(&name, sockets, &stopped));
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        // Closing our end of the pipe wakes the thread.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The sockets of one server.
struct Sockets {
    listeners: Vec<TcpListener>,
    udp: Option<UdpSocket>,
    connections: Vec<Connection>,
}

struct Connection {
    stream: TcpStream,
    answer: String,
}

impl Sockets {
    fn open(port: u16, protocols: &[Protocol]) -> io::Result<Self> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into();
        let mut sockets = Self { listeners: Vec::new(), udp: None, connections: Vec::new() };
        for protocol in protocols {
            let socket = protocol.socket(Domain::IPV6)?;
            socket.set_only_v6(false)?;
            socket.set_nonblocking(true)?;
            if *protocol != Protocol::Udp {
                socket.set_reuse_address(true)?;
            }
            socket.bind(&any)?;
            match protocol {
                Protocol::Udp => sockets.udp = Some(socket.into()),
                Protocol::Tcp | Protocol::Sctp => {
                    socket.listen(BACKLOG)?;
                    sockets.listeners.push(socket.into());
                }
            }
        }
        Ok(sockets)
    }

    fn accept(&mut self, name: &str) {
        for listener in &self.listeners {
            while let Ok((stream, peer)) = listener.accept() {
                // Only a matter of speed, and not an option of SCTP's.
                let _ = stream.set_nodelay(true);
                if stream.set_nonblocking(true).is_ok() {
                    let answer = Answer::line(name, peer);
                    self.connections.push(Connection { stream, answer });
                }
            }
        }
    }

    fn answer_datagrams(&self, name: &str) {
        let Some(socket) = &self.udp else { return };
        let mut buffer = [0; 512];
        loop {
            match socket.recv_from(&mut buffer) {
                Ok((_, peer)) => {
                    let _ = socket.send_to(Answer::line(name, peer).as_bytes(), peer);
                }
                // An ICMP error about an earlier answer; the next call gives the next datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }
}

impl Connection {
    /// Answers the lines that have come in; returns false when the connection is over.
    fn answer_lines(&mut self) -> bool {
        let mut buffer = [0; 512];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(length) => {
                    let lines = buffer[..length].iter().filter(|byte| **byte == b'\n').count();
                    if self.stream.write_all(self.answer.repeat(lines).as_bytes()).is_err() {
                        return false;
                    }
                }
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

fn serve(name: &str, mut sockets: Sockets, stopped: &PipeReader) {
    loop {
        let mut descriptors = vec![stopped.as_raw_fd()];
        descriptors.extend(sockets.connections.iter().map(|one| one.stream.as_raw_fd()));
        descriptors.extend(sockets.listeners.iter().map(AsRawFd::as_raw_fd));
        descriptors.extend(sockets.udp.iter().map(AsRawFd::as_raw_fd));
        let Ok(ready) = wait_readable(&descriptors) else { return };
        if ready[0] {
            return;
        }
        let mut readable = ready[1..].iter();
        sockets
            .connections
            .retain_mut(|connection| readable.next() != Some(&true) || connection.answer_lines());
        sockets.accept(name);
        sockets.answer_datagrams(name);
    }
}

/// Waits until one of the descriptors can be read, has failed or was closed, and returns for each
/// whether that is so.
fn wait_readable(descriptors: &[RawFd]) -> io::Result<Vec<bool>> {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 })
        .collect();
    let count = libc::nfds_t::try_from(polled.len()).map_err(io::Error::other)?;
    loop {
        // SAFETY: the pointer and the count describe one live, exclusively borrowed buffer.
        if unsafe { libc::poll(polled.as_mut_ptr(), count, -1) } >= 0 {
            return Ok(polled.iter().map(|one| one.revents != 0).collect());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
