//! The effects of single rules on new connections.

use std::cmp::Ordering;

use super::flow::NewFlow;
use crate::{
    netlink::Attributes,
    nftables::abi::{data, expression},
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
        chain: String,
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
        match conditions.follow(name, parts) {
            Condition::Fails => return None,
            Condition::Holds => continue,
            Condition::Unknown => {}
        }
        let act = match name {
            "immediate" => match verdict(parts) {
                Some((data::ACCEPT, _)) => Act::Accept,
                Some((data::DROP, _)) => Act::Drop,
                Some((data::JUMP, Some(chain))) => Act::Ask { chain, comes_back: true },
                Some((data::GOTO, Some(chain))) => Act::Ask { chain, comes_back: false },
                Some((data::RETURN, _)) => Act::Return,
                None => continue,
                Some(_) => Act::Unknown,
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
            Some(expression::META_IIF..=expression::META_OIFNAME) => "interfaces",
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

/// The verdict of an `immediate` expression, and the chain that it leads to.
fn verdict(parts: Attributes<'_>) -> Option<(i32, Option<String>)> {
    let data = parts.find_kind(expression::IMMEDIATE_DATA)?.nested();
    let verdict = data.find_kind(data::VERDICT)?.nested();
    let code = verdict.be32(data::VERDICT_CODE)?.cast_signed();
    Some((code, verdict.text(data::VERDICT_CHAIN).map(str::to_owned)))
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
    fn words(&self) -> u32 {
        match self {
            Self::Value(value) => value.len().div_ceil(4) as u32,
            Self::Interface => 4,
            _ => 1,
        }
    }
}

/// The number of a register's first word of four bytes: `NFT_REG_1` to `NFT_REG_4` have four each,
/// and are the same as those from `NFT_REG32_00`, which is 8.
fn first_word(register: u32) -> u32 {
    match register {
        1..=4 => (register - 1) * 4,
        _ => register.saturating_sub(8),
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
    loaded: Vec<(u32, Loaded)>,
    flow: Option<&'a NewFlow>,
    has: &'a mut F,
}

impl<F: FnMut(&str, &[Vec<u8>]) -> Option<bool>> Conditions<'_, F> {
    fn follow(&mut self, name: &str, parts: Attributes<'_>) -> Condition {
        let get = |kind| parts.be32(kind);
        let (register, part) = match name {
            "ct" if get(expression::CT_KEY) == Some(expression::CT_STATE) => {
                let new = expression::CT_STATE_NEW.to_ne_bytes();
                (get(expression::CT_DREG), Some(Loaded::Value(new.to_vec())))
            }
            "ct" if get(expression::CT_KEY) == Some(expression::CT_STATUS) => {
                (get(expression::CT_DREG), Some(Loaded::Status))
            }
            // What is set is no condition.
            "meta" if get(expression::META_SREG).is_some() => return Condition::Holds,
            "ct" if get(expression::CT_SREG).is_some() => return Condition::Holds,
            "meta" if get(expression::META_DREG).is_some() => {
                (get(expression::META_DREG), self.meta(get(expression::META_KEY)))
            }
            "payload" if get(expression::PAYLOAD_DREG).is_some() => {
                (get(expression::PAYLOAD_DREG), self.payload(parts))
            }
            "bitwise" => {
                let source = get(expression::BITWISE_SREG);
                let masked =
                    self.held(source).cloned().and_then(|held| masked(held, self.flow, parts));
                (get(expression::BITWISE_DREG), masked)
            }
            "cmp" => return self.compare(parts),
            "match" if parts.text(expression::MATCH_NAME) == Some("conntrack") => {
                let info = parts.find_kind(expression::MATCH_INFO).map(|info| info.payload);
                let revision = get(expression::MATCH_REV);
                let info = info.filter(|_| revision == Some(3));
                return info.map_or(Condition::Unknown, |info| conntrack(info, self.flow));
            }
            "match" if parts.text(expression::MATCH_NAME) == Some("multiport") => {
                let info = parts.find_kind(expression::MATCH_INFO).map(|info| info.payload);
                let revision = get(expression::MATCH_REV);
                let ports = self.flow.zip(info).filter(|_| revision == Some(1));
                let holds = ports.and_then(|(flow, info)| multiport(info, flow.destination.port()));
                return holds.map_or(Condition::Unknown, Condition::from);
            }
            "lookup" => {
                let found = self.look_up(parts);
                if get(expression::LOOKUP_DREG).is_none() {
                    return found.map_or(Condition::Unknown, Condition::from);
                }
                // Of a map, a verdict or value is not known.
                self.loaded.clear();
                let is_absent = found == Some(false);
                return if is_absent { Condition::Fails } else { Condition::Unknown };
            }
            _ => {
                // It may write to a register.
                self.loaded.clear();
                return Condition::Unknown;
            }
        };
        let (Some(word), Some(part)) = (register.map(first_word), part) else {
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

    /// The value that begins in a register.
    fn held(&self, register: Option<u32>) -> Option<&Loaded> {
        let word = first_word(register?);
        self.loaded.iter().find(|(at, _)| *at == word).map(|(_, held)| held)
    }

    /// Whether a set has, or lacks if that is asked for, what registers hold; `None` if that is not
    /// known.
    fn look_up(&mut self, parts: Attributes<'_>) -> Option<bool> {
        let set = parts.text(expression::LOOKUP_SET)?;
        let mut word = first_word(parts.be32(expression::LOOKUP_SREG)?);
        let is_inverted = parts.be32(expression::LOOKUP_FLAGS).is_some_and(|flags| flags != 0);
        // The set knows how many of the values that follow each other are its key, of which each
        // part is padded to words unless it is the only one.
        let (mut keys, mut joined) = (Vec::new(), Vec::new());
        let value_at = |word: u32| {
            self.loaded.iter().find_map(|(at, held)| match held {
                Loaded::Value(value) if *at == word => Some(value),
                _ => None,
            })
        };
        while let Some(value) = value_at(word) {
            if keys.is_empty() {
                keys.push(value.clone());
            }
            joined.extend(value);
            joined.resize(joined.len().next_multiple_of(4), 0);
            keys.push(joined.clone());
            word += value.len().div_ceil(4) as u32;
        }
        if keys.is_empty() {
            return None;
        }
        keys.dedup();
        Some((self.has)(set, &keys)? != is_inverted)
    }

    fn meta(&self, key: Option<u32>) -> Option<Loaded> {
        match (key?, self.flow) {
            (expression::META_IIFNAME | expression::META_OIFNAME, _) => Some(Loaded::Interface),
            (expression::META_IIF | expression::META_OIF, _) => Some(Loaded::InterfaceIndex),
            (expression::META_NFPROTO, Some(flow)) => Some(Loaded::Value(vec![flow.family()])),
            (expression::META_L4PROTO, Some(flow)) => Some(Loaded::Value(vec![flow.protocol])),
            (expression::META_L4PROTO, None) => Some(Loaded::Protocol),
            _ => None,
        }
    }

    fn payload(&self, parts: Attributes<'_>) -> Option<Loaded> {
        let get = |kind| parts.be32(kind);
        let base = get(expression::PAYLOAD_BASE)?;
        let (offset, length) = (get(expression::PAYLOAD_OFFSET)?, get(expression::PAYLOAD_LEN)?);
        if let Some(flow) = self.flow {
            return flow.bytes(base, offset as usize, length as usize).map(Loaded::Value);
        }
        let is_protocol =
            (base, offset, length) == (expression::BASE_NETWORK, expression::IPV4_PROTOCOL, 1);
        is_protocol.then_some(Loaded::Protocol)
    }

    fn compare(&self, parts: Attributes<'_>) -> Condition {
        let loaded = self.held(parts.be32(expression::CMP_SREG));
        let operator = parts.be32(expression::CMP_OP);
        let (Some(loaded), Some(operator), Some(with)) =
            (loaded, operator, value(parts, expression::CMP_DATA))
        else {
            return Condition::Unknown;
        };
        let holds = |order: Ordering| match operator {
            expression::CMP_EQ => Some(order.is_eq()),
            expression::CMP_NEQ => Some(order.is_ne()),
            expression::CMP_LT => Some(order.is_lt()),
            expression::CMP_LTE => Some(order.is_le()),
            expression::CMP_GT => Some(order.is_gt()),
            expression::CMP_GTE => Some(order.is_ge()),
            _ => None,
        };
        let is_equal = operator == expression::CMP_EQ;
        let excluded = match loaded {
            Loaded::Value(value) => {
                let order = value.get(..with.len()).map(|value| value.cmp(with));
                return order.and_then(holds).map_or(Condition::Unknown, Condition::from);
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
fn masked(loaded: Loaded, flow: Option<&NewFlow>, parts: Attributes<'_>) -> Option<Loaded> {
    let mask = value(parts, expression::BITWISE_MASK)?;
    let flipped = value(parts, expression::BITWISE_XOR).is_some_and(|x| x.iter().any(|b| *b != 0));
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

pub(super) fn host_number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

pub(super) fn value<'a>(parts: Attributes<'a>, kind: u16) -> Option<&'a [u8]> {
    Some(parts.find_kind(kind)?.nested().find_kind(data::VALUE)?.payload)
}
