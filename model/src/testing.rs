//! For tests: the first packets of connections, and their ends.

use std::net::SocketAddr;

use crate::Protocol;

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// The protocol.
    pub protocol: Protocol,
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The address and port that the sender asks for.
    pub destination: SocketAddr,
    /// The interface through which the packet comes; `None` if the node sends it.
    pub interface: Option<&'static str>,
    /// The result of all hashes of parts of the packet.
    pub hash: u32,
}

/// The end of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fate {
    /// Discarded without an answer.
    Dropped,
    /// Rejected: discarded, with an answer to the sender.
    Rejected,
    /// Sent on to this destination.
    Passed {
        /// The destination, which may be another one than the sender asked for.
        to: SocketAddr,
        /// Whether the destination was translated.
        translated: bool,
        /// Whether the source becomes an address of the node.
        masqueraded: bool,
    },
}

impl Fate {
    /// The endpoint to which the packet was translated.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        match self {
            Self::Passed { to, translated: true, .. } => Some(*to),
            _ => None,
        }
    }

    /// Whether the source becomes an address of the node; `None` if the packet is not passed.
    pub fn is_masqueraded(&self) -> Option<bool> {
        match self {
            Self::Passed { masqueraded, .. } => Some(*masqueraded),
            Self::Dropped | Self::Rejected => None,
        }
    }
}
