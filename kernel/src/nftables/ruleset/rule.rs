//! Rules, and the statements that they are made of.

use std::borrow::Cow;

use ipnet::IpNet;
use switchyard_model::{Protocol, words};

use super::{ChainName, SetName};

/// The decision that a rule or a verdict map makes about a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// `accept`: the packet passes this base chain.
    Accept,
    /// `drop`
    Drop,
    /// `return`: the packet goes back to the rule after the last jump.
    Return,
    /// `jump`: the packet goes to another chain, and may return.
    Jump(ChainName),
    /// `goto`: the packet goes to another chain, and does not return.
    Goto(ChainName),
}

impl Verdict {
    /// The other chain that the packet goes to.
    pub fn chain(&self) -> Option<&ChainName> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Accept | Self::Drop | Self::Return => None,
        }
    }
}

/// One of the two addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// `saddr`
    Source,
    /// `daddr`
    Destination,
}

words! { Side { Source = "saddr", Destination = "daddr" } }

/// A part of the packet that is looked up in a set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// `ip saddr` or `ip6 saddr`
    SourceAddress,
    /// `ip daddr` or `ip6 daddr`
    DestinationAddress,
    /// `meta l4proto`
    Protocol,
    /// `th sport`
    SourcePort,
    /// `th dport`
    DestinationPort,
    /// `ct original ip saddr`: the source address of the connection's first packet, as the packet
    /// was before any translation.
    OriginalSource,
    /// `ct original ip daddr`: the destination address before any translation.
    OriginalDestination,
    /// `ct original proto-dst`: the destination port before any translation.
    /// [`Statement::Protocol`] must come before it in the rule.
    OriginalDestinationPort,
}

/// The way in which a rule selects one of several slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SlotChoice {
    /// `numgen random mod 5`: any slot, each as likely as the others.
    Random,
    /// `numgen inc mod 5`: one slot after the other. The rule has one counter, for all packets that
    /// come to the rule, and the counter begins anew when the rule is replaced.
    InTurn,
    /// `jhash ip saddr . tcp sport mod 1021 seed 0x53570001`: the slot that a hash of parts of the
    /// packet leads to, so that equal parts lead to the same slot on all nodes with the same seed
    /// and byte order.
    Hash {
        /// The parts of the packet, at least one. A port is that of the statement's protocol.
        of: Vec<Selector>,
        /// The seed, which is always given to the kernel, which chooses one at random otherwise.
        seed: u32,
    },
}

/// The interface names that a statement matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterfaceMatch {
    /// This name.
    Exact(Box<str>),
    /// All names that begin like this: `pfx*` in nft's syntax, written here without the star.
    Prefix(Box<str>),
    /// Any name, if the interface is of this kind: `meta iifkind "vrf"` in nft's syntax. An
    /// interface without a kind, as most hardware is, matches neither this nor its negation.
    Kind(Box<str>),
}

/// One statement of a rule. Statements apply from left to right, and a match that fails ends the
/// rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Statement {
    /// `ct state new`
    CtStateNew,
    /// `ct status dnat`: the connection's destination was translated.
    CtStatusDnat,
    /// `ct direction reply`: the packet is for the end that the connection's first one came from.
    CtReply,
    /// `ip saddr [!=] 10.0.0.0/8`
    Address {
        /// The address to compare.
        side: Side,
        /// Whether the address must lie outside the network.
        negated: bool,
        /// The network, of the table's family.
        net: IpNet,
    },
    /// `iifname [!=] "eth0"`
    InputInterface {
        /// Whether the interface must have another name.
        negated: bool,
        /// The name.
        name: InterfaceMatch,
    },
    /// `fib daddr type local`: the address belongs to this host.
    FibLocal(Side),
    /// `meta l4proto tcp`
    Protocol(Protocol),
    /// `socket transparent 1`: the packet is for a socket of this host that may have an address of
    /// another host (`IP_TRANSPARENT`). In chains of the hooks `prerouting` and `input` alone.
    SocketTransparent,
    /// `socket wildcard 1`: the packet is for a socket that is bound to all addresses, which is
    /// found by its port. In the same chains, since Linux 5.11.
    SocketWildcard,
    /// `meta mark & 0x4000 != 0`
    MarkSet(u32),
    /// `meta mark set meta mark | 0x4000`
    MarkOr(u32),
    /// `meta mark set meta mark ^ 0x4000`
    MarkXor(u32),
    /// `ip daddr . meta l4proto . th dport @set`: the parts of the packet are an element of a set.
    Lookup {
        /// The parts of the packet.
        key: Vec<Selector>,
        /// The set.
        set: SetName,
    },
    /// `ip daddr . meta l4proto . th dport vmap @map`: the verdict of an element of a verdict map,
    /// if there is such an element.
    VerdictMap {
        /// The parts of the packet.
        key: Vec<Selector>,
        /// The verdict map.
        map: SetName,
    },
    /// `dnat ip to ip daddr . tcp dport . numgen random mod 5 map @tcp-endpoints`: translates the
    /// destination to the endpoint in a slot that the rule selects. Matches packets of the protocol
    /// only, as nft does for a port that names its protocol.
    ///
    /// The key or the hash must have a port. With a hash, the key with the slot and the parts that
    /// are hashed may have 48 bytes together, a port being 4: the kernel refuses more, and nft
    /// aborts.
    DnatSlot {
        /// The protocol.
        protocol: Protocol,
        /// The parts of the packet before the slot, at least one. [`Selector::DestinationPort`] is
        /// the port of the protocol, which nft writes as `tcp dport`.
        key: Vec<Selector>,
        /// The way in which the slot is selected.
        choice: SlotChoice,
        /// The number of slots, at least 1.
        slots: u32,
        /// A map from key and slot to address and port.
        map: SetName,
    },
    /// `dnat ip to ip saddr map @affinity`: translates the destination to the endpoint that a map
    /// has for parts of the packet, if there is one. [`Self::Protocol`] must come before it in the
    /// rule.
    DnatMap {
        /// The parts of the packet.
        key: Vec<Selector>,
        /// A map from the key to address and port.
        map: SetName,
    },
    /// `dnat to ip daddr`: translates the destination to itself, so that no chain of type nat that
    /// comes later translates the destination.
    DnatToItself,
    /// `masquerade fully-random`
    Masquerade,
    /// `reject`: drops the packet, and answers with ICMP or ICMPv6 port unreachable.
    Reject,
    /// `update @affinity { ct original ip saddr : ip daddr . tcp dport }`: adds an element to a map
    /// with a timeout, or renews the timeout of the element with this key, which keeps its value.
    /// Matches packets of the protocol only, as nft does for a port that names its protocol, and if
    /// the map is not full.
    UpdateMap {
        /// The protocol.
        protocol: Protocol,
        /// The parts of the packet that are the key.
        key: Vec<Selector>,
        /// The parts of the packet that are the value. [`Selector::DestinationPort`] is the port of
        /// the protocol, which nft writes as `tcp dport`.
        value: Vec<Selector>,
        /// The map.
        map: SetName,
    },
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
    /// Returns a rule of these statements.
    pub fn new(statements: impl Into<Vec<Statement>>) -> Self {
        Self { statements: statements.into(), comment: None }
    }

    /// Adds a comment.
    pub fn with_comment(self, comment: impl Into<Cow<'static, str>>) -> Self {
        Self { comment: Some(comment.into()), ..self }
    }

    /// The chain that the rule's verdict leads to; not those of a verdict map.
    pub fn leads_to(&self) -> Option<&ChainName> {
        self.statements.iter().find_map(|statement| match statement {
            Statement::Verdict(verdict) => verdict.chain(),
            _ => None,
        })
    }

    /// The sets and maps that the rule uses, by name. The kernel deletes none of them while the
    /// rule exists.
    pub fn sets(&self) -> impl Iterator<Item = &SetName> {
        self.statements.iter().filter_map(|statement| match statement {
            Statement::Lookup { set, .. } => Some(set),
            Statement::VerdictMap { map, .. }
            | Statement::DnatSlot { map, .. }
            | Statement::DnatMap { map, .. }
            | Statement::UpdateMap { map, .. } => Some(map),
            _ => None,
        })
    }
}
