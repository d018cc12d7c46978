//! Clients: threads in their namespaces that make one real connection after the other.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use packet_rig::{Answer, NetNs, Outcome, Protocol, RigError};
use socket2::{Domain, Socket, Type};

use crate::{
    board::{Attempt, Board},
    cast::{ROLES, Role},
    error::{DemoError, Result},
    world::World,
};

/// The time without an answer after which a connection has failed. A SYN that was lost, or refused while
/// the kernel was still busy sending it, is repeated after a second.
const TIMEOUT: Duration = Duration::from_millis(2500);

/// The time to wait for workers that are in the middle of a connection.
const PATIENCE: Duration = Duration::from_millis(200);

/// Running traffic. Dropping it stops it.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<Result<(), RigError>>>,
}

/// One client.
struct Worker {
    role: usize,
    client: &'static str,
    namespace: NetNs,
    targets: Vec<(Protocol, SocketAddr)>,
    board: Arc<Board>,
    stop: Arc<AtomicBool>,
}

impl Traffic {
    /// Starts the clients of every Service.
    pub fn start(world: &World, board: &Arc<Board>) -> Result<Self> {
        let mut traffic = Self { stop: Arc::new(AtomicBool::new(false)), workers: Vec::new() };
        for (role, Role { places, workers, frontends, .. }) in ROLES.iter().enumerate() {
            let targets = frontends
                .iter()
                .map(|frontend| Ok((frontend.protocol, frontend.target.parse()?)))
                .collect::<Result<Vec<_>, std::net::AddrParseError>>()
                .map_err(io::Error::other)
                .map_err(DemoError::io("read the cast's addresses"))?;
            for client in *places {
                let namespace = &world.place(client)?.namespace;
                for _ in 0..*workers {
                    let worker = Worker {
                        role,
                        client,
                        namespace: namespace.clone(),
                        targets: targets.clone(),
                        board: Arc::clone(board),
                        stop: Arc::clone(&traffic.stop),
                    };
                    traffic.workers.push(thread::spawn(move || worker.run()));
                }
            }
        }
        Ok(traffic)
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
        self.namespace.run(|| {
            let pause = Duration::from_micros(ROLES[self.role].pause);
            let mut turn = 0;
            while !self.stop.load(Ordering::Relaxed) {
                let frontend = turn % self.targets.len();
                let attempt = self.connect(frontend);
                if !self.stop.load(Ordering::Relaxed) {
                    self.board.count(&attempt);
                }
                turn += 1;
                thread::sleep(pause);
            }
        })
    }

    fn connect(&self, frontend: usize) -> Attempt {
        let (protocol, address) = self.targets[frontend];
        let opened = Instant::now();
        let mut established = None;
        let answer = match protocol {
            Protocol::Udp => ask_udp(address),
            _ => ask_tcp(address, &mut established),
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
fn ask_tcp(address: SocketAddr, established: &mut Option<Instant>) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // Closed with a reset: thousands of connections to one address would use up the ports if each
    // kept its own for a minute.
    socket.set_linger(Some(Duration::ZERO))?;
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
fn ask_udp(address: SocketAddr) -> io::Result<String> {
    let socket = UdpSocket::bind(match address {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    })?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send(b"who\n")?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
