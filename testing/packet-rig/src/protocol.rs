//! Transport protocols, and the `tcp://10.96.0.1:80` form in which cases write targets.

use std::{fmt, io, net::SocketAddr, str::FromStr};

use serde::Deserialize;
use socket2::{Domain, Socket, Type};

/// A transport protocol the rig can speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
    /// SCTP, as a stream (one-to-one style). Many kernels have no such sockets; see
    /// [`capability::has_sctp`](crate::capability::has_sctp).
    Sctp,
}

impl Protocol {
    /// A socket of this protocol, in the namespace the thread is in.
    pub(crate) fn socket(self, domain: Domain) -> io::Result<Socket> {
        match self {
            Self::Tcp => Socket::new(domain, Type::STREAM, None),
            Self::Udp => Socket::new(domain, Type::DGRAM, None),
            Self::Sctp => Socket::new(domain, Type::STREAM, Some(libc::IPPROTO_SCTP.into())),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// The target of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Target {
    pub protocol: Protocol,
    pub address: SocketAddr,
}

impl Target {
    pub fn tcp(address: SocketAddr) -> Self {
        Self { protocol: Protocol::Tcp, address }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.protocol, self.address)
    }
}

/// A target that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not PROTOCOL://ADDRESS:PORT with tcp, udp or sctp")]
pub struct BadTarget(String);

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = || BadTarget(text.to_owned());
        let (protocol, address) = text.split_once("://").ok_or_else(bad)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return Err(bad()),
        };
        Ok(Self { protocol, address: address.parse().map_err(|_| bad())? })
    }
}

impl TryFrom<String> for Target {
    type Error = BadTarget;

    fn try_from(text: String) -> Result<Self, BadTarget> {
        text.parse()
    }
}
