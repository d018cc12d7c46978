//! Packets on their way.

use std::collections::BTreeSet;

use super::{
    Budget, Choice, Domain, Memory, PacketField, Packets, Program, Share,
    decode::{Expression, Verdict, WORDS},
};
use crate::nftables::ruleset::Hook;

/// A word of the registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    Unset,
    Bytes([u8; 4]),
    /// Some bits of a field, the lowest of which is at `shift`: as many bytes from this word on.
    Field {
        field: PacketField,
        mask: u128,
        shift: u32,
        length: usize,
    },
    /// A word of the field that begins before.
    Continued,
    Drawn,
    /// Whether this address is one of the node's.
    Type(PacketField),
    /// The status of the connection.
    Status,
}

/// A number that is drawn, and its way.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) how: Choice,
    pub(super) modulus: u32,
    pub(super) offset: u32,
}

#[derive(Clone)]
pub(super) struct Walk<'p> {
    /// The hooks that are left, the next one last; `None` is the choice of a route.
    pub(super) hooks: Vec<Option<Hook>>,
    pub(super) bases: Vec<&'p str>,
    /// Whether the policy of the present base chain drops.
    pub(super) drops: bool,
    /// The chains that the packets are in, each with the number of the next rule.
    pub(super) stack: Vec<(&'p str, usize)>,
    /// The next expression of the rule before.
    pub(super) rest: &'p [Expression],
    /// A verdict that was drawn.
    pub(super) verdict: Option<&'p Verdict>,
    pub(super) words: [Word; WORDS],
    pub(super) drawn: Option<Drawn>,
    pub(super) mark: [u8; 4],
    pub(super) to: Option<(u128, Option<u16>)>,
    pub(super) is_bound: bool,
    pub(super) is_looped: bool,
    pub(super) is_masqueraded: bool,
    pub(super) share: Share,
    pub(super) choices: BTreeSet<Choice>,
    pub(super) remembered: BTreeSet<Memory>,
    /// The sets in which the client was looked up, and not found.
    pub(super) asked: BTreeSet<&'p str>,
}

/// The reason why an evaluation stops.
pub(super) enum Stop {
    /// Packets with the field in one domain differ from those in the other.
    Split(PacketField, [Domain; 2]),
    Unknown(String),
    /// There was too much work, for this reason.
    Exhausted(&'static str),
}

/// The data of an element that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Found<'p> {
    /// For the registers from this word on.
    Bytes(usize, &'p [u8]),
    Verdict(&'p Verdict),
}

/// The effect of an expression.
pub(super) enum Step<'p> {
    Next,
    /// The next rule.
    Break,
    Verdict(&'p Verdict),
    /// One of several elements, each with its share; the rest of the packets goes on with the next
    /// rule.
    Draw(Vec<(Found<'p>, u64)>, u64, Choice),
    /// The end of the base chain.
    Bound,
    Masquerade,
    Reject,
}

pub(super) struct Evaluation<'p> {
    pub(super) program: &'p Program,
    pub(super) packets: &'p Packets,
    pub(super) local: &'p Domain,
    /// The sets that have the client, and the data there.
    pub(super) memories: &'p [(&'p str, Vec<u8>)],
    pub(super) budget: &'p Budget,
}

impl Evaluation<'_> {
    pub(super) fn is_in(&self, field: PacketField, domain: &Domain) -> Result<bool, Stop> {
        let all = self.packets.get(field);
        self.budget.spend(all.len() + domain.len())?;
        let (within, without) = all.split(domain);
        match (within.is_empty(), without.is_empty()) {
            (true, _) => Ok(false),
            (false, true) => Ok(true),
            (false, false) => Err(Stop::Split(field, [within, without])),
        }
    }
}

impl Walk<'_> {
    pub(super) fn leave(&mut self) {
        self.stack.clear();
        self.rest = &[];
        self.drops = false;
    }
}
