//! The effects of single rules on new connections.

use std::cmp::Ordering;

use super::flow::NewFlow;
use crate::{
    netlink::Attributes,
    nftables::{
        abi::expression,
        bytecode::decode::{Compare, Expression, Verdict, decode},
    },
};

/// The subject of conditions that have no name here.
const OTHERS: &str = "other conditions";

/// The treatment of a packet that meets a rule's conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Accept,
    Drop,
    Return,
    /// A chain is asked, in place of what follows if the packet does not come back.
    Ask {
        chain: Box<str>,
        comes_back: bool,
    },
    /// Not known.
    Unknown,
}

/// An act, and the subject of a condition that is not decided; `None` if the act is certain.
pub(super) type Effect = (Act, Option<&'static str>);

/// Returns the effect of a rule with these expressions on all new connections, or on one; `None` if
/// it decides nothing about these. `has` is whether a set has an element with one of these keys;
/// `None` if that is not known.
pub(super) fn effect(
    expressions: Attributes<'_>,
    flow: Option<&NewFlow>,
    has: &mut impl FnMut(&str, &[Vec<u8>]) -> Option<bool>,
) -> Option<Effect> {
    let mut conditions = Conditions { loaded: Vec::new(), flow, has };
    let mut undecided = None;
    for each in expressions {
        let read = each.nested();
        let Some(name) = read.text(expression::NAME) else {
            return Some((Act::Unknown, Some(OTHERS)));
        };
        let parts = read.find_kind(expression::DATA).map(|data| data.nested());
        let parts = parts.unwrap_or_else(|| Attributes::new(&[]));
        let decoded = decode(name, parts);
        match conditions.follow(decoded.as_ref(), name, parts) {
            Condition::Fails => return None,
            Condition::Holds => continue,
            Condition::Unknown => {}
        }
        let act = match name {
            "immediate" => match decoded {
                Some(Expression::Verdict(verdict)) => match verdict {
                    Verdict::Accept => Act::Accept,
                    Verdict::Drop => Act::Drop,
                    Verdict::Return => Act::Return,
                    Verdict::Jump(chain) => Act::Ask { chain, comes_back: true },
                    Verdict::Goto(chain) => Act::Ask { chain, comes_back: false },
                    Verdict::Continue => continue,
                },
                Some(_) => continue,
                None => Act::Unknown,
            },
            "reject" => Act::Drop,
            "counter" | "log" | "notrack" => continue,
            "objref" => match parts.be32(expression::OBJREF_TYPE) {
                // `NFT_OBJECT_COUNTER`, helpers, tunnels, timeouts, security marks, expectations.
                Some(1 | 3 | 6..=9) => continue,
                // Quotas and limits.
                Some(2 | 4 | 5) => {
                    undecided = undecided.or(Some("rates"));
                    continue;
                }
                _ => Act::Unknown,
            },
            // A verdict map.
            "lookup" if parts.be32(expression::LOOKUP_DREG) == Some(0) => Act::Unknown,
            "queue" | "synproxy" | "tproxy" => Act::Unknown,
            "target" => match parts.text(expression::TARGET_NAME) {
                Some("REJECT") => Act::Drop,
                Some(target) if PASSED_TARGETS.contains(&target) => continue,
                _ => Act::Unknown,
            },
            _ => {
                undecided = undecided.or(Some(subject(name, parts)));
                continue;
            }
        };
        let is_unknown = act == Act::Unknown;
        return Some((act, undecided.or(is_unknown.then(|| subject(name, parts)))));
    }
    None
}

/// The targets of iptables after which a packet goes on.
const PASSED_TARGETS: [&str; 14] = [
    "AUDIT", "CHECKSUM", "CLASSIFY", "CONNMARK", "DSCP", "HL", "LOG", "MARK", "NFLOG", "SET",
    "TCPMSS", "TEE", "TOS", "TTL",
];

/// The subject of a condition.
fn subject(name: &str, parts: Attributes<'_>) -> &'static str {
    let get = |kind| parts.be32(kind);
    match name {
        "meta" => match get(expression::META_KEY) {
            Some(expression::META_MARK) => "marks",
            Some(expression::META_IIF..=expression::META_OIFNAME | expression::META_IIFKIND) => {
                "interfaces"
            }
            _ => OTHERS,
        },
        "ct" if get(expression::CT_KEY) == Some(expression::CT_MARK) => "marks",
        "match" => match parts.text(expression::MATCH_NAME) {
            Some("mark" | "connmark") => "marks",
            Some("set") => "ipset",
            _ => OTHERS,
        },
        "lookup" => "sets and maps",
        "payload" => "headers",
        "limit" => "rates",
        _ => OTHERS,
    }
}

/// The part of a packet that a register holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Loaded {
    /// The status of the connection.
    Status,
    Interface,
    InterfaceIndex,
    Protocol,
    /// The state of a new connection, or a part of the flow that is asked about.
    Value(Vec<u8>),
}

impl Loaded {
    /// The words of registers that it takes.
    fn words(&self) -> usize {
        match self {
            Self::Value(value) => value.len().div_ceil(4),
            Self::Interface => 4,
            _ => 1,
        }
    }
}

/// The result of an expression for what is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// It is met, or is none.
    Holds,
    Fails,
    Unknown,
}

impl From<bool> for Condition {
    fn from(holds: bool) -> Self {
        if holds { Self::Holds } else { Self::Fails }
    }
}

/// The conditions of a rule, up to an expression.
struct Conditions<'a, F> {
    /// The contents of registers, by their first words.
    loaded: Vec<(usize, Loaded)>,
    flow: Option<&'a NewFlow>,
    has: &'a mut F,
}

impl<F: FnMut(&str, &[Vec<u8>]) -> Option<bool>> Conditions<'_, F> {
    fn follow(
        &mut self,
        decoded: Option<&Expression>,
        name: &str,
        parts: Attributes<'_>,
    ) -> Condition {
        let get = |kind| parts.be32(kind);
        let loaded = match decoded {
            Some(Expression::Ct { key: expression::CT_STATE, to, .. }) => {
                let new = expression::CT_STATE_NEW.to_ne_bytes();
                (*to, Some(Loaded::Value(new.to_vec())))
            }
            Some(Expression::Ct { key: expression::CT_STATUS, to, .. }) => {
                (*to, Some(Loaded::Status))
            }
            Some(Expression::Meta { key, to }) => (*to, self.meta(*key)),
            Some(Expression::Payload { base, offset, length, to }) => {
                (*to, self.payload(*base, *offset, *length))
            }
            Some(Expression::Bitwise { from, to, mask, xor }) => {
                let held = self.held(*from).cloned();
                (*to, held.and_then(|held| masked(held, self.flow, mask, xor)))
            }
            Some(Expression::Compare { from, how, with }) => {
                return self.compare(*from, *how, with);
            }
            Some(Expression::Lookup { set, from, negated, .. }) => {
                let found = self.look_up(set, *from, *negated);
                if get(expression::LOOKUP_DREG).is_none() {
                    return found.map_or(Condition::Unknown, Condition::from);
                }
                // Of a map, a verdict or value is not known.
                self.loaded.clear();
                let is_absent = found == Some(false);
                return if is_absent { Condition::Fails } else { Condition::Unknown };
            }
            _ => return self.follow_others(name, parts),
        };
        let (word, Some(part)) = loaded else {
            self.loaded.clear();
            return Condition::Unknown;
        };
        // What is loaded is there, if it is known.
        let is_known = matches!(part, Loaded::Status | Loaded::Value(_));
        let end = word + part.words();
        self.loaded.retain(|(at, held)| *at >= end || at + held.words() <= word);
        self.loaded.push((word, part));
        if is_known { Condition::Holds } else { Condition::Unknown }
    }

    /// Follows an expression that is decoded only here.
    fn follow_others(&mut self, name: &str, parts: Attributes<'_>) -> Condition {
        let get = |kind| parts.be32(kind);
        match name {
            // What is set is no condition.
            "meta" if get(expression::META_SREG).is_some() => Condition::Holds,
            "ct" if get(expression::CT_SREG).is_some() => Condition::Holds,
            "match" => {
                let info = parts.find_kind(expression::MATCH_INFO).map(|info| info.payload);
                let port = self.flow.map(|flow| flow.destination.port());
                match (parts.text(expression::MATCH_NAME), get(expression::MATCH_REV), info) {
                    (Some("conntrack"), Some(3), Some(info)) => conntrack(info, self.flow),
                    (Some("multiport"), Some(1), Some(info)) => {
                        let holds = port.and_then(|port| multiport(info, port));
                        holds.map_or(Condition::Unknown, Condition::from)
                    }
                    _ => Condition::Unknown,
                }
            }
            _ => {
                // It may write to a register.
                self.loaded.clear();
                Condition::Unknown
            }
        }
    }

    /// The value that begins at a word.
    fn held(&self, word: usize) -> Option<&Loaded> {
        self.loaded.iter().find(|(at, _)| *at == word).map(|(_, held)| held)
    }

    /// Whether a set has, or lacks if that is asked for, what registers hold; `None` if that is not
    /// known.
    fn look_up(&mut self, set: &str, mut word: usize, is_inverted: bool) -> Option<bool> {
        // The set knows how many of the values that follow each other are its key, of which each
        // part is padded to words unless it is the only one.
        let (mut keys, mut joined) = (Vec::new(), Vec::new());
        while let Some(Loaded::Value(value)) = self.held(word) {
            if keys.is_empty() {
                keys.push(value.clone());
            }
            joined.extend(value);
            joined.resize(joined.len().next_multiple_of(4), 0);
            keys.push(joined.clone());
            word += value.len().div_ceil(4);
        }
        if keys.is_empty() {
            return None;
        }
        keys.dedup();
        Some((self.has)(set, &keys)? != is_inverted)
    }

    fn meta(&self, key: u32) -> Option<Loaded> {
        match (key, self.flow) {
            (expression::META_IIFNAME | expression::META_OIFNAME, _) => Some(Loaded::Interface),
            (expression::META_IIF | expression::META_OIF, _) => Some(Loaded::InterfaceIndex),
            (expression::META_NFPROTO, Some(flow)) => Some(Loaded::Value(vec![flow.family()])),
            (expression::META_L4PROTO, Some(flow)) => Some(Loaded::Value(vec![flow.protocol])),
            (expression::META_L4PROTO, None) => Some(Loaded::Protocol),
            _ => None,
        }
    }

    fn payload(&self, base: u32, offset: u32, length: u32) -> Option<Loaded> {
        if let Some(flow) = self.flow {
            return flow.bytes(base, offset as usize, length as usize).map(Loaded::Value);
        }
        let is_protocol =
            (base, offset, length) == (expression::BASE_NETWORK, expression::IPV4_PROTOCOL, 1);
        is_protocol.then_some(Loaded::Protocol)
    }

    fn compare(&self, from: usize, how: Compare, with: &[u8]) -> Condition {
        let Some(loaded) = self.held(from) else { return Condition::Unknown };
        let holds = |order: Ordering| match how {
            Compare::Equal => order.is_eq(),
            Compare::NotEqual => order.is_ne(),
            Compare::Less => order.is_lt(),
            Compare::LessOrEqual => order.is_le(),
            Compare::Greater => order.is_gt(),
            Compare::GreaterOrEqual => order.is_ge(),
        };
        let is_equal = how == Compare::Equal;
        let excluded = match loaded {
            Loaded::Value(value) => {
                let order = value.get(..with.len()).map(|value| value.cmp(with));
                return order.map(holds).map_or(Condition::Unknown, Condition::from);
            }
            Loaded::Status => false,
            Loaded::Interface => is_equal && with.starts_with(b"lo\0"),
            Loaded::InterfaceIndex => is_equal && host_number(with) == Some(LOOPBACK),
            Loaded::Protocol => is_equal && matches!(with, [ICMP | ICMPV6]),
        };
        if excluded { Condition::Fails } else { Condition::Unknown }
    }
}

/// The part that is left by a mask.
fn masked(loaded: Loaded, flow: Option<&NewFlow>, mask: &[u8], xor: &[u8]) -> Option<Loaded> {
    let flipped = xor.iter().any(|bits| *bits != 0);
    match loaded {
        _ if flipped => None,
        Loaded::Status if host_number(mask) == Some(expression::CT_STATUS_DNAT) => {
            let status = if flow?.is_translated { expression::CT_STATUS_DNAT } else { 0 };
            Some(Loaded::Value(status.to_ne_bytes().to_vec()))
        }
        Loaded::Value(value) if value.len() == mask.len() => {
            Some(Loaded::Value(value.iter().zip(mask).map(|(value, mask)| value & mask).collect()))
        }
        _ => None,
    }
}

/// The index of the loopback interface in each network namespace.
const LOOPBACK: u32 = 1;
const ICMP: u8 = libc::IPPROTO_ICMP as u8;
const ICMPV6: u8 = libc::IPPROTO_ICMPV6 as u8;

/// The finding of the match `multiport` of xtables for a destination, by its description (`struct
/// xt_multiport_v1`); `None` if it asks for other ports.
fn multiport(info: &[u8], port: u16) -> Option<bool> {
    /// `XT_MULTIPORT_DESTINATION`
    const DESTINATION: u8 = 1;
    const MOST: usize = 15;
    let [DESTINATION, count, rest @ ..] = info else { return None };
    let (ports, rest) = rest.split_at_checked(2 * MOST)?;
    let (is_range, rest) = rest.split_at_checked(MOST)?;
    let is_inverted = *rest.first()? != 0;
    let (ports, _) = ports.as_chunks::<2>();
    let mut ports = ports.iter().map(|bytes| u16::from_ne_bytes(*bytes)).zip(is_range);
    let (mut left, mut has) = (*count, false);
    while left > 0
        && let Some((first, is_range)) = ports.next()
    {
        // The end of a range follows its begin.
        let last = if *is_range == 0 { first } else { ports.next()?.0 };
        has |= (first..=last).contains(&port);
        left = left.saturating_sub(if *is_range == 0 { 1 } else { 2 });
    }
    Some(has != is_inverted)
}

/// The finding of the match `conntrack` of xtables for new connections, by its description (`struct
/// xt_conntrack_mtinfo3`).
fn conntrack(info: &[u8], flow: Option<&NewFlow>) -> Condition {
    // After eight addresses, two times and five numbers of 16 bits.
    const FLAGS: usize = 8 * 16 + 8 + 10;
    const INVERTED: usize = FLAGS + 2;
    const STATES: usize = FLAGS + 4;
    /// `XT_CONNTRACK_STATE`
    const STATE: u16 = 1;
    /// `XT_CONNTRACK_STATE_BIT(IP_CT_NEW)`, and `XT_CONNTRACK_STATE_SNAT` and `_DNAT`, which a new
    /// connection may have.
    const NEW: u16 = NEW_ITSELF | 1 << 6 | TRANSLATED;
    const NEW_ITSELF: u16 = 1 << 3;
    const TRANSLATED: u16 = 1 << 7;
    let is_translated = flow.is_some_and(|flow| flow.is_translated);
    let certain = if is_translated { NEW_ITSELF | TRANSLATED } else { NEW_ITSELF };
    let get = |at: usize| {
        let bytes = info.get(at..at + 2)?;
        Some(u16::from_ne_bytes(bytes.try_into().ok()?))
    };
    match (get(FLAGS), get(INVERTED), get(STATES)) {
        (Some(flags), Some(inverted), Some(states))
            if flags & STATE != 0 && inverted & STATE == 0 =>
        {
            if states & NEW == 0 {
                Condition::Fails
            } else if flags == STATE && states & certain != 0 {
                Condition::Holds
            } else {
                Condition::Unknown
            }
        }
        _ => Condition::Unknown,
    }
}

fn host_number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}
