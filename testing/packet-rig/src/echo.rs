//! Servers that answer with their name and the address of the client.
//!
//! Every line (TCP) or datagram (UDP) is answered with one line: the server's name, and the
//! address and port that the request came from.

use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsRawFd, RawFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use socket2::{Domain, SockRef};

use crate::{
    error::{Result, RigError},
    netns::NetNs,
    protocol::Protocol,
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// The time after which a connection that was not accepted shows that the queue is full.
const FULL: Duration = Duration::from_millis(100);

/// The most connections that it takes to fill the queue of a silent server.
const FILLERS: usize = 8;

/// The time between two looks at whether a silent server is to accept connections again.
const SILENCE: Duration = Duration::from_millis(10);

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
    listeners: Vec<TcpListener>,
    is_silent: Arc<AtomicBool>,
    /// The connections that fill the queues of a silent server.
    fillers: Vec<TcpStream>,
}

impl EchoServer {
    /// Starts a server named `name` on all addresses of the namespace.
    pub fn start(namespace: &NetNs, name: &str, port: u16, protocols: &[Protocol]) -> Result<Self> {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        namespace
            .run(|| Sockets::open(any, protocols))?
            .and_then(|sockets| Self::serve(name, sockets))
            .map_err(RigError::io(format!("start the echo server {name} on port {port}")))
    }

    /// Starts a server named `name` at an address and port of the namespace that the thread is in.
    pub fn start_at(name: &str, address: SocketAddr, protocols: &[Protocol]) -> Result<Self> {
        Sockets::open(address, protocols)
            .and_then(|sockets| Self::serve(name, sockets))
            .map_err(RigError::io(format!("start the echo server {name} at {address}")))
    }

    /// Has the server accept no TCP connection any more, so that nothing answers a SYN, as with a
    /// host that is off. Connections that exist go on; one that is being opened in the meantime may
    /// hang.
    pub fn silence(&mut self) -> io::Result<()> {
        self.is_silent.store(true, Ordering::Relaxed);
        for listener in &self.listeners {
            // The kernel drops a SYN while one connection waits in the queue.
            SockRef::from(listener).listen(0)?;
            let address = listener.local_addr()?;
            // The thread may still accept one; so the queue is full only when a connection hangs.
            let is_full = (0..FILLERS).any(|_| match TcpStream::connect_timeout(&address, FULL) {
                Ok(filler) => {
                    self.fillers.push(filler);
                    false
                }
                Err(error) => error.kind() == io::ErrorKind::TimedOut,
            });
            if !is_full {
                return Err(io::Error::other("connections are still accepted"));
            }
        }
        Ok(())
    }

    /// Ends [`Self::silence`].
    pub fn answer_again(&mut self) -> io::Result<()> {
        self.fillers.clear();
        for listener in &self.listeners {
            SockRef::from(listener).listen(BACKLOG)?;
        }
        self.is_silent.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn serve(name: &str, sockets: Sockets) -> io::Result<Self> {
        let listeners = sockets.listeners.iter().map(TcpListener::try_clone);
        let listeners = listeners.collect::<io::Result<_>>()?;
        let (stopped, stop) = io::pipe()?;
        let name = name.to_owned();
        let is_silent = Arc::new(AtomicBool::new(false));
        let silent = Arc::clone(&is_silent);
        let thread = thread::spawn(move || serve(&name, sockets, &stopped, &silent));
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
            listeners,
            is_silent,
            fillers: Vec::new(),
        })
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
    fn open(address: SocketAddr, protocols: &[Protocol]) -> io::Result<Self> {
        let mut sockets = Self { listeners: Vec::new(), udp: None, connections: Vec::new() };
        for protocol in protocols {
            let socket = protocol.socket(Domain::for_address(address))?;
            if address.is_ipv6() {
                socket.set_only_v6(false)?;
            }
            socket.set_nonblocking(true)?;
            if *protocol != Protocol::Udp {
                socket.set_reuse_address(true)?;
            }
            socket.bind(&address.into())?;
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

fn serve(name: &str, mut sockets: Sockets, stopped: &PipeReader, is_silent: &AtomicBool) {
    loop {
        let silent = is_silent.load(Ordering::Relaxed);
        let mut descriptors = vec![stopped.as_raw_fd()];
        descriptors.extend(sockets.connections.iter().map(|one| one.stream.as_raw_fd()));
        descriptors.extend(sockets.udp.iter().map(AsRawFd::as_raw_fd));
        if !silent {
            descriptors.extend(sockets.listeners.iter().map(AsRawFd::as_raw_fd));
        }
        let Ok(ready) = wait_readable(&descriptors, silent.then_some(SILENCE)) else { return };
        if ready[0] {
            return;
        }
        let mut readable = ready[1..].iter();
        sockets
            .connections
            .retain_mut(|connection| readable.next() != Some(&true) || connection.answer_lines());
        if !is_silent.load(Ordering::Relaxed) {
            sockets.accept(name);
        }
        sockets.answer_datagrams(name);
    }
}

/// Waits until one of the descriptors can be read, has failed or was closed, or for the longest
/// time, and returns for each whether that is so.
fn wait_readable(descriptors: &[RawFd], longest: Option<Duration>) -> io::Result<Vec<bool>> {
    let longest = longest.map_or(-1, |time| i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 })
        .collect();
    let count = libc::nfds_t::try_from(polled.len()).map_err(io::Error::other)?;
    loop {
        // SAFETY: the pointer and the count describe one live, exclusively borrowed buffer.
        if unsafe { libc::poll(polled.as_mut_ptr(), count, longest) } >= 0 {
            return Ok(polled.iter().map(|one| one.revents != 0).collect());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's answer over a new connection, and the connection.
    fn open(address: SocketAddr) -> io::Result<(String, TcpStream)> {
        let mut stream = TcpStream::connect_timeout(&address, FULL)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok((ask(&mut stream)?, stream))
    }

    fn ask(stream: &mut TcpStream) -> io::Result<String> {
        stream.write_all(b"who\n")?;
        let mut buffer = [0; 64];
        let length = stream.read(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    #[test]
    fn a_silent_server_does_not_answer_until_it_is_to_answer_again() {
        let free = TcpListener::bind("127.99.1.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let mut server = EchoServer::start_at("a", address, &[Protocol::Tcp]).unwrap();
        for _ in 0..3 {
            let (answer, mut stream) = open(address).unwrap();
            assert!(answer.starts_with("a 127."), "{answer}");
            server.silence().unwrap();
            for _ in 0..3 {
                assert_eq!(open(address).unwrap_err().kind(), io::ErrorKind::TimedOut);
            }
            assert_eq!(ask(&mut stream).unwrap(), answer, "connections that exist go on");
            server.answer_again().unwrap();
        }
    }
}
