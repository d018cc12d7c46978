//! Clients: threads that make one real connection after the other.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use packet_rig::{Answer, NetNs, Outcome, Protocol, RigError, Target};
use socket2::{Domain, Socket, Type};

use crate::{
    board::{Attempt, Board},
    error::{DemoError, Result},
};

/// The time without an answer after which a connection has failed. A SYN that was lost, or refused while
/// the kernel was still busy sending it, is repeated after a second.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// The time to wait for workers that are in the middle of a connection.
const PATIENCE: Duration = Duration::from_millis(200);

/// Running traffic. Dropping it stops it.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    gate: Arc<RwLock<()>>,
    workers: Vec<JoinHandle<Result<(), RigError>>>,
}

/// Where a client is.
#[derive(Clone, Debug)]
pub enum Origin {
    /// In a network namespace.
    Namespace(NetNs),
    /// On this machine, at this address; IPv6 clients have the one loopback address there is.
    Address(Ipv4Addr),
}

/// One client.
struct Worker {
    role: usize,
    pause: Duration,
    client: &'static str,
    origin: Origin,
    targets: Vec<Target>,
    board: Arc<Board>,
    stop: Arc<AtomicBool>,
    /// Held while a connection is open.
    gate: Arc<RwLock<()>>,
}

impl Traffic {
    /// Starts the clients of every Service, each with its name and origin, which use the Service's
    /// targets in turn.
    pub fn start(
        clients: &[Vec<(&'static str, Origin)>],
        targets: &[Vec<Target>],
        board: &Arc<Board>,
    ) -> Self {
        let cast = board.state().cast;
        let mut traffic = Self { stop: Arc::default(), gate: Arc::default(), workers: Vec::new() };
        for (index, ((role, clients), targets)) in
            cast.roles.iter().zip(clients).zip(targets).enumerate()
        {
            for (client, origin) in clients {
                for _ in 0..role.workers {
                    let worker = Worker {
                        role: index,
                        pause: Duration::from_micros(role.pause),
                        client,
                        origin: origin.clone(),
                        targets: targets.clone(),
                        board: Arc::clone(board),
                        stop: Arc::clone(&traffic.stop),
                        gate: Arc::clone(&traffic.gate),
                    };
                    traffic.workers.push(thread::spawn(move || worker.run()));
                }
            }
        }
        traffic
    }

    /// Lets the connections that have begun end, and none begin until the guard is dropped.
    pub fn pause(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the traffic; an error if a client stopped working before.
    pub fn finish(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + PATIENCE;
        for worker in self.workers.drain(..) {
            while !worker.is_finished() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
            // The others wait for a refusal or an answer; they end with the process.
            if worker.is_finished() {
                let panicked = |_| io::Error::other("its thread panicked");
                worker.join().map_err(panicked).map_err(DemoError::io("run a client"))??;
            }
        }
        Ok(())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Worker {
    fn run(&self) -> Result<(), RigError> {
        match &self.origin {
            Origin::Namespace(namespace) => namespace.run(|| self.connect_in_turn()),
            Origin::Address(_) => {
                self.connect_in_turn();
                Ok(())
            }
        }
    }

    fn connect_in_turn(&self) {
        let mut turn = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let attempt = self.connect(turn % self.targets.len());
            drop(gate);
            if !self.stop.load(Ordering::Relaxed) {
                self.board.count(&attempt);
            }
            turn += 1;
            thread::sleep(self.pause);
        }
    }

    /// The address and port to bind to.
    fn source(&self, target: SocketAddr) -> SocketAddr {
        match (target, &self.origin) {
            (SocketAddr::V4(_), Origin::Address(address)) => (*address, 0).into(),
            (SocketAddr::V4(_), Origin::Namespace(_)) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            (SocketAddr::V6(_), _) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        }
    }

    fn connect(&self, frontend: usize) -> Attempt {
        let Target { protocol, address } = self.targets[frontend];
        let source = self.source(address);
        let opened = Instant::now();
        let mut established = None;
        let answer = match protocol {
            Protocol::Udp => ask_udp(source, address),
            _ => ask_tcp(source, address, &mut established),
        };
        let outcome = match answer {
            Ok(line) => Answer::parse(&line).map_or(Outcome::Other(line), Outcome::from),
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => Outcome::Refused,
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Outcome::TimedOut,
                _ => Outcome::Other(error.to_string()),
            },
        };
        Attempt {
            role: self.role,
            frontend,
            client: self.client,
            opened,
            established: established.unwrap_or_else(Instant::now),
            took: opened.elapsed(),
            outcome,
        }
    }
}

/// Opens a connection, requests the name of the server, and closes the connection.
fn ask_tcp(
    source: SocketAddr,
    address: SocketAddr,
    established: &mut Option<Instant>,
) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // Closed with a reset: thousands of connections to one address would use up the ports if each
    // kept its own for a minute.
    socket.set_linger(Some(Duration::ZERO))?;
    if !source.ip().is_unspecified() {
        socket.bind(&source.into())?;
    }
    socket.connect_timeout(&address.into(), TIMEOUT)?;
    *established = Some(Instant::now());
    let mut stream: TcpStream = socket.into();
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"who\n")?;
    let mut line = String::new();
    BufReader::with_capacity(512, stream).take(512).read_line(&mut line)?;
    match line.ends_with('\n') {
        true => Ok(line),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Requests the name of the server in one datagram, from a new port.
fn ask_udp(source: SocketAddr, address: SocketAddr) -> io::Result<String> {
    let socket = UdpSocket::bind(source)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send(b"who\n")?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
