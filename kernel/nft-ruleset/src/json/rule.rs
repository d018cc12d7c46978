//! Rules in libnftables' JSON, with the types of the `nftables` crate.

use std::{borrow::Cow, collections::HashSet};

use ipnet::IpNet;
use nftables::{
    expr::{
        BinaryOperation, CT, Expression, Fib, FibFlag, FibResult, Map, Meta, MetaKey,
        NamedExpression, NgMode, Numgen, Payload, PayloadField, Prefix, SetItem,
    },
    schema,
    stmt::{
        JumpTarget, Mangle, Match, NAT, NATFamily, NATFlag, Operator, Reject, RejectType, Set,
        SetOp, Statement as Stmt, VerdictMap,
    },
    types::{NfFamily, RejectCode},
};
use switchyard_core::model::Protocol;

use crate::{
    ruleset::{Family, Field, InterfaceMatch, Rule, Selector, Side, Statement, Table, Verdict},
    text,
};

/// The family as the `nftables` crate has it.
pub(super) fn nf_family(family: Family) -> NfFamily {
    match family {
        Family::Ip => NfFamily::IP,
        Family::Ip6 => NfFamily::IP6,
    }
}

/// A rule in a chain.
pub(super) fn object<'a>(table: &'a Table, chain: &'a str, rule: &'a Rule) -> schema::Rule<'a> {
    schema::Rule {
        family: nf_family(table.family),
        table: table.name.as_str().into(),
        chain: chain.into(),
        expr: rule.statements.iter().map(|s| statement(table.family, s)).collect(),
        comment: rule.comment.as_ref().map(|comment| text::comment_text(comment)),
        ..schema::Rule::default()
    }
}

/// A statement, nearly as `nft -j list` prints it.
pub(super) fn statement(family: Family, statement: &Statement) -> Stmt<'_> {
    match statement {
        Statement::CtStateNew => ct("state", "new"),
        Statement::CtStatusDnat => ct("status", "dnat"),
        Statement::Address { side, negated, net } => {
            matching(equality(*negated), address(family, *side), network(net))
        }
        Statement::InputInterface { negated, name } => {
            let name: Cow<'_, str> = match name {
                InterfaceMatch::Exact(name) => (&**name).into(),
                InterfaceMatch::Prefix(name) => format!("{name}*").into(),
            };
            matching(equality(*negated), meta(MetaKey::Iifname), Expression::String(name))
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
        Statement::RandomVerdict(verdicts) => {
            let items = (0u32..).zip(verdicts);
            let items = items.map(|(slot, verdict)| {
                SetItem::MappingStatement(Expression::Number(slot), self::verdict(verdict))
            });
            Stmt::VerdictMap(VerdictMap {
                key: numgen(verdicts.len() as u32),
                data: Expression::Named(NamedExpression::Set(items.collect())),
            })
        }
        Statement::DnatRandom { protocol, key, slots, map } => {
            let key = key_and_slot(family, *protocol, key, *slots);
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
        Statement::Dnat { address, port } => Stmt::DNAT(Some(NAT {
            addr: Some(Expression::String(address.to_string().into())),
            family: None,
            port: Some(Expression::Number((*port).into())),
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
        Statement::UpdateSet { side, set } => Stmt::Set(Set {
            op: SetOp::Update,
            elem: address(family, *side),
            set: format!("@{set}").into(),
        }),
        Statement::Verdict(verdict) => self::verdict(verdict),
    }
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
        Field::Slot => numgen(65_536),
    }
}

fn ct(key: &'static str, value: &'static str) -> Stmt<'static> {
    let ct = CT { key: key.into(), family: None, dir: None };
    matching(Operator::IN, Expression::Named(NamedExpression::CT(ct)), string(value))
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

fn numgen(modulus: u32) -> Expression<'static> {
    let numgen = Numgen { mode: NgMode::Random, ng_mod: modulus, offset: Some(0) };
    Expression::Named(NamedExpression::Numgen(numgen))
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
    let mut parts: Vec<_> = key.iter().map(|part| selector(family, *part, "th")).collect();
    match parts.len() {
        1 => parts.remove(0),
        _ => Expression::Named(NamedExpression::Concat(parts)),
    }
}

/// The parts of a packet of one protocol, followed by a random slot.
fn key_and_slot(
    family: Family,
    protocol: Protocol,
    key: &[Selector],
    slots: u32,
) -> Expression<'static> {
    let parts = key.iter().map(|part| selector(family, *part, protocol.as_lower()));
    Expression::Named(NamedExpression::Concat(parts.chain([numgen(slots)]).collect()))
}

fn selector(family: Family, part: Selector, protocol: &'static str) -> Expression<'static> {
    match part {
        Selector::SourceAddress => address(family, Side::Source),
        Selector::DestinationAddress => address(family, Side::Destination),
        Selector::Protocol => meta(MetaKey::L4proto),
        Selector::DestinationPort => payload(protocol, "dport"),
    }
}
