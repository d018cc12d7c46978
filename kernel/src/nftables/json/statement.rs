//! Statements, read from JSON.
//!
//! JSON that looks like a [`Statement`] is taken apart loosely, put together again, and compared,
//! so that no difference goes unnoticed.

use ipnet::IpNet;
use serde_json::Value;
use switchyard_model::Protocol;

use super::rule;
use crate::nftables::ruleset::{
    Family, InterfaceMatch, Selector, SetName, Side, SlotChoice, Statement, Verdict,
};

/// Reads a statement; returns `None` if [`Statement`] cannot express it exactly.
pub(super) fn parse(family: Family, read: &Value) -> Option<Statement> {
    let statement = guess(read)?;
    let written = rule::statement(family, &statement);
    (normal(written) == normal(read.clone())).then_some(statement)
}

/// Reads a verdict, which is a statement or the data of an element.
pub(super) fn verdict(read: &Value) -> Option<Verdict> {
    let (name, body) = single(read)?;
    let chain = || Some(body.get("target")?.as_str()?.into());
    Some(match name {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "return" => Verdict::Return,
        "jump" => Verdict::Jump(chain()?),
        "goto" => Verdict::Goto(chain()?),
        _ => return None,
    })
}

/// Brings JSON into a form that does not depend on the version of nft: a list of one flag becomes
/// the flag, and the elements of a set are sorted.
fn normal(value: Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .into_iter()
            .map(|(name, value)| {
                let value = match (name.as_str(), normal(value)) {
                    ("flags", Value::Array(mut flags)) if flags.len() == 1 => flags.remove(0),
                    ("set", Value::Array(mut items)) => {
                        items.sort_by_key(Value::to_string);
                        Value::Array(items)
                    }
                    (_, value) => value,
                };
                (name, value)
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(normal).collect(),
        other => other,
    }
}

fn guess(read: &Value) -> Option<Statement> {
    let (name, body) = single(read)?;
    match name {
        "match" => guess_match(body),
        "mangle" => {
            let (operator, operands) = single(body.get("value")?)?;
            let bits = number(operands.get(1)?)?;
            match operator {
                "|" => Some(Statement::MarkOr(bits)),
                "^" => Some(Statement::MarkXor(bits)),
                _ => None,
            }
        }
        "vmap" => {
            let map = reference(body.get("data")?)?;
            Some(Statement::VerdictMap { key: selectors(body.get("key")?)?, map })
        }
        "dnat" => match body.pointer("/addr/map") {
            Some(map) => guess_dnat(map),
            None => Some(Statement::DnatToItself),
        },
        "masquerade" => Some(Statement::Masquerade),
        "reject" => Some(Statement::Reject),
        "map" => {
            let data = body.get("data")?;
            Some(Statement::UpdateMap {
                protocol: parts(data).iter().find_map(port_protocol)?,
                key: selectors(body.get("elem")?)?,
                value: selectors(data)?,
                map: reference(body.get("map")?)?,
            })
        }
        _ => verdict(read).map(Statement::Verdict),
    }
}

/// Reads a translation to what a map has: for a key that ends with a slot, or for parts of the
/// packet alone.
fn guess_dnat(read: &Value) -> Option<Statement> {
    let key = read.get("key")?;
    let map = reference(read.get("data")?)?;
    let (slot, before) = parts(key).split_last()?;
    let (name, chosen) = single(slot)?;
    let (choice, hashed) = match (name, chosen.get("mode").and_then(Value::as_str)) {
        ("numgen", Some("random")) => (SlotChoice::Random, &[][..]),
        ("numgen", Some("inc")) => (SlotChoice::InTurn, &[][..]),
        ("jhash", _) => {
            let of = chosen.get("expr")?;
            let seed = number(chosen.get("seed")?)?;
            (SlotChoice::Hash { of: selectors(of)?, seed }, parts(of))
        }
        _ => return Some(Statement::DnatMap { key: selectors(key)?, map }),
    };
    Some(Statement::DnatSlot {
        protocol: before.iter().chain(hashed).find_map(port_protocol)?,
        key: before.iter().map(selector).collect::<Option<_>>()?,
        choice,
        slots: number(chosen.get("mod")?)?,
        map,
    })
}

fn guess_match(body: &Value) -> Option<Statement> {
    let negated = body.get("op")?.as_str()? == "!=";
    let right = body.get("right")?;
    let (name, left) = single(body.get("left")?)?;
    if let Some(set) = reference(right) {
        return Some(Statement::Lookup { key: selectors(body.get("left")?)?, set });
    }
    match (name, left.get("key").and_then(Value::as_str)) {
        ("ct", Some("state")) => Some(Statement::CtStateNew),
        ("ct", Some("status")) => Some(Statement::CtStatusDnat),
        ("ct", Some("direction")) => Some(Statement::CtReply),
        ("payload", _) => {
            let side = side(body.get("left")?)?;
            Some(Statement::Address { side, negated, net: network(right)? })
        }
        ("meta", Some("iifname")) => {
            let name = right.as_str()?;
            let name = match name.strip_suffix('*') {
                Some(prefix) => InterfaceMatch::Prefix(prefix.into()),
                None => InterfaceMatch::Exact(name.into()),
            };
            Some(Statement::InputInterface { negated, name })
        }
        ("meta", Some("iifkind")) => {
            let name = InterfaceMatch::Kind(right.as_str()?.into());
            Some(Statement::InputInterface { negated, name })
        }
        ("meta", Some("l4proto")) => protocol(right).map(Statement::Protocol),
        ("fib", _) => {
            let flag = left.pointer("/flags/0").unwrap_or(left.get("flags")?);
            Side::ALL.into_iter().find(|side| flag == side.as_str()).map(Statement::FibLocal)
        }
        ("socket", Some("transparent")) => Some(Statement::SocketTransparent),
        ("socket", Some("wildcard")) => Some(Statement::SocketWildcard),
        ("&", _) => Some(Statement::MarkSet(number(left.get(1)?)?)),
        _ => None,
    }
}

/// The name and the body of an object with one entry.
fn single(value: &Value) -> Option<(&str, &Value)> {
    let mut entries = value.as_object()?.iter();
    let (name, body) = entries.next()?;
    entries.next().is_none().then_some((name.as_str(), body))
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

fn reference(value: &Value) -> Option<SetName> {
    value.as_str()?.strip_prefix('@').map(SetName::from)
}

fn side(payload: &Value) -> Option<Side> {
    let field = payload.pointer("/payload/field")?;
    Side::ALL.into_iter().find(|side| field == side.as_str())
}

fn selectors(key: &Value) -> Option<Vec<Selector>> {
    parts(key).iter().map(selector).collect()
}

/// The parts of a concatenation, or one expression alone.
pub(super) fn parts(value: &Value) -> &[Value] {
    match value.get("concat").and_then(Value::as_array) {
        Some(parts) => parts,
        None => std::slice::from_ref(value),
    }
}

fn selector(value: &Value) -> Option<Selector> {
    match value.pointer("/ct/key").and_then(Value::as_str) {
        Some("ip saddr" | "ip6 saddr") => return Some(Selector::OriginalSource),
        Some("ip daddr" | "ip6 daddr") => return Some(Selector::OriginalDestination),
        Some("proto-dst") => return Some(Selector::OriginalDestinationPort),
        Some(_) => return None,
        None => {}
    }
    match value.pointer("/payload/field").and_then(Value::as_str) {
        Some("sport") => Some(Selector::SourcePort),
        Some("dport") => Some(Selector::DestinationPort),
        Some("saddr") => Some(Selector::SourceAddress),
        Some("daddr") => Some(Selector::DestinationAddress),
        Some(_) => None,
        None => (value.pointer("/meta/key")? == "l4proto").then_some(Selector::Protocol),
    }
}

/// The protocol of a port, such as `tcp dport`.
fn port_protocol(value: &Value) -> Option<Protocol> {
    protocol(value.pointer("/payload/protocol")?)
}

pub(super) fn protocol(name: &Value) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| name == protocol.as_lower())
}

/// A network, or an address alone.
pub(super) fn network(value: &Value) -> Option<IpNet> {
    match value.get("prefix") {
        Some(prefix) => {
            let address = prefix.get("addr")?.as_str()?.parse().ok()?;
            IpNet::new(address, prefix.get("len")?.as_u64()?.try_into().ok()?).ok()
        }
        None => Some(IpNet::from(value.as_str()?.parse::<std::net::IpAddr>().ok()?)),
    }
}
