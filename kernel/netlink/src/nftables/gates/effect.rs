//! The effects of single rules on new connections.

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
    Asks(String),
    /// A chain is asked in place of what follows.
    GoesTo(String),
    /// A set or map of states of connections is asked.
    AsksStates(String),
    /// Each packet is dropped.
    Drops,
}

/// Returns the effect of a rule with these expressions.
pub(super) fn effect(expressions: Attributes<'_>) -> Effect {
    let mut conditions = Conditions::default();
    for each in expressions {
        let read = each.nested();
        let Some(name) = text(read, expression::NAME) else { return Effect::MayAccept };
        let parts = read.find_kind(expression::DATA).map(|data| data.nested());
        let parts = parts.unwrap_or_else(|| Attributes::new(&[]));
        if conditions.exclude_new(name, parts) {
            return Effect::None;
        }
        match name {
            "immediate" => match verdict(parts) {
                Some((data::ACCEPT, _)) => return Effect::MayAccept,
                Some((data::DROP, _)) if conditions.is_always => return Effect::Drops,
                Some((data::JUMP, Some(chain))) => return Effect::Asks(chain),
                Some((data::GOTO, Some(chain))) => return Effect::GoesTo(chain),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loaded {
    /// The bits of the connection's state that are in this mask.
    State(u32),
    Interface,
    InterfaceIndex,
    Protocol,
}

/// The conditions of a rule, up to an expression.
struct Conditions {
    /// Whether there is none.
    is_always: bool,
    loaded: Option<(u32, Loaded)>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self { is_always: true, loaded: None }
    }
}

impl Conditions {
    /// Follows an expression. Returns whether it rules new connections out.
    fn exclude_new(&mut self, name: &str, parts: Attributes<'_>) -> bool {
        let get = |kind| number(parts, kind);
        match name {
            "ct" if get(expression::CT_KEY) == Some(expression::CT_STATE) => {
                self.load(get(expression::CT_DREG), Loaded::State(u32::MAX));
            }
            "meta" => {
                let loaded = match get(expression::META_KEY) {
                    Some(expression::META_IIFNAME | expression::META_OIFNAME) => Loaded::Interface,
                    Some(expression::META_IIF | expression::META_OIF) => Loaded::InterfaceIndex,
                    Some(expression::META_L4PROTO) => Loaded::Protocol,
                    _ => {
                        self.loaded = None;
                        return false;
                    }
                };
                self.load(get(expression::META_DREG), loaded);
            }
            "payload" => {
                let is_protocol = get(expression::PAYLOAD_BASE) == Some(expression::BASE_NETWORK)
                    && get(expression::PAYLOAD_OFFSET) == Some(expression::IPV4_PROTOCOL)
                    && get(expression::PAYLOAD_LEN) == Some(1);
                self.loaded = None;
                if is_protocol {
                    self.load(get(expression::PAYLOAD_DREG), Loaded::Protocol);
                }
            }
            "bitwise" => {
                let mask = value(parts, expression::BITWISE_MASK).and_then(host_number);
                let source = get(expression::BITWISE_SREG);
                let state = self.loaded.filter(|(register, _)| Some(*register) == source);
                self.loaded = None;
                if let (Some((_, Loaded::State(all))), Some(mask)) = (state, mask) {
                    self.load(get(expression::BITWISE_DREG), Loaded::State(all & mask));
                }
            }
            "cmp" => return self.compare(parts),
            "match" if text(parts, expression::MATCH_NAME) == Some("conntrack") => {
                let info = parts.find_kind(expression::MATCH_INFO).map(|info| info.payload);
                let revision = get(expression::MATCH_REV);
                return revision == Some(3) && info.is_some_and(conntrack_excludes_new);
            }
            "lookup" if self.is_state(get(expression::LOOKUP_SREG)) => {}
            // It may write to the register.
            _ => self.loaded = None,
        }
        false
    }

    /// Whether the register holds the whole state of the connection.
    fn is_state(&self, register: Option<u32>) -> bool {
        let state = |register| Some((register, Loaded::State(u32::MAX)));
        register.is_some_and(|register| self.loaded == state(register))
    }

    fn load(&mut self, register: Option<u32>, loaded: Loaded) {
        self.loaded = register.map(|register| (register, loaded));
    }

    fn compare(&self, parts: Attributes<'_>) -> bool {
        let source = number(parts, expression::CMP_SREG);
        let Some((_, loaded)) = self.loaded.filter(|(register, _)| Some(*register) == source)
        else {
            return false;
        };
        let is_equal = match number(parts, expression::CMP_OP) {
            Some(expression::CMP_EQ) => true,
            Some(expression::CMP_NEQ) => false,
            _ => return false,
        };
        let Some(with) = value(parts, expression::CMP_DATA) else { return false };
        match loaded {
            Loaded::State(mask) => host_number(with)
                .is_some_and(|state| (mask & expression::CT_STATE_NEW == state) != is_equal),
            Loaded::Interface => is_equal && with.starts_with(b"lo\0"),
            Loaded::InterfaceIndex => is_equal && host_number(with) == Some(LOOPBACK),
            Loaded::Protocol => is_equal && matches!(with, [ICMP | ICMPV6]),
        }
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
