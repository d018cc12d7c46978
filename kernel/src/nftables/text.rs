//! nft's syntax: a [`Transaction`] prints as a file that `nft -f` loads, and a [`Rule`] nearly as
//! `nft list` prints it.

use std::{
    borrow::Cow,
    fmt::{self, Display, Formatter, Write},
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use switchyard_model::Protocol;

use crate::nftables::ruleset::{
    Element, ElementData, Family, Field, InterfaceMatch, Operation, OperationKind, Rule, Selector,
    SetData, SetDef, SlotChoice, Statement, Table, Transaction, Verdict, interval,
};

/// The longest comment that nft takes, in bytes.
const COMMENT_MAX: usize = 128;

/// The longest comment of a set, in bytes: the kernel keeps 256 bytes of user data, and `typeof`
/// needs most of them.
const SET_COMMENT_MAX: usize = 64;

impl Display for Transaction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.operations().iter().try_for_each(|operation| writeln!(f, "{operation}"))
    }
}

impl Display for Operation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { table, kind } = self;
        match kind {
            OperationKind::AddTable { comment: None } | OperationKind::WakeTable => {
                write!(f, "add table {table}")
            }
            OperationKind::AddTable { comment: Some(comment) } => {
                write!(f, "add table {table} {{ comment \"{}\"; }}", comment_text(comment))
            }
            OperationKind::DeleteTable => write!(f, "delete table {table}"),
            OperationKind::AddBaseChain(chain) => write!(
                f,
                "add chain {table} {} {{ type {} hook {} priority {}; policy accept; }}",
                chain.name, chain.kind, chain.hook, chain.priority
            ),
            OperationKind::AddChain(chain) => write!(f, "add chain {table} {chain}"),
            OperationKind::FlushChain(chain) => write!(f, "flush chain {table} {chain}"),
            OperationKind::DeleteChain(chain) => write!(f, "delete chain {table} {chain}"),
            OperationKind::AddSet(set) => add_set(f, table, set),
            OperationKind::DeleteSet(set) => write!(f, "delete set {table} {set}"),
            OperationKind::AddRule(chain, rule) => {
                write!(f, "add rule {table} {chain} {}", rule.display(table.family))
            }
            OperationKind::AddElements(set, elements) => {
                write!(f, "add element {table} {} {{ ", set.name)?;
                list(f, ", ", elements, |f, element| write!(f, "{}", element.display(set)))?;
                f.write_str(" }")
            }
            OperationKind::RestoreElements(set, elements) => {
                write!(f, "add element {table} {} {{ ", set.name)?;
                list(f, ", ", elements, |f, restored| {
                    write_element(f, set, &restored.element, restored.expires)
                })?;
                f.write_str(" }")
            }
            OperationKind::DeleteElements(set, keys) => {
                write!(f, "delete element {table} {} {{ ", set.name)?;
                list(f, ", ", keys, |f, key| write_key(f, set, key.as_slice()))?;
                f.write_str(" }")
            }
        }
    }
}

fn add_set(f: &mut Formatter<'_>, table: &Table, set: &SetDef) -> fmt::Result {
    let kind = if set.is_map() { "map" } else { "set" };
    write!(f, "add {kind} {table} {} {{ ", set.name)?;
    let write_fields = |f: &mut Formatter<'_>, fields: &[Field]| {
        if set.is_typeof() {
            list(f, " . ", fields, |f, field| f.write_str(field.expression()))
        } else {
            list(f, " . ", fields, |f, field| f.write_str(field.type_name()))
        }
    };
    f.write_str(if set.is_typeof() { "typeof " } else { "type " })?;
    write_fields(f, &set.key)?;
    match &set.data {
        SetData::None => {}
        SetData::Verdict => f.write_str(" : verdict")?,
        SetData::Value(fields) => {
            f.write_str(" : ")?;
            write_fields(f, fields)?;
        }
    }
    f.write_char(';')?;
    if set.interval {
        f.write_str(" flags interval;")?;
    }
    if let Some(timeout) = set.timeout {
        write!(f, " flags dynamic,timeout; timeout {}s;", timeout.as_secs())?;
    }
    if let Some(size) = set.size {
        write!(f, " size {size};")?;
    }
    if let Some(comment) = &set.comment {
        write!(f, " comment \"{}\";", set_comment_text(comment))?;
    }
    f.write_str(" }")
}

impl Field {
    /// The type's name in nft's syntax; `integer` for a slot, which `typeof` alone can declare.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Self::Ipv4Addr => "ipv4_addr",
            Self::Ipv6Addr => "ipv6_addr",
            Self::InetProto => "inet_proto",
            Self::InetService | Self::Port(_) => "inet_service",
            Self::Slot => "integer",
        }
    }

    /// An expression of this type, for `typeof`.
    pub(crate) fn expression(self) -> &'static str {
        match self {
            Self::Ipv4Addr => "ip daddr",
            Self::Ipv6Addr => "ip6 daddr",
            Self::InetProto => "meta l4proto",
            Self::InetService => "th dport",
            Self::Port(Protocol::Tcp) => "tcp dport",
            Self::Port(Protocol::Udp) => "udp dport",
            Self::Port(Protocol::Sctp) => "sctp dport",
            Self::Slot => "numgen random mod 65536",
        }
    }
}

impl Element {
    /// The element in nft's syntax, as an element of `set`.
    pub fn display<'a>(&'a self, set: &'a SetDef) -> impl Display + 'a {
        Printed(move |f: &mut Formatter<'_>| write_element(f, set, self, None))
    }
}

fn write_element(
    f: &mut Formatter<'_>,
    set: &SetDef,
    element: &Element,
    expires: Option<Duration>,
) -> fmt::Result {
    write_key(f, set, element.key.as_slice())?;
    if let Some(expires) = expires {
        write!(f, " expires {}s", expires.as_secs())?;
    }
    if let Some(comment) = &element.comment {
        write!(f, " comment \"{}\"", comment_text(comment))?;
    }
    match (&element.data, &set.data) {
        (ElementData::None, _) => Ok(()),
        (ElementData::Verdict(verdict), _) => write!(f, " : {verdict}"),
        (ElementData::Value(value), SetData::Value(types)) => {
            f.write_str(" : ")?;
            fields(f, types, value.as_slice())
        }
        (ElementData::Value(value), _) => write!(f, " : {value:?}"),
    }
}

/// The key of an element of `set` in nft's syntax.
pub fn key_text(set: &SetDef, key: &[u8]) -> String {
    Printed(|f: &mut Formatter<'_>| write_key(f, set, key)).to_string()
}

fn write_key(f: &mut Formatter<'_>, set: &SetDef, key: &[u8]) -> fmt::Result {
    let Some((first, last)) = interval::bounds(key).filter(|_| set.interval) else {
        return fields(f, &set.key, key);
    };
    match interval::network(first, last) {
        _ if first == last => write!(f, "{first}"),
        Some(net) => write!(f, "{net}"),
        None => write!(f, "{first}-{last}"),
    }
}

/// Prints the fields of a concatenation.
fn fields(f: &mut Formatter<'_>, types: &[Field], bytes: &[u8]) -> fmt::Result {
    split_fields(types, bytes).enumerate().try_for_each(|(index, (field, value))| {
        if index > 0 {
            f.write_str(" . ")?;
        }
        write_field(f, field, value)
    })
}

/// Splits a concatenation into its fields, without their padding. If bytes are missing at the end,
/// the last fields are shorter or empty.
pub(crate) fn split_fields<'a>(
    types: &[Field],
    mut bytes: &'a [u8],
) -> impl Iterator<Item = (Field, &'a [u8])> {
    types.iter().map(move |field| {
        let (value, rest) = bytes.split_at(field.width().min(bytes.len()));
        let padding = field.padded_width() - field.width();
        bytes = &rest[padding.min(rest.len())..];
        (*field, value)
    })
}

/// The value of one field in nft's syntax.
#[cfg(feature = "json")]
pub(crate) fn field_text(field: Field, value: &[u8]) -> String {
    Printed(|f: &mut Formatter<'_>| write_field(f, field, value)).to_string()
}

fn write_field(f: &mut Formatter<'_>, field: Field, value: &[u8]) -> fmt::Result {
    match (field, value) {
        (Field::Ipv4Addr, &[a, b, c, d]) => write!(f, "{}", Ipv4Addr::new(a, b, c, d)),
        (Field::InetProto, &[number]) => {
            match Protocol::ALL.into_iter().find(|protocol| protocol.number() == number) {
                Some(protocol) => f.write_str(protocol.as_lower()),
                None => write!(f, "{number}"),
            }
        }
        (Field::InetService | Field::Port(_), &[high, low]) => {
            write!(f, "{}", u16::from_be_bytes([high, low]))
        }
        (Field::Slot, &[a, b, c, d]) => write!(f, "{}", u32::from_ne_bytes([a, b, c, d])),
        (Field::Ipv6Addr, value) => match <[u8; 16]>::try_from(value) {
            Ok(octets) => write!(f, "{}", Ipv6Addr::from(octets)),
            Err(_) => f.write_char('?'),
        },
        // The value is too short for its type.
        _ => f.write_char('?'),
    }
}

impl Rule {
    /// The rule in nft's syntax, in a table of `family`.
    pub fn display(&self, family: Family) -> impl Display + '_ {
        Printed(move |f: &mut Formatter<'_>| {
            list(f, " ", &self.statements, |f, statement| write_statement(f, family, statement))?;
            match &self.comment {
                Some(comment) => write!(f, " comment \"{}\"", comment_text(comment)),
                None => Ok(()),
            }
        })
    }
}

fn write_statement(f: &mut Formatter<'_>, family: Family, statement: &Statement) -> fmt::Result {
    let not = |negated: bool| if negated { "!= " } else { "" };
    match statement {
        Statement::CtStateNew => f.write_str("ct state new"),
        Statement::CtStatusDnat => f.write_str("ct status dnat"),
        Statement::CtReply => f.write_str("ct direction reply"),
        Statement::Address { side, negated, net } => {
            write!(f, "{family} {side} {}", not(*negated))?;
            if net.prefix_len() == net.max_prefix_len() {
                write!(f, "{}", net.addr())
            } else {
                write!(f, "{}", net.trunc())
            }
        }
        Statement::InputInterface { negated, name } => match name {
            InterfaceMatch::Exact(name) => write!(f, "iifname {}\"{name}\"", not(*negated)),
            InterfaceMatch::Prefix(name) => write!(f, "iifname {}\"{name}*\"", not(*negated)),
            InterfaceMatch::Kind(kind) => write!(f, "meta iifkind {}\"{kind}\"", not(*negated)),
        },
        Statement::FibLocal(side) => write!(f, "fib {side} type local"),
        Statement::Protocol(protocol) => write!(f, "meta l4proto {}", protocol.as_lower()),
        Statement::SocketTransparent => f.write_str("socket transparent 1"),
        Statement::SocketWildcard => f.write_str("socket wildcard 1"),
        Statement::MarkSet(bits) => write!(f, "meta mark & {bits:#x} != 0x0"),
        Statement::MarkOr(bits) => write!(f, "meta mark set meta mark | {bits:#x}"),
        Statement::MarkXor(bits) => write!(f, "meta mark set meta mark ^ {bits:#x}"),
        Statement::Lookup { key, set } => {
            selectors(f, family, key)?;
            write!(f, " @{set}")
        }
        Statement::VerdictMap { key, map } => {
            selectors(f, family, key)?;
            write!(f, " vmap @{map}")
        }
        Statement::DnatSlot { protocol, key, choice, slots, map } => {
            write!(f, "dnat {family} to ")?;
            selectors_of(f, family, key, protocol.as_lower())?;
            match choice {
                SlotChoice::Random => write!(f, " . numgen random mod {slots}")?,
                SlotChoice::InTurn => write!(f, " . numgen inc mod {slots}")?,
                SlotChoice::Hash { of, seed } => {
                    f.write_str(" . jhash ")?;
                    selectors_of(f, family, of, protocol.as_lower())?;
                    write!(f, " mod {slots} seed {seed:#x}")?;
                }
            }
            write!(f, " map @{map}")
        }
        Statement::DnatMap { key, map } => {
            write!(f, "dnat {family} to ")?;
            selectors(f, family, key)?;
            write!(f, " map @{map}")
        }
        Statement::DnatToItself => write!(f, "dnat to {family} daddr"),
        Statement::Masquerade => f.write_str("masquerade fully-random"),
        Statement::Reject => f.write_str("reject"),
        Statement::UpdateMap { protocol, key, value, map } => {
            write!(f, "update @{map} {{ ")?;
            selectors_of(f, family, key, protocol.as_lower())?;
            f.write_str(" : ")?;
            selectors_of(f, family, value, protocol.as_lower())?;
            f.write_str(" }")
        }
        Statement::Verdict(verdict) => write!(f, "{verdict}"),
    }
}

fn selectors(f: &mut Formatter<'_>, family: Family, key: &[Selector]) -> fmt::Result {
    selectors_of(f, family, key, "th")
}

/// Prints parts of a packet whose transport header has this name.
fn selectors_of(
    f: &mut Formatter<'_>,
    family: Family,
    key: &[Selector],
    transport: &str,
) -> fmt::Result {
    list(f, " . ", key, |f, selector| match selector {
        Selector::SourceAddress => write!(f, "{family} saddr"),
        Selector::DestinationAddress => write!(f, "{family} daddr"),
        Selector::Protocol => f.write_str("meta l4proto"),
        Selector::SourcePort => write!(f, "{transport} sport"),
        Selector::DestinationPort => write!(f, "{transport} dport"),
        Selector::OriginalSource => write!(f, "ct original {family} saddr"),
        Selector::OriginalDestination => write!(f, "ct original {family} daddr"),
        Selector::OriginalDestinationPort => f.write_str("ct original proto-dst"),
    })
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

/// A comment as it is written: as much as nft takes, and without characters that nft's syntax
/// cannot quote.
pub(crate) fn comment_text(comment: &str) -> Cow<'_, str> {
    cut_comment(comment, COMMENT_MAX)
}

/// The comment of a set as it is written.
pub(crate) fn set_comment_text(comment: &str) -> Cow<'_, str> {
    cut_comment(comment, SET_COMMENT_MAX)
}

fn cut_comment(comment: &str, max: usize) -> Cow<'_, str> {
    let mut end = comment.len().min(max);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    let cut = &comment[..end];
    let unquotable = |c: char| c == '"' || c.is_control();
    if cut.contains(unquotable) { cut.replace(unquotable, "'").into() } else { cut.into() }
}

fn list<T>(
    f: &mut Formatter<'_>,
    separator: &str,
    items: &[T],
    mut write_item: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    items.iter().enumerate().try_for_each(|(index, item)| {
        if index > 0 {
            f.write_str(separator)?;
        }
        write_item(f, item)
    })
}

/// A value that a function prints.
struct Printed<F>(F);

impl<F: Fn(&mut Formatter<'_>) -> fmt::Result> Display for Printed<F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}
