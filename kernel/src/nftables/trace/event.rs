//! Events: what a chain did with a traced packet.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
};

use super::super::{
    abi::{TRACE_GROUP, data, message, trace},
    gates::ChainPath,
    listing::family_name,
};
use crate::{
    families::address,
    netlink::{Attributes, Error, Message, Socket, nfnetlink},
};

/// An event of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceEvent {
    /// The packet. The kernel makes the number from where the packet is in memory, so that a later
    /// packet may have the same one.
    pub id: u32,
    /// The chain.
    pub chain: ChainPath,
    /// The step.
    pub step: TraceStep,
    /// The packet at the beginning of a base chain; `None` in the later events of the chain.
    pub headers: Option<Headers>,
    /// The index of the interface that the packet came through, where `headers` are.
    pub input: Option<u32>,
    /// The index of the interface that the packet leaves through, where `headers` are.
    pub output: Option<u32>,
    /// The mark of the packet; 0 without one.
    pub mark: u32,
}

/// The step of a packet that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceStep {
    /// A rule matched.
    Rule {
        /// The handle of the rule.
        handle: u64,
        /// The verdict, which says where the packet goes next.
        verdict: TraceVerdict,
    },
    /// The end of the rules of a chain that another called, or of a base chain before its policy.
    /// The headers are here if no rule matched. Linux 6.1 reports both as returns, later ones the
    /// latter as a rule without a handle.
    End,
    /// The policy of the base chain.
    Policy {
        /// Whether it accepts.
        accepts: bool,
    },
}

/// A verdict of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceVerdict {
    /// The packet passes the base chain.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet goes to a program.
    Queue,
    /// The kernel keeps the packet.
    Stolen,
    /// The next rule.
    Continue,
    /// Back to the chain that called this one.
    Return,
    /// Another chain, by a jump or goto.
    Chain(String),
}

/// The headers of a packet, as far as they have its source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The source; the port is 0 if there is none.
    pub source: SocketAddr,
    /// The destination; the port is 0 if there is none.
    pub destination: SocketAddr,
    /// The number of the protocol.
    pub protocol: u8,
    /// The flags of TCP.
    pub tcp_flags: Option<u8>,
}

/// A socket that receives all events of its network namespace.
#[derive(Debug)]
pub struct TraceListener(Socket);

impl TraceListener {
    /// Listens in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the kernel refuses, as without CAP_NET_ADMIN.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(libc::NETLINK_NETFILTER)?;
        socket.join(TRACE_GROUP)?;
        Ok(Self(socket))
    }

    /// The events of one datagram; `None` if there is none now.
    ///
    /// # Errors
    /// [`Error::Overrun`] if events were lost; later ones can be received nevertheless.
    pub fn receive(&mut self) -> Result<Option<Vec<TraceEvent>>, Error> {
        Ok(self.0.receive()?.map(|datagram| datagram.filter_map(read).collect()))
    }
}

impl AsFd for TraceListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads an event; `None` if the message is another one, or lacks a part.
fn read(message: Message<'_>) -> Option<TraceEvent> {
    let kind = nfnetlink::kind(nfnetlink::subsystem::NFTABLES, message::TRACE);
    if message.kind != kind {
        return None;
    }
    let attributes = message.attributes(nfnetlink::HEADER);
    let step = match attributes.be32(trace::TYPE)? {
        trace::TYPE_RULE => match attributes.find_kind(trace::RULE_HANDLE) {
            Some(handle) => TraceStep::Rule {
                handle: handle.be64()?,
                verdict: verdict(attributes.find_kind(trace::VERDICT)?.nested())?,
            },
            None => TraceStep::End,
        },
        trace::TYPE_RETURN => TraceStep::End,
        trace::TYPE_POLICY => TraceStep::Policy {
            accepts: attributes.be32(trace::POLICY)? == data::ACCEPT.cast_unsigned(),
        },
        _ => return None,
    };
    let bytes = |kind| attributes.find_kind(kind).map(|attribute| attribute.payload);
    Some(TraceEvent {
        id: attributes.be32(trace::ID)?,
        chain: ChainPath {
            family: family_name(*message.payload.first()?).unwrap_or("unknown"),
            table: attributes.text(trace::TABLE)?.to_owned(),
            chain: attributes.text(trace::CHAIN)?.to_owned(),
        },
        step,
        headers: bytes(trace::NETWORK_HEADER)
            .and_then(|network| headers(network, bytes(trace::TRANSPORT_HEADER))),
        input: attributes.be32(trace::INPUT),
        output: attributes.be32(trace::OUTPUT),
        mark: attributes.be32(trace::MARK).unwrap_or(0),
    })
}

fn verdict(attributes: Attributes<'_>) -> Option<TraceVerdict> {
    let code = attributes.be32(data::VERDICT_CODE)?.cast_signed();
    // The upper half of a verdict has the number of a queue, or an error.
    Some(match if code < 0 { code } else { code & 0xff } {
        data::DROP => TraceVerdict::Drop,
        data::ACCEPT => TraceVerdict::Accept,
        data::STOLEN => TraceVerdict::Stolen,
        data::QUEUE => TraceVerdict::Queue,
        data::JUMP | data::GOTO => {
            TraceVerdict::Chain(attributes.text(data::VERDICT_CHAIN)?.to_owned())
        }
        data::RETURN => TraceVerdict::Return,
        _ => TraceVerdict::Continue,
    })
}

/// Reads the beginnings of the headers, as the kernel hands them over.
fn headers(network: &[u8], transport: Option<&[u8]>) -> Option<Headers> {
    let ip = |at: usize, length: usize| address(network.get(at..at + length)?);
    let (source, destination, protocol) = match network.first()? >> 4 {
        4 => (ip(12, 4)?, ip(16, 4)?, *network.get(9)?),
        6 => (ip(8, 16)?, ip(24, 16)?, *network.get(6)?),
        _ => return None,
    };
    let has_ports =
        [libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_SCTP].contains(&i32::from(protocol));
    let transport = transport.filter(|_| has_ports).unwrap_or_default();
    let port = |at: usize| {
        let bytes = transport.get(at..).and_then(|rest| rest.first_chunk::<2>());
        bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes))
    };
    let is_tcp = i32::from(protocol) == libc::IPPROTO_TCP;
    Some(Headers {
        source: (source, port(0)).into(),
        destination: (destination, port(2)).into(),
        protocol,
        tcp_flags: transport.get(13).copied().filter(|_| is_tcp),
    })
}
