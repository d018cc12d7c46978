//! Expressions, decoded from the attributes that the kernel dumps. Nothing here is shared with what
//! writes expressions but the numbers of the kernel's interface.

use crate::{
    netlink::{Attribute, Attributes},
    nftables::abi::{data as d, expression as e},
};

/// The name of a chain or a set.
pub(in crate::nftables) type Name = Box<str>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::nftables) enum Verdict {
    Accept,
    Drop,
    Return,
    Continue,
    Jump(Name),
    Goto(Name),
}

/// The data of an element, or of `immediate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    None,
    Bytes(Box<[u8]>),
    Verdict(Verdict),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nftables) enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A way to draw a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::nftables) enum Draw {
    Random,
    InTurn,
    /// Of as many bytes from this word on.
    Hash {
        from: usize,
        length: usize,
        seed: u32,
    },
}

/// An expression. Registers are counted in words of four bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::nftables) enum Expression {
    Payload {
        base: u32,
        offset: u32,
        length: u32,
        to: usize,
    },
    Meta {
        key: u32,
        to: usize,
    },
    SetMark {
        from: usize,
    },
    Ct {
        key: u32,
        original: Option<bool>,
        to: usize,
    },
    Fib {
        source: bool,
        to: usize,
    },
    Compare {
        from: usize,
        how: Compare,
        with: Box<[u8]>,
    },
    Range {
        from: usize,
        negated: bool,
        first: Box<[u8]>,
        last: Box<[u8]>,
    },
    Bitwise {
        from: usize,
        to: usize,
        mask: Box<[u8]>,
        xor: Box<[u8]>,
    },
    Lookup {
        set: Name,
        from: usize,
        to: Option<usize>,
        negated: bool,
    },
    Immediate {
        to: usize,
        bytes: Box<[u8]>,
    },
    Verdict(Verdict),
    Draw {
        to: usize,
        how: Draw,
        modulus: u32,
        offset: u32,
    },
    Translate {
        address: Option<usize>,
        port: Option<usize>,
    },
    Masquerade,
    Reject,
    /// An element for later packets.
    Remember {
        set: Name,
        key: usize,
        data: Option<usize>,
        milliseconds: Option<u64>,
        renews: bool,
    },
    /// A statement that changes nothing for this packet: a counter, the log.
    Nothing,
    /// Anything else, by its name.
    Unknown(Name),
}

/// The word of the verdict in place of one of data.
const VERDICT: u32 = 0;
/// `NFT_REG_4`, the last register of 16 bytes, and `NFT_REG32_00`, the first of 4.
const LAST_LONG: u32 = 4;
const FIRST_SHORT: u32 = 8;
/// The words of all registers (`NFT_REG32_COUNT`, and as many as the long ones overlap).
pub(super) const WORDS: usize = 16;

/// `NFT_CONTINUE`
const CONTINUE: i32 = -1;
/// `NFTA_BITWISE_OP`, and `NFT_BITWISE_BOOL` (`NFT_BITWISE_MASK_XOR` since 6.13).
const BITWISE_OP: u16 = 6;
/// `NFT_LOOKUP_F_INV`
const LOOKUP_INVERTED: u32 = 1;
/// `NFTA_RANGE_SREG`, `_OP`, `_FROM_DATA`, `_TO_DATA`
const RANGE: [u16; 4] = [1, 2, 3, 4];
/// `NFTA_PAYLOAD_SREG`
const PAYLOAD_SREG: u16 = 5;
/// `NFTA_NAT_REG_ADDR_MAX`, `NFTA_NAT_REG_PROTO_MAX`
const NAT_MAX: [u16; 2] = [4, 6];
/// `NFT_DYNSET_OP_ADD`, and `NFTA_DYNSET_TIMEOUT`
const DYNSET_ADD: u32 = 0;
const DYNSET_TIMEOUT: u16 = 6;
/// `NFTA_DYNSET_EXPR`, `NFTA_DYNSET_EXPRESSIONS`: limits and counters of each element; and
/// `NFTA_DYNSET_FLAGS`, 0 without these, or whether the element must be new.
const DYNSET_EXPRESSIONS: [u16; 2] = [7, 10];
const DYNSET_FLAGS: u16 = 9;
/// `NFTA_MASQ_REG_PROTO_MIN`
const MASQ_PROTO: u16 = 2;

/// `NFTA_SET_ELEM_EXPR`, `NFTA_SET_ELEM_EXPRESSIONS`
const ELEMENT_EXPRESSION: u16 = 7;
const ELEMENT_EXPRESSIONS: u16 = 11;

/// Whether an element has expressions of its own, such as a limit, which decide whether a packet
/// finds it; counters decide nothing.
pub(super) fn has_own_expressions(element: Attributes<'_>) -> bool {
    let decides = |one: Attribute<'_>| one.nested().text(e::NAME) != Some("counter");
    let list = element.find_kind(ELEMENT_EXPRESSIONS).map(|list| list.nested());
    element.find_kind(ELEMENT_EXPRESSION).into_iter().chain(list.into_iter().flatten()).any(decides)
}

/// Decodes the list of a rule's expressions.
pub(super) fn expressions(list: Attributes<'_>) -> Vec<Expression> {
    list.map(|one| {
        let one = one.nested();
        let name = one.text(e::NAME).unwrap_or_default();
        let empty = Attributes::new(&[]);
        let data = one.find_kind(e::DATA).map_or(empty, |data| data.nested());
        decode(name, data).unwrap_or_else(|| Expression::Unknown(name.into()))
    })
    .collect()
}

/// Decodes data; `None` for a verdict that is unknown.
pub(super) fn data(attribute: Attribute<'_>) -> Option<Data> {
    let nested = attribute.nested();
    if let Some(value) = nested.find_kind(d::VALUE) {
        return Some(Data::Bytes(value.payload.into()));
    }
    let verdict = Read(nested.find_kind(d::VERDICT)?.nested());
    let chain = || Some(Name::from(verdict.0.text(d::VERDICT_CHAIN)?));
    Some(Data::Verdict(match verdict.number(d::VERDICT_CODE)?.cast_signed() {
        d::ACCEPT => Verdict::Accept,
        d::DROP => Verdict::Drop,
        d::RETURN => Verdict::Return,
        CONTINUE => Verdict::Continue,
        d::JUMP => Verdict::Jump(chain()?),
        d::GOTO => Verdict::Goto(chain()?),
        _ => return None,
    }))
}

#[derive(Clone, Copy)]
struct Read<'a>(Attributes<'a>);

impl Read<'_> {
    fn number(self, kind: u16) -> Option<u32> {
        self.0.be32(kind)
    }

    fn has(self, kind: u16) -> bool {
        self.0.find_kind(kind).is_some()
    }

    /// A register for data, as a word.
    fn register(self, kind: u16) -> Option<usize> {
        let word = match self.number(kind)? {
            register @ 1..=LAST_LONG => (register - 1) * 4,
            register => register.checked_sub(FIRST_SHORT)?,
        };
        usize::try_from(word).ok().filter(|word| *word < WORDS)
    }

    /// A register that may be missing, but not unreadable.
    fn optional(self, kind: u16) -> Option<Option<usize>> {
        if self.has(kind) { self.register(kind).map(Some) } else { Some(None) }
    }

    /// Whether `dynset` does more than to add an element.
    fn has_expressions(self) -> bool {
        DYNSET_EXPRESSIONS.into_iter().any(|kind| self.has(kind))
            || self.number(DYNSET_FLAGS).unwrap_or(0) != 0
    }

    fn bytes(self, kind: u16) -> Option<Box<[u8]>> {
        match data(self.0.find_kind(kind)?)? {
            Data::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Decodes one expression; `None` if it is unknown.
pub(in crate::nftables) fn decode(name: &str, parts: Attributes<'_>) -> Option<Expression> {
    let read = Read(parts);
    Some(match name {
        "payload" if !read.has(PAYLOAD_SREG) => Expression::Payload {
            base: read.number(e::PAYLOAD_BASE)?,
            offset: read.number(e::PAYLOAD_OFFSET)?,
            length: read.number(e::PAYLOAD_LEN)?,
            to: read.register(e::PAYLOAD_DREG)?,
        },
        "meta" => match (read.number(e::META_KEY)?, read.optional(e::META_SREG)?) {
            (e::META_MARK, Some(from)) => Expression::SetMark { from },
            (_, Some(_)) => return None,
            (key, None) => Expression::Meta { key, to: read.register(e::META_DREG)? },
        },
        "ct" => Expression::Ct {
            key: read.number(e::CT_KEY)?,
            original: match read.0.find_kind(e::CT_DIRECTION) {
                Some(direction) => Some(direction.u8()? == e::CT_DIR_ORIGINAL),
                None => None,
            },
            to: read.register(e::CT_DREG)?,
        },
        "fib" if read.number(e::FIB_RESULT)? == e::FIB_ADDRTYPE => {
            let source = match read.number(e::FIB_FLAGS)? {
                e::FIB_SADDR => true,
                e::FIB_DADDR => false,
                _ => return None,
            };
            Expression::Fib { source, to: read.register(e::FIB_DREG)? }
        }
        "cmp" => Expression::Compare {
            from: read.register(e::CMP_SREG)?,
            how: match read.number(e::CMP_OP)? {
                e::CMP_EQ => Compare::Equal,
                e::CMP_NEQ => Compare::NotEqual,
                e::CMP_LT => Compare::Less,
                e::CMP_LTE => Compare::LessOrEqual,
                e::CMP_GT => Compare::Greater,
                e::CMP_GTE => Compare::GreaterOrEqual,
                _ => return None,
            },
            with: read.bytes(e::CMP_DATA)?,
        },
        "range" => Expression::Range {
            from: read.register(RANGE[0])?,
            negated: read.number(RANGE[1])? == 1,
            first: read.bytes(RANGE[2])?,
            last: read.bytes(RANGE[3])?,
        },
        "bitwise" if read.number(BITWISE_OP).unwrap_or(0) == 0 => Expression::Bitwise {
            from: read.register(e::BITWISE_SREG)?,
            to: read.register(e::BITWISE_DREG)?,
            mask: read.bytes(e::BITWISE_MASK)?,
            xor: read.bytes(e::BITWISE_XOR)?,
        },
        "lookup" => {
            let set = read.0.text(e::LOOKUP_SET)?.into();
            let to = match read.number(e::LOOKUP_DREG) {
                None | Some(VERDICT) => None,
                Some(_) => Some(read.register(e::LOOKUP_DREG)?),
            };
            let negated = read.number(e::LOOKUP_FLAGS).unwrap_or(0) & LOOKUP_INVERTED != 0;
            Expression::Lookup { set, from: read.register(e::LOOKUP_SREG)?, to, negated }
        }
        "immediate" => match (read.number(e::IMMEDIATE_DREG)?, read.0.find_kind(e::IMMEDIATE_DATA))
        {
            (VERDICT, Some(given)) => match data(given)? {
                Data::Verdict(verdict) => Expression::Verdict(verdict),
                _ => return None,
            },
            _ => Expression::Immediate {
                to: read.register(e::IMMEDIATE_DREG)?,
                bytes: read.bytes(e::IMMEDIATE_DATA)?,
            },
        },
        "numgen" => Expression::Draw {
            to: read.register(e::NUMGEN_DREG)?,
            how: match read.number(e::NUMGEN_TYPE)? {
                e::NUMGEN_RANDOM => Draw::Random,
                e::NUMGEN_IN_TURN => Draw::InTurn,
                _ => return None,
            },
            modulus: read.number(e::NUMGEN_MODULUS)?,
            offset: read.number(e::NUMGEN_OFFSET).unwrap_or(0),
        },
        "hash" if read.number(e::HASH_TYPE).unwrap_or(0) == e::HASH_JENKINS => Expression::Draw {
            to: read.register(e::HASH_DREG)?,
            how: Draw::Hash {
                from: read.register(e::HASH_SREG)?,
                length: read.number(e::HASH_LEN)? as usize,
                seed: read.number(e::HASH_SEED)?,
            },
            modulus: read.number(e::HASH_MODULUS)?,
            offset: read.number(e::HASH_OFFSET).unwrap_or(0),
        },
        "nat" if read.number(e::NAT_TYPE)? == e::NAT_DNAT => {
            let (address, port) =
                (read.optional(e::NAT_ADDR_MIN)?, read.optional(e::NAT_PROTO_MIN)?);
            // A range of addresses or ports would be one more way to draw.
            let [address_max, port_max] = NAT_MAX;
            let is_one = |max, min| {
                read.optional(max).is_some_and(|max| max.is_none_or(|max| Some(max) == min))
            };
            if !is_one(address_max, address) || !is_one(port_max, port) {
                return None;
            }
            Expression::Translate { address, port }
        }
        "masq" if !read.has(MASQ_PROTO) => Expression::Masquerade,
        "reject" => Expression::Reject,
        "dynset" if !read.has_expressions() => Expression::Remember {
            set: read.0.text(e::DYNSET_SET)?.into(),
            key: read.register(e::DYNSET_SREG_KEY)?,
            data: read.optional(e::DYNSET_SREG_DATA)?,
            milliseconds: match read.0.find_kind(DYNSET_TIMEOUT) {
                // 0 is the timeout of the set.
                Some(timeout) => Some(timeout.be64()?).filter(|time| *time > 0),
                None => None,
            },
            renews: match read.number(e::DYNSET_OP)? {
                DYNSET_ADD => false,
                e::DYNSET_UPDATE => true,
                _ => return None,
            },
        },
        "counter" | "log" => Expression::Nothing,
        _ => return None,
    })
}
