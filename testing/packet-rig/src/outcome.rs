//! Outcomes of requests.

use std::{fmt, io, net::SocketAddr};

use crate::echo::Answer;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server answered.
    Reached {
        /// The server's name.
        endpoint: String,
        /// The address and port that the server saw as the source.
        seen: SocketAddr,
    },
    /// Refused: a reset, or ICMP port unreachable.
    Refused,
    /// No answer of any kind in time: the request was dropped.
    TimedOut,
    /// The packet left the node with its destination unchanged, and the gateway of the
    /// [`Topology`](crate::Topology) answered that there is no such host.
    Unrouted,
    /// Any other failure, in words.
    Other(String),
}

impl Outcome {
    /// The name of the server that answered, if any.
    pub fn endpoint(&self) -> Option<&str> {
        match self {
            Self::Reached { endpoint, .. } => Some(endpoint),
            _ => None,
        }
    }

    /// The outcome of a request that failed with this error.
    pub(crate) fn from_error(error: &io::Error) -> Self {
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
