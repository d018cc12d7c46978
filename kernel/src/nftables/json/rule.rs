//! Rules in libnftables' JSON, with the types of the `nftables` crate.

use std::{borrow::Cow, collections::HashSet};

use ipnet::IpNet;
use nftables::{
    expr::{
        BinaryOperation, CT, CTDir, Expression, Fib, FibFlag, FibResult, JHash, Map, Meta, MetaKey,
        NamedExpression, NgMode, Numgen, Payload, PayloadField, Prefix, Socket, SocketAttr,
    },
    stmt::{
        JumpTarget, Mangle, Match, NAT, NATFamily, NATFlag, Operator, Reject, RejectType, SetOp,
        Statement as Stmt, VerdictMap,
    },
    types::{NfFamily, RejectCode},
};
use serde::Serialize;

use crate::nftables::{
    ruleset::{
        Family, Field, InterfaceMatch, Rule, Selector, SetName, Side, SlotChoice, Statement, Table,
        Verdict,
    },
    text,
};

/// The family as the `nftables` crate has it.
pub(super) fn nf_family(family: Family) -> NfFamily {
    match family {
        Family::Ip => NfFamily::IP,
        Family::Ip6 => NfFamily::IP6,
    }
}

#[derive(Serialize)]
pub(super) struct RuleObject<'a> {
    family: NfFamily,
    table: &'a str,
    chain: &'a str,
    expr: Vec<AnyStatement<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<Cow<'a, str>>,
}

impl<'a> RuleObject<'a> {
    /// Returns the object for `rule` in `chain`.
    pub(super) fn new(table: &'a Table, chain: &'a str, rule: &'a Rule) -> Self {
        Self {
            family: nf_family(table.family),
            table: table.name.as_str(),
            chain,
            expr: rule.statements.iter().map(|s| statement(table.family, s)).collect(),
            comment: rule.comment.as_ref().map(|comment| text::comment_text(comment)),
        }
    }
}

/// A statement, nearly as `nft -j list` prints it: one of the `nftables` crate, or the one that the
/// crate lacks.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum AnyStatement<'a> {
    Known(Box<Stmt<'a>>),
    Map { map: MapUpdate<'a> },
}

/// `update @map { key : value }`
#[derive(Serialize)]
pub(super) struct MapUpdate<'a> {
    op: SetOp,
    elem: Expression<'a>,
    data: Expression<'a>,
    map: String,
}

/// Whether nft loads the statement from JSON: a hash of several parts is a concatenation in the
/// concatenation that is the key, which nft rejects.
pub(super) fn nft_loads(statement: &Statement) -> bool {
    let Statement::DnatSlot { choice: SlotChoice::Hash { of, .. }, .. } = statement else {
        return true;
    };
    of.len() == 1
}

/// Returns a statement as JSON has it.
pub(super) fn statement(family: Family, statement: &Statement) -> AnyStatement<'_> {
    let known = match statement {
        Statement::CtStateNew => ct("state", "new"),
        Statement::CtStatusDnat => ct("status", "dnat"),
        Statement::CtReply => ct("direction", "reply"),
        Statement::Address { side, negated, net } => {
            matching(equality(*negated), address(family, *side), network(net))
        }
        Statement::InputInterface { negated, name } => {
            let (key, name): (_, Cow<'_, str>) = match name {
                InterfaceMatch::Exact(name) => (MetaKey::Iifname, (&**name).into()),
                InterfaceMatch::Prefix(name) => (MetaKey::Iifname, format!("{name}*").into()),
                InterfaceMatch::Kind(kind) => (MetaKey::Iifkind, (&**kind).into()),
            };
            matching(equality(*negated), meta(key), Expression::String(name))
        }
        Statement::FibLocal(side) => {
            let flag = match side {
                Side::Source => FibFlag::Saddr,
                Side::Destination => FibFlag::Daddr,
            };
            let fib = Fib { result: FibResult::Type, flags: HashSet::from([flag]) };
            matching(Operator::EQ, Expression::Named(NamedExpression::Fib(fib)), string("local"))
        }
        Statement::Protocol(protocol) => {
            matching(Operator::EQ, meta(MetaKey::L4proto), string(protocol.as_lower()))
        }
        Statement::SocketTransparent | Statement::SocketWildcard => {
            let key = match statement {
                Statement::SocketTransparent => SocketAttr::Transparent,
                _ => SocketAttr::Wildcard,
            };
            let socket = Socket { key: Cow::Owned(key) };
            let left = Expression::Named(NamedExpression::Socket(socket));
            matching(Operator::EQ, left, Expression::Number(1))
        }
        Statement::MarkSet(bits) => {
            let masked = BinaryOperation::AND(meta(MetaKey::Mark), Expression::Number(*bits));
            let left = Expression::BinaryOperation(masked.into());
            matching(Operator::NEQ, left, Expression::Number(0))
        }
        Statement::MarkOr(bits) => {
            let operands = vec![meta(MetaKey::Mark), Expression::Number(*bits)];
            set_mark(BinaryOperation::OR(operands))
        }
        Statement::MarkXor(bits) => {
            set_mark(BinaryOperation::XOR(meta(MetaKey::Mark), Expression::Number(*bits)))
        }
        Statement::Lookup { key, set } => {
            matching(Operator::EQ, selectors(family, key), reference(set.as_str()))
        }
        Statement::VerdictMap { key, map } => Stmt::VerdictMap(VerdictMap {
            key: selectors(family, key),
            data: reference(map.as_str()),
        }),
        Statement::DnatSlot { protocol, key, choice, slots, map } => {
            let parts_of = |key| selectors_of(family, key, protocol.as_lower());
            let mut parts = parts_of(key);
            parts.push(match choice {
                SlotChoice::Random => numgen(NgMode::Random, *slots),
                SlotChoice::InTurn => numgen(NgMode::Inc, *slots),
                SlotChoice::Hash { of, seed } => jhash(concat(parts_of(of)), *slots, *seed),
            });
            dnat(family, concat(parts), map)
        }
        Statement::DnatMap { key, map } => dnat(family, selectors(family, key), map),
        Statement::DnatToItself => Stmt::DNAT(Some(NAT {
            addr: Some(address(family, Side::Destination)),
            family: None,
            port: None,
            flags: None,
        })),
        Statement::Masquerade => Stmt::Masquerade(Some(NAT {
            addr: None,
            family: None,
            port: None,
            flags: Some(HashSet::from([NATFlag::FullyRandom])),
        })),
        Statement::Reject => {
            let kind = match family {
                Family::Ip => RejectType::ICMP,
                Family::Ip6 => RejectType::ICMPv6,
            };
            Stmt::Reject(Some(Reject::new(Some(kind), Some(RejectCode::PortUnreach))))
        }
        Statement::UpdateMap { protocol, key, value, map } => {
            let parts = |key| concat(selectors_of(family, key, protocol.as_lower()));
            let map = format!("@{map}");
            let update = MapUpdate { op: SetOp::Update, elem: parts(key), data: parts(value), map };
            return AnyStatement::Map { map: update };
        }
        Statement::Verdict(verdict) => self::verdict(verdict),
    };
    AnyStatement::Known(Box::new(known))
}

/// A translation of the destination to what a map has for the key.
fn dnat<'a>(family: Family, key: Expression<'a>, map: &SetName) -> Stmt<'a> {
    let map = Map { key, data: reference(map.as_str()) };
    Stmt::DNAT(Some(NAT {
        addr: Some(Expression::Named(NamedExpression::Map(map.into()))),
        family: Some(match family {
            Family::Ip => NATFamily::IP,
            Family::Ip6 => NATFamily::IP6,
        }),
        port: None,
        flags: None,
    }))
}

/// A verdict, as a statement or as the data of a verdict map.
pub(super) fn verdict(verdict: &Verdict) -> Stmt<'_> {
    match verdict {
        Verdict::Accept => Stmt::Accept(None),
        Verdict::Drop => Stmt::Drop(None),
        Verdict::Return => Stmt::Return(None),
        Verdict::Jump(chain) => Stmt::Jump(JumpTarget { target: chain.as_str().into() }),
        Verdict::Goto(chain) => Stmt::Goto(JumpTarget { target: chain.as_str().into() }),
    }
}

/// An expression of a field's type, for `typeof`.
pub(super) fn typeof_field(field: Field) -> Expression<'static> {
    match field {
        Field::Ipv4Addr => payload("ip", "daddr"),
        Field::Ipv6Addr => payload("ip6", "daddr"),
        Field::InetProto => meta(MetaKey::L4proto),
        Field::InetService => payload("th", "dport"),
        Field::Port(protocol) => payload(protocol.as_lower(), "dport"),
        Field::Slot => numgen(NgMode::Random, 65_536),
    }
}

fn ct(key: &'static str, value: &'static str) -> Stmt<'static> {
    let ct = CT { key: key.into(), family: None, dir: None };
    let operator = if key == "direction" { Operator::EQ } else { Operator::IN };
    matching(operator, Expression::Named(NamedExpression::CT(ct)), string(value))
}

fn matching<'a>(op: Operator, left: Expression<'a>, right: Expression<'a>) -> Stmt<'a> {
    Stmt::Match(Match { left, right, op })
}

fn equality(negated: bool) -> Operator {
    if negated { Operator::NEQ } else { Operator::EQ }
}

fn network(net: &IpNet) -> Expression<'static> {
    let net = net.trunc();
    let addr = Expression::String(net.addr().to_string().into());
    if net.prefix_len() == net.max_prefix_len() {
        return addr;
    }
    let prefix = Prefix { addr: addr.into(), len: net.prefix_len().into() };
    Expression::Named(NamedExpression::Prefix(prefix))
}

fn address(family: Family, side: Side) -> Expression<'static> {
    payload(
        family.as_str(),
        match side {
            Side::Source => "saddr",
            Side::Destination => "daddr",
        },
    )
}

fn payload(protocol: &'static str, field: &'static str) -> Expression<'static> {
    let field = PayloadField { protocol: protocol.into(), field: field.into() };
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(field)))
}

fn meta(key: MetaKey) -> Expression<'static> {
    Expression::Named(NamedExpression::Meta(Meta { key }))
}

fn numgen(mode: NgMode, modulus: u32) -> Expression<'static> {
    let numgen = Numgen { mode, ng_mod: modulus, offset: Some(0) };
    Expression::Named(NamedExpression::Numgen(numgen))
}

fn jhash(of: Expression<'_>, modulus: u32, seed: u32) -> Expression<'_> {
    // nft prints the offset of numgen even if the offset is zero, but not that of jhash.
    let hash = JHash { hash_mod: modulus, offset: None, expr: Box::new(of), seed: Some(seed) };
    Expression::Named(NamedExpression::JHash(hash))
}

fn set_mark(value: BinaryOperation<'_>) -> Stmt<'_> {
    let value = Expression::BinaryOperation(value.into());
    Stmt::Mangle(Mangle { key: meta(MetaKey::Mark), value })
}

fn string(text: &'static str) -> Expression<'static> {
    Expression::String(text.into())
}

fn reference(set: &str) -> Expression<'static> {
    Expression::String(format!("@{set}").into())
}

/// The parts of the packet.
fn selectors(family: Family, key: &[Selector]) -> Expression<'static> {
    concat(selectors_of(family, key, "th"))
}

/// The parts of a packet whose transport header has this name.
fn selectors_of(
    family: Family,
    key: &[Selector],
    transport: &'static str,
) -> Vec<Expression<'static>> {
    let part = |part: &Selector| match part {
        Selector::SourceAddress => address(family, Side::Source),
        Selector::DestinationAddress => address(family, Side::Destination),
        Selector::Protocol => meta(MetaKey::L4proto),
        Selector::SourcePort => payload(transport, "sport"),
        Selector::DestinationPort => payload(transport, "dport"),
        Selector::OriginalSource => ct_original(format!("{family} saddr")),
        Selector::OriginalDestination => ct_original(format!("{family} daddr")),
        Selector::OriginalDestinationPort => ct_original("proto-dst".to_owned()),
    };
    key.iter().map(part).collect()
}

/// One expression, or a concatenation of several.
fn concat(mut parts: Vec<Expression<'_>>) -> Expression<'_> {
    match parts.len() {
        1 => parts.remove(0),
        _ => Expression::Named(NamedExpression::Concat(parts)),
    }
}

fn ct_original(key: String) -> Expression<'static> {
    let ct = CT { key: key.into(), family: None, dir: Some(CTDir::Original) };
    Expression::Named(NamedExpression::CT(ct))
}
