//! Single requests with real sockets, and what came of them.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use socket2::{Domain, Socket};

use crate::{
    conversation::Conversation,
    echo::Answer,
    error::Result,
    netns::NetNs,
    protocol::{Protocol, Target},
};

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Reached {
        /// Which.
        endpoint: String,
        /// Whom it saw.
        seen: SocketAddr,
    },
    /// Refused: a reset, or ICMP port unreachable.
    Refused,
    /// No answer of any kind in time: somebody dropped it.
    TimedOut,
    /// The packet left the node, its destination unchanged, for the gateway of the
    /// [`Topology`](crate::Topology), which says that it has no such host.
    Unrouted,
    /// Anything else, in words.
    Other(String),
}

impl Outcome {
    /// The server that answered, if one did.
    pub fn endpoint(&self) -> Option<&str> {
        match self {
            Self::Reached { endpoint, .. } => Some(endpoint),
            _ => None,
        }
    }

    pub(crate) fn of_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            // The gateway's "administratively prohibited": the first in IPv4, the second in IPv6.
            io::ErrorKind::HostUnreachable => Self::Unrouted,
            _ if error.raw_os_error() == Some(libc::EACCES) => Self::Unrouted,
            _ => Self::Other(error.to_string()),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reached { endpoint, seen } => write!(f, "{endpoint} (which saw {})", seen.ip()),
            Self::Refused => f.write_str("refused"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Unrouted => f.write_str("unrouted"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

impl From<Answer> for Outcome {
    fn from(Answer { endpoint, seen }: Answer) -> Self {
        Self::Reached { endpoint, seen }
    }
}

/// A request to be made.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Where to.
    pub target: Target,
    /// How long to wait for the connection, and then for the answer.
    pub timeout: Duration,
    /// The address to send from, instead of the kernel's choice.
    pub source: Option<IpAddr>,
    /// The port to send from, 0 for any.
    pub source_port: u16,
}

impl Probe {
    /// A probe that waits long enough for an answer or a refusal on a busy machine.
    ///
    /// That is well over a second: an ICMP error that comes back while `connect` still holds the
    /// socket is ignored by the kernel, and the refusal of the next SYN, a second later, counts.
    pub fn new(target: Target) -> Self {
        Self { target, timeout: Duration::from_secs(4), source: None, source_port: 0 }
    }

    /// A probe of which no answer is expected: it waits just long enough to rule out a refusal,
    /// for the reason given at [`Self::new`].
    pub fn expecting_silence(target: Target) -> Self {
        let timeout = match target.protocol {
            Protocol::Tcp | Protocol::Sctp => Duration::from_millis(1500),
            Protocol::Udp => Duration::from_millis(600),
        };
        Self { timeout, ..Self::new(target) }
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
    pub(crate) fn attempt(&self) -> Outcome {
        let answer = self.socket().and_then(|socket| match self.target.protocol {
            Protocol::Tcp | Protocol::Sctp => self.ask_stream(socket),
            Protocol::Udp => self.ask_udp(&socket.into()),
        });
        match answer {
            Ok(line) => match Answer::parse(&line) {
                Some(answer) => answer.into(),
                None => Outcome::Other(format!("answer {line:?}")),
            },
            Err(error) => Outcome::of_error(&error),
        }
    }

    /// Opens a connection (or chooses a port to send from) without asking yet. Call inside a
    /// namespace.
    pub(crate) fn converse(&self) -> io::Result<Conversation> {
        let socket = self.socket()?;
        let address = self.target.address.into();
        match self.target.protocol {
            Protocol::Tcp | Protocol::Sctp => {
                socket.connect_timeout(&address, self.timeout)?;
                Conversation::of_stream(socket.into(), self.timeout)
            }
            Protocol::Udp => {
                socket.connect(&address)?;
                Conversation::of_datagrams(socket.into(), self.timeout)
            }
        }
    }

    /// A socket of the right kind, bound if a source was asked for.
    fn socket(&self) -> io::Result<Socket> {
        let address = self.target.address;
        let socket = self.target.protocol.socket(Domain::for_address(address))?;
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

    fn ask_stream(&self, socket: Socket) -> io::Result<String> {
        socket.connect_timeout(&self.target.address.into(), self.timeout)?;
        Conversation::of_stream(socket.into(), self.timeout)?.ask()
    }

    fn ask_udp(&self, socket: &UdpSocket) -> io::Result<String> {
        let deadline = Instant::now() + self.timeout;
        socket.connect(self.target.address)?;
        match socket.send(b"who\n") {
            // A packet dropped in the output hook fails like this. Whether it was also rejected
            // (ICMP) is learnt by reading.
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
