//! Rules: exactly the statements that our chains need.

use std::{borrow::Cow, net::IpAddr};

use ipnet::IpNet;
use proxy_core::model::Protocol;

use super::{ChainName, SetName};

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// `accept`: this hook and priority is done with it.
    Accept,
    /// `drop`
    Drop,
    /// `return`: back to the rule after the last jump.
    Return,
    /// `jump`: on to another chain, and back.
    Jump(ChainName),
    /// `goto`: on to another chain, and not back.
    Goto(ChainName),
}

/// Which address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// `saddr`
    Source,
    /// `daddr`
    Destination,
}

/// A part of the packet that is looked up in a set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `ip saddr` or `ip6 saddr`
    SourceAddress,
    /// `ip daddr` or `ip6 daddr`
    DestinationAddress,
    /// `meta l4proto`
    Protocol,
    /// `th dport`
    DestinationPort,
}

/// The name of an interface to compare with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterfaceMatch {
    /// The whole name.
    Exact(Box<str>),
    /// What the name begins with (`pfx*` in nft's syntax, without the star here).
    Prefix(Box<str>),
}

/// One statement of a rule; they apply from left to right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// `ct state new`
    CtStateNew,
    /// `ct status dnat`: the connection's destination was translated.
    CtStatusDnat,
    /// `ip saddr [!=] 10.0.0.0/8`
    Address {
        /// Which address.
        side: Side,
        /// Whether it must lie outside.
        negated: bool,
        /// The network, of the table's family.
        net: IpNet,
    },
    /// `iifname [!=] "eth0"`
    InputInterface {
        /// Whether it must be another.
        negated: bool,
        /// The name.
        name: InterfaceMatch,
    },
    /// `fib daddr type local`: the address is the node's own.
    FibLocal(Side),
    /// `meta l4proto tcp`
    Protocol(Protocol),
    /// `meta l4proto { tcp, udp, sctp }`: one of those that Services may have. nft wants a
    /// protocol match before a DNAT with a port.
    ServiceProtocols,
    /// `meta mark & 0x4000 != 0`
    MarkSet(u32),
    /// `meta mark set meta mark | 0x4000`
    MarkOr(u32),
    /// `meta mark set meta mark ^ 0x4000`
    MarkXor(u32),
    /// `ip daddr . meta l4proto . th dport @set`: only on if it is an element.
    Lookup {
        /// The parts of the packet.
        key: Vec<Selector>,
        /// The set.
        set: SetName,
    },
    /// `ip daddr . meta l4proto . th dport vmap @map`: the verdict of the element, if there is
    /// one.
    VerdictMap {
        /// The parts of the packet.
        key: Vec<Selector>,
        /// The verdict map.
        map: SetName,
    },
    /// `numgen random mod 2 vmap { 0 : goto a, 1 : goto b }`: one of the verdicts, each as likely.
    RandomVerdict(Vec<Verdict>),
    /// `dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 5 map @endpoints`:
    /// translates to the endpoint in a random slot. Needs [`Self::ServiceProtocols`] before it.
    DnatRandom {
        /// The parts of the packet before the slot.
        key: Vec<Selector>,
        /// The number of slots, at least 1.
        slots: u32,
        /// A map from key and slot to address and port.
        map: SetName,
    },
    /// `dnat to 10.0.0.1:80`. Needs [`Self::Protocol`] before it.
    Dnat {
        /// The address, of the table's family.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// `masquerade fully-random`
    Masquerade,
    /// `reject`: answers with ICMP or ICMPv6 port unreachable.
    Reject,
    /// `update @affinity { ip saddr }`: remembers an address in a dynamic set.
    UpdateSet {
        /// Which address.
        side: Side,
        /// The set.
        set: SetName,
    },
    /// `counter`
    Counter,
    /// `drop`, `return`, `jump chain`, `goto chain`, `accept`
    Verdict(Verdict),
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The statements, in order; at least one, as nft's syntax has no empty rule.
    pub statements: Vec<Statement>,
    /// A comment for people, cut to 128 bytes when written.
    pub comment: Option<Cow<'static, str>>,
}

impl Rule {
    /// A rule of these statements.
    pub fn new(statements: impl Into<Vec<Statement>>) -> Self {
        Self { statements: statements.into(), comment: None }
    }

    /// The same with a comment.
    pub fn with_comment(self, comment: impl Into<Cow<'static, str>>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }
}
