//! The tables of the kernel as bytecode: read, decoded and evaluated without anything that writes
//! them. An evaluation is symbolic: [`Packets`] are split where an expression treats some in
//! another way, so that [`Program::fates`] returns parts, each with the [`Fate`] of its packets.
//!
//! What is assumed: the connection is new, and no mark is set. Sets whose elements packets add are
//! empty, or have the client alone ([`Program::fates_of`]). Whatever is not understood, or takes
//! more work than a [`Budget`] has, becomes [`End::Unknown`], never a guess.

mod budget;
pub(super) mod decode;
mod domain;
mod evaluate;
mod lookup;
mod memory;
mod read;
#[cfg(test)]
mod tests;
mod text;
mod values;
mod walk;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use crate::{
    netlink::Socket,
    nftables::{
        ruleset::{Family, Hook, Table},
        transport::TransportError,
    },
};

pub use self::{budget::Budget, domain::Domain, memory::Memory};
use self::{
    decode::Name,
    read::{Chain, Set},
};

/// A field of a packet, as its sender has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketField {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
    /// The source port.
    SourcePort,
    /// The destination port.
    DestinationPort,
    /// The number of the protocol.
    Protocol,
    /// The name of the interface through which the packet comes, as 16 bytes, padded with zeros.
    Interface,
}

impl PacketField {
    const ALL: [Self; 6] = [
        Self::Source,
        Self::Destination,
        Self::SourcePort,
        Self::DestinationPort,
        Self::Protocol,
        Self::Interface,
    ];

    /// Returns the length of the field, in bytes.
    pub fn length(self, family: Family) -> usize {
        match (self, family) {
            (Self::Source | Self::Destination, Family::Ip) => 4,
            (Self::Source | Self::Destination, Family::Ip6) | (Self::Interface, _) => 16,
            (Self::SourcePort | Self::DestinationPort, _) => 2,
            (Self::Protocol, _) => 1,
        }
    }
}

/// First packets of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packets {
    fields: [Domain; 6],
    is_from_node: bool,
}

impl Packets {
    /// Returns all packets that come through an interface other than `lo`, or that the node sends.
    pub fn all(family: Family, is_from_node: bool) -> Self {
        let mut fields = PacketField::ALL.map(|field| Domain::all(8 * field.length(family) as u32));
        let interface = &mut fields[PacketField::Interface as usize];
        *interface = match is_from_node {
            true => Domain::one(0),
            false => interface.without(&Domain::new([(0, 0), interface_name("lo")])),
        };
        Self { fields, is_from_node }
    }

    /// Returns those of the packets whose field is in `domain`.
    #[must_use]
    pub fn with(&self, field: PacketField, domain: &Domain) -> Self {
        self.replaced(field, self.get(field).and(domain))
    }

    /// Returns those of the packets whose field is not in `domain`.
    #[must_use]
    pub fn without(&self, field: PacketField, domain: &Domain) -> Self {
        self.replaced(field, self.get(field).without(domain))
    }

    fn replaced(&self, field: PacketField, domain: Domain) -> Self {
        let mut packets = self.clone();
        packets.fields[field as usize] = domain;
        packets
    }

    /// Returns the values of a field.
    pub fn get(&self, field: PacketField) -> &Domain {
        &self.fields[field as usize]
    }

    /// Whether the node itself sends the packets.
    pub fn is_from_node(&self) -> bool {
        self.is_from_node
    }

    /// Whether there is no such packet.
    pub fn is_empty(&self) -> bool {
        self.fields.iter().any(Domain::is_empty)
    }
}

/// The name of an interface as [`PacketField::Interface`] has it, twice, as an interval.
pub fn interface_name(name: &str) -> (u128, u128) {
    let first = interface_prefix(name).0;
    (first, first)
}

/// The names of interfaces that begin like this, as [`PacketField::Interface`] has them.
pub fn interface_prefix(prefix: &str) -> (u128, u128) {
    let mut bytes = [0; 16];
    let length = prefix.len().min(16);
    bytes[..length].copy_from_slice(&prefix.as_bytes()[..length]);
    let first = u128::from_be_bytes(bytes);
    (first, first | domain::low_bits(128 - 8 * length as u32))
}

/// The end of a packet's way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Discarded without an answer.
    Dropped,
    /// Discarded, with an answer.
    Rejected,
    /// Sent on.
    Passed {
        /// The address, as a number, and the port to which the destination was translated, if it
        /// was.
        to: Option<(u128, u16)>,
        /// Whether the source becomes an address of the node.
        masqueraded: bool,
    },
    /// Not known, since something is not understood.
    Unknown(Box<str>),
}

/// A part of a whole, in lowest terms.
pub type Share = (u64, u64);

/// A way in which one of several ends is chosen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// At random.
    Random,
    /// One after the other.
    InTurn,
    /// By a hash of parts of the packet.
    Hash {
        /// The parts.
        of: Vec<PacketField>,
        /// The seed.
        seed: u32,
        /// The number of slots.
        slots: u32,
        /// [`fingerprint`] of the address and port in each slot.
        order: u64,
    },
}

/// The fate of packets: their ends, each with its share of them, and the ways to choose one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// The ends.
    pub ends: BTreeMap<End, Share>,
    /// The ways to choose, if there are several ends.
    pub choices: BTreeSet<Choice>,
    /// The memories of the client that connections with these ends leave.
    pub remembered: BTreeMap<End, BTreeSet<Memory>>,
    /// The names of the sets that would lead a client elsewhere if they had the client.
    pub asked: BTreeSet<Box<str>>,
}

/// A fingerprint of the contents of slots, which are addresses with ports; `None` for empty ones.
pub fn fingerprint(slots: impl IntoIterator<Item = Option<(u128, u16)>>) -> u64 {
    // FNV-1a, by words of eight bytes.
    slots.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, slot| {
        let (address, port) = slot.unwrap_or((u128::MAX, 0));
        [(address >> 64) as u64, address as u64, port.into()].into_iter().fold(
            hash,
            |hash, word| {
                let mixed = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
                mixed ^ mixed >> 29
            },
        )
    })
}

/// Reads the rules of a table in the network namespace of the calling thread, as text by their
/// handles: one expression after the other, with registers of four bytes by their numbers. Empty if
/// there is no such table.
///
/// # Errors
/// If the kernel refuses.
pub fn rules(table: &Table) -> Result<BTreeMap<u64, String>, TransportError> {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
    Ok(text::read(&mut socket, table)?)
}

/// A table's bytecode.
#[derive(Debug)]
pub struct Program {
    family: Family,
    chains: BTreeMap<Name, Chain>,
    sets: HashMap<Name, Set>,
    /// The names of the base chains of each hook, the last one first.
    bases: HashMap<Hook, Vec<Name>>,
}

impl Program {
    fn new(family: Family, chains: BTreeMap<Name, Chain>, sets: HashMap<Name, Set>) -> Self {
        let bases = chains.iter().filter_map(|(name, chain)| {
            let base = chain.base.as_ref()?;
            Some((base.hook?, base.priority, name))
        });
        let mut sorted: Vec<_> = bases.collect();
        sorted.sort_by_key(|(_, priority, _)| std::cmp::Reverse(*priority));
        let mut bases: HashMap<Hook, Vec<Name>> = HashMap::new();
        for (hook, _, name) in sorted {
            bases.entry(hook).or_default().push(name.clone());
        }
        Self { family, chains, sets, bases }
    }

    /// Reads a table in the network namespace of the calling thread; `None` if there is none, or it
    /// is dormant. A table that changes while it is read is read again, up to 20 times, unless
    /// `limit` has passed.
    ///
    /// # Errors
    /// If the kernel refuses, or the table does not stay the same while it is read.
    pub fn read(table: &Table, limit: Duration) -> Result<Option<Self>, TransportError> {
        let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
        Ok(read::read(&mut socket, table, limit)?)
    }
}
