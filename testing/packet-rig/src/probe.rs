//! Single requests with real sockets.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket};

use crate::{
    conversation::Conversation,
    echo::Answer,
    error::Result,
    netns::NetNs,
    outcome::Outcome,
    protocol::{Protocol, Target},
    wait::scaled,
};

/// A request that can be made any number of times.
#[derive(Clone, Debug)]
pub struct Probe {
    pub target: Target,
    /// The time to wait for the connection, and then again for the answer.
    pub timeout: Duration,
    /// The address to send from; the kernel's choice, if `None`.
    pub source: Option<IpAddr>,
    /// The port to send from, 0 for any.
    pub source_port: u16,
    /// Whether a TCP connection ends by a reset, so that its port can be used again at once; it
    /// does so with `source_port`, too.
    pub resets: bool,
}

impl Probe {
    /// A probe that waits long enough for an answer or a refusal on a busy machine.
    ///
    /// That is well over a second: an ICMP error that comes back while `connect` still holds the
    /// socket is ignored by the kernel, and the refusal of the next SYN, a second later, counts.
    pub fn new(target: Target) -> Self {
        let timeout = scaled(Duration::from_secs(4));
        Self { target, timeout, source: None, source_port: 0, resets: false }
    }

    /// A probe that expects no answer, and waits just long enough to rule out a refusal (see
    /// [`Self::new`]).
    pub fn expecting_silence(target: Target) -> Self {
        let timeout = match target.protocol {
            Protocol::Tcp | Protocol::Sctp => Duration::from_millis(1500),
            Protocol::Udp => Duration::from_millis(600),
        };
        Self { timeout: scaled(timeout), ..Self::new(target) }
    }

    /// Makes the request once, from inside `namespace`.
    pub fn run(&self, namespace: &NetNs) -> Result<Outcome> {
        namespace.run(|| self.attempt())
    }

    /// Makes the request `count` times, one after the other.
    pub fn run_many(&self, namespace: &NetNs, count: usize) -> Result<Vec<Outcome>> {
        namespace.run(|| (0..count).map(|_| self.attempt()).collect())
    }

    /// Makes the request once, from the namespace the thread is in.
    pub fn attempt(&self) -> Outcome {
        let answer = self.socket().and_then(|socket| match self.target.protocol {
            Protocol::Tcp | Protocol::Sctp => self.ask_stream(socket),
            Protocol::Udp => self.ask_udp(&socket.into()),
        });
        match answer {
            Ok(line) => match Answer::parse(&line) {
                Some(answer) => answer.into(),
                None => Outcome::Other(format!("answer {line:?}")),
            },
            Err(error) => Outcome::from_error(&error),
        }
    }

    /// Opens a connection (with UDP, chooses a port to send from) without a request yet, from the
    /// namespace the thread is in. The timeout also holds for each later request.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made, bound or connected.
    pub fn converse(&self) -> io::Result<Conversation> {
        let socket = self.socket()?;
        let address = self.target.address.into();
        match self.target.protocol {
            Protocol::Tcp | Protocol::Sctp => {
                socket.connect_timeout(&address, self.timeout)?;
                Conversation::from_stream(socket.into(), self.timeout)
            }
            Protocol::Udp => {
                socket.connect(&address)?;
                Conversation::from_datagrams(socket.into(), self.timeout)
            }
        }
    }

    /// A socket of the right kind, bound if a source was asked for.
    fn socket(&self) -> io::Result<Socket> {
        let address = self.target.address;
        let socket = self.target.protocol.socket(Domain::for_address(address))?;
        if (self.resets || self.source_port != 0) && self.target.protocol == Protocol::Tcp {
            socket.set_linger(Some(Duration::ZERO))?;
        }
        if self.source.is_some() || self.source_port != 0 {
            let any = match address {
                SocketAddr::V4(_) => IpAddr::from([0; 4]),
                SocketAddr::V6(_) => IpAddr::from([0; 16]),
            };
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::new(self.source.unwrap_or(any), self.source_port).into())?;
        }
        Ok(socket)
    }

    fn ask_stream(&self, mut socket: Socket) -> io::Result<String> {
        let deadline = Instant::now() + self.timeout;
        // A process that another thread has started holds the last connection from this port until
        // its program is executed.
        let is_held = |error: &io::Error| error.kind() == io::ErrorKind::AddrNotAvailable;
        while let Err(error) = socket.connect_timeout(&self.target.address.into(), self.timeout) {
            if !is_held(&error) || Instant::now() > deadline {
                return Err(error);
            }
            thread::sleep(Duration::from_millis(20));
            socket = self.socket()?;
        }
        Conversation::from_stream(socket.into(), self.timeout)?.ask()
    }

    fn ask_udp(&self, socket: &UdpSocket) -> io::Result<String> {
        let deadline = Instant::now() + self.timeout;
        socket.connect(self.target.address)?;
        match socket.send(b"who\n") {
            // A packet dropped in the output hook fails like this. Whether it was also rejected
            // (ICMP) shows when the socket is read.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            sent => drop(sent?),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
