//! The effects of single rules on new connections.

use std::cmp::Ordering;

use super::flow::NewFlow;
use crate::{
    Attributes,
    nftables::abi::{data, expression},
};

/// The effect of a rule on a new connection, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// None, or none that decides.
    None,
    MayAccept,
    /// Perhaps what follows is not asked.
    MayReturn,
    /// A chain is asked.
    Asks {
        chain: String,
        /// By each packet.
        is_always: bool,
    },
    /// A chain is asked in place of what follows.
    GoesTo {
        chain: String,
        /// By each packet.
        is_always: bool,
    },
    /// A set or map of states of connections is asked.
    AsksStates(String),
    /// Each packet is dropped.
    Drops,
}

/// Returns the effect of a rule with these expressions on all new connections, or on one.
pub(super) fn effect(expressions: Attributes<'_>, flow: Option<&NewFlow>) -> Effect {
    let mut conditions = Conditions { is_always: true, loaded: None, flow };
    for each in expressions {
        let read = each.nested();
        let Some(name) = text(read, expression::NAME) else { return Effect::MayAccept };
        let parts = read.find_kind(expression::DATA).map(|data| data.nested());
        let parts = parts.unwrap_or_else(|| Attributes::new(&[]));
        match conditions.follow(name, parts) {
            Condition::Fails => return Effect::None,
            Condition::Holds => continue,
            Condition::Unknown => {}
        }
        match name {
            "immediate" => match verdict(parts) {
                Some((data::ACCEPT, _)) => return Effect::MayAccept,
                Some((data::DROP, _)) if conditions.is_always => return Effect::Drops,
                Some((data::JUMP, Some(chain))) => {
                    return Effect::Asks { chain, is_always: conditions.is_always };
                }
                Some((data::GOTO, Some(chain))) => {
                    return Effect::GoesTo { chain, is_always: conditions.is_always };
                }
                Some((data::RETURN, _)) => return Effect::MayReturn,
                Some((data::DROP, _)) | None => {}
                Some(_) => return Effect::MayAccept,
            },
            "reject" if conditions.is_always => return Effect::Drops,
            "reject" | "counter" | "log" | "notrack" => {}
            "lookup" if conditions.is_state(number(parts, expression::LOOKUP_SREG)) => {
                match (text(parts, expression::LOOKUP_SET), number(parts, expression::LOOKUP_FLAGS))
                {
                    (Some(set), None | Some(0)) => return Effect::AsksStates(set.to_owned()),
                    _ => return Effect::MayAccept,
                }
            }
            // A verdict map.
            "lookup" if number(parts, expression::LOOKUP_DREG) == Some(0) => {
                return Effect::MayAccept;
            }
            "queue" | "synproxy" | "tproxy" | "objref" => return Effect::MayAccept,
            "target" => match text(parts, expression::TARGET_NAME) {
                Some("REJECT") if conditions.is_always => return Effect::Drops,
                Some("REJECT" | "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS") => {}
                _ => return Effect::MayAccept,
            },
            _ => conditions.is_always = false,
        }
    }
    Effect::None
}

/// The verdict of an `immediate` expression, and the chain that it leads to.
fn verdict(parts: Attributes<'_>) -> Option<(i32, Option<String>)> {
    let data = parts.find_kind(expression::IMMEDIATE_DATA)?.nested();
    let verdict = data.find_kind(data::VERDICT)?.nested();
    let code = verdict.find_kind(data::VERDICT_CODE)?.be32()?.cast_signed();
    Some((code, text(verdict, data::VERDICT_CHAIN).map(str::to_owned)))
}

/// The part of a packet that a register holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Loaded {
    /// The bits of the connection's state that are in this mask.
    State(u32),
    Interface,
    InterfaceIndex,
    Protocol,
    /// A part of the flow that is asked about.
    Value(Vec<u8>),
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
struct Conditions<'a> {
    /// Whether there is none but those that hold.
    is_always: bool,
    loaded: Option<(u32, Loaded)>,
    flow: Option<&'a NewFlow>,
}

impl Conditions<'_> {
    /// Follows an expression.
    fn follow(&mut self, name: &str, parts: Attributes<'_>) -> Condition {
        let get = |kind| number(parts, kind);
        let (register, part) = match name {
            "ct" if get(expression::CT_KEY) == Some(expression::CT_STATE) => {
                (get(expression::CT_DREG), Some(Loaded::State(u32::MAX)))
            }
            "meta" if get(expression::META_DREG).is_some() => {
                (get(expression::META_DREG), self.meta(get(expression::META_KEY)))
            }
            "payload" if get(expression::PAYLOAD_DREG).is_some() => {
                (get(expression::PAYLOAD_DREG), self.payload(parts))
            }
            "bitwise" => {
                let source = get(expression::BITWISE_SREG);
                let loaded = self.loaded.take().filter(|(register, _)| Some(*register) == source);
                let masked = loaded.and_then(|(_, loaded)| masked(loaded, parts));
                (get(expression::BITWISE_DREG), masked)
            }
            "cmp" => return self.compare(parts),
            "match" if text(parts, expression::MATCH_NAME) == Some("conntrack") => {
                let info = parts.find_kind(expression::MATCH_INFO).map(|info| info.payload);
                let revision = get(expression::MATCH_REV);
                let excludes = revision == Some(3) && info.is_some_and(conntrack_excludes_new);
                return if excludes { Condition::Fails } else { Condition::Unknown };
            }
            "lookup" if self.is_state(get(expression::LOOKUP_SREG)) => return Condition::Unknown,
            _ => {
                // It may write to the register.
                self.loaded = None;
                return Condition::Unknown;
            }
        };
        self.loaded = register.zip(part);
        // What is loaded is there, if it is known.
        match self.loaded {
            Some((_, Loaded::State(_) | Loaded::Value(_))) => Condition::Holds,
            _ => Condition::Unknown,
        }
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
        let get = |kind| number(parts, kind);
        let base = get(expression::PAYLOAD_BASE)?;
        let (offset, length) = (get(expression::PAYLOAD_OFFSET)?, get(expression::PAYLOAD_LEN)?);
        if let Some(flow) = self.flow {
            return flow.bytes(base, offset as usize, length as usize).map(Loaded::Value);
        }
        let is_protocol =
            (base, offset, length) == (expression::BASE_NETWORK, expression::IPV4_PROTOCOL, 1);
        is_protocol.then_some(Loaded::Protocol)
    }

    /// Whether the register holds the whole state of the connection.
    fn is_state(&self, register: Option<u32>) -> bool {
        let state = |register| Some((register, Loaded::State(u32::MAX)));
        register.is_some_and(|register| self.loaded == state(register))
    }

    fn compare(&self, parts: Attributes<'_>) -> Condition {
        let source = number(parts, expression::CMP_SREG);
        let loaded = self.loaded.as_ref().filter(|(register, _)| Some(*register) == source);
        let operator = number(parts, expression::CMP_OP);
        let (Some((_, loaded)), Some(operator), Some(with)) =
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
            Loaded::State(mask) => {
                let state = host_number(with);
                let order = state.map(|state| (mask & expression::CT_STATE_NEW).cmp(&state));
                return order.and_then(holds).map_or(Condition::Unknown, Condition::from);
            }
            Loaded::Value(value) => {
                let order = value.get(..with.len()).map(|value| value.cmp(with));
                return order.and_then(holds).map_or(Condition::Unknown, Condition::from);
            }
            Loaded::Interface => is_equal && with.starts_with(b"lo\0"),
            Loaded::InterfaceIndex => is_equal && host_number(with) == Some(LOOPBACK),
            Loaded::Protocol => is_equal && matches!(with, [ICMP | ICMPV6]),
        };
        if excluded { Condition::Fails } else { Condition::Unknown }
    }
}

/// The part that is left by a mask.
fn masked(loaded: Loaded, parts: Attributes<'_>) -> Option<Loaded> {
    let mask = value(parts, expression::BITWISE_MASK)?;
    let flipped = value(parts, expression::BITWISE_XOR).is_some_and(|x| x.iter().any(|b| *b != 0));
    match loaded {
        _ if flipped => None,
        Loaded::State(all) => host_number(mask).map(|mask| Loaded::State(all & mask)),
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

/// Whether the match `conntrack` of xtables rules new connections out, by its description (`struct
/// xt_conntrack_mtinfo3`).
fn conntrack_excludes_new(info: &[u8]) -> bool {
    // After eight addresses, two times and five numbers of 16 bits.
    const FLAGS: usize = 8 * 16 + 8 + 10;
    const INVERTED: usize = FLAGS + 2;
    const STATES: usize = FLAGS + 4;
    /// `XT_CONNTRACK_STATE`
    const STATE: u16 = 1;
    /// `XT_CONNTRACK_STATE_BIT(IP_CT_NEW)`, and `XT_CONNTRACK_STATE_SNAT` and `_DNAT`, which a new
    /// connection may have.
    const NEW: u16 = 1 << 3 | 1 << 6 | 1 << 7;
    let get = |at: usize| {
        let bytes = info.get(at..at + 2)?;
        Some(u16::from_ne_bytes(bytes.try_into().ok()?))
    };
    let Some(((flags, inverted), states)) = get(FLAGS).zip(get(INVERTED)).zip(get(STATES)) else {
        return false;
    };
    flags & STATE != 0 && inverted & STATE == 0 && states & NEW == 0
}

pub(super) fn host_number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}

fn number(parts: Attributes<'_>, kind: u16) -> Option<u32> {
    parts.find_kind(kind)?.be32()
}

pub(super) fn value<'a>(parts: Attributes<'a>, kind: u16) -> Option<&'a [u8]> {
    Some(parts.find_kind(kind)?.nested().find_kind(data::VALUE)?.payload)
}

pub(super) fn text<'a>(attributes: Attributes<'a>, kind: u16) -> Option<&'a str> {
    attributes.find_kind(kind)?.str()
}
