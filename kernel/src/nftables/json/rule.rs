//! Rules in libnftables' JSON schema, nearly as `nft -j list` prints them.

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::nftables::{
    ruleset::{
        Family, Field, InterfaceMatch, Rule, Selector, SetName, Side, SlotChoice, Statement, Table,
        Verdict,
    },
    text,
};

/// Returns `rule` in `chain`.
pub(super) fn rule(table: &Table, chain: &str, rule: &Rule) -> Value {
    let expr: Vec<Value> = rule.statements.iter().map(|s| statement(table.family, s)).collect();
    let (family, table) = (table.family.as_str(), table.name.as_str());
    let mut object = json!({ "family": family, "table": table, "chain": chain, "expr": expr });
    if let Some(comment) = &rule.comment {
        object["comment"] = text::comment_text(comment).into();
    }
    object
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
pub(super) fn statement(family: Family, statement: &Statement) -> Value {
    match statement {
        Statement::CtStateNew => matching("in", ct("state"), "new"),
        Statement::CtStatusDnat => matching("in", ct("status"), "dnat"),
        Statement::CtReply => matching("==", ct("direction"), "reply"),
        Statement::Address { side, negated, net } => {
            matching(equality(*negated), address(family, *side), network(net))
        }
        Statement::InputInterface { negated, name } => {
            let (key, name) = match name {
                InterfaceMatch::Exact(name) => ("iifname", name.to_string()),
                InterfaceMatch::Prefix(name) => ("iifname", format!("{name}*")),
                InterfaceMatch::Kind(kind) => ("iifkind", kind.to_string()),
            };
            matching(equality(*negated), meta(key), name)
        }
        Statement::FibLocal(side) => {
            let fib = json!({ "fib": { "result": "type", "flags": [side.as_str()] } });
            matching("==", fib, "local")
        }
        Statement::Protocol(protocol) => matching("==", meta("l4proto"), protocol.as_lower()),
        Statement::SocketTransparent => matching("==", socket("transparent"), 1),
        Statement::SocketWildcard => matching("==", socket("wildcard"), 1),
        Statement::MarkSet(bits) => matching("!=", json!({ "&": [meta("mark"), bits] }), 0),
        Statement::MarkOr(bits) => set_mark(json!({ "|": [meta("mark"), bits] })),
        Statement::MarkXor(bits) => set_mark(json!({ "^": [meta("mark"), bits] })),
        Statement::Lookup { key, set } => matching("==", selectors(family, key), reference(set)),
        Statement::VerdictMap { key, map } => {
            json!({ "vmap": { "key": selectors(family, key), "data": reference(map) } })
        }
        Statement::DnatSlot { protocol, key, choice, slots, map } => {
            let parts_of = |key| selectors_of(family, key, protocol.as_lower());
            let mut parts = parts_of(key);
            parts.push(match choice {
                SlotChoice::Random => numgen("random", *slots),
                SlotChoice::InTurn => numgen("inc", *slots),
                // nft prints an offset of zero with numgen, but not with jhash.
                SlotChoice::Hash { of, seed } => {
                    json!({ "jhash": { "mod": slots, "expr": concat(parts_of(of)), "seed": seed } })
                }
            });
            dnat(family, concat(parts), map)
        }
        Statement::DnatMap { key, map } => dnat(family, selectors(family, key), map),
        Statement::DnatToItself => {
            json!({ "dnat": { "addr": address(family, Side::Destination) } })
        }
        Statement::Masquerade => json!({ "masquerade": { "flags": ["fully-random"] } }),
        Statement::Reject => {
            let kind = match family {
                Family::Ip => "icmp",
                Family::Ip6 => "icmpv6",
            };
            json!({ "reject": { "type": kind, "expr": "port-unreachable" } })
        }
        Statement::UpdateMap { protocol, key, value, map } => {
            let parts = |key| concat(selectors_of(family, key, protocol.as_lower()));
            let (elem, data) = (parts(key), parts(value));
            json!({ "map": { "op": "update", "elem": elem, "data": data, "map": reference(map) } })
        }
        Statement::Verdict(verdict) => self::verdict(verdict),
    }
}

/// A translation of the destination to what a map has for the key.
fn dnat(family: Family, key: Value, map: &SetName) -> Value {
    let map = json!({ "map": { "key": key, "data": reference(map) } });
    json!({ "dnat": { "addr": map, "family": family.as_str() } })
}

/// A verdict, as a statement or as the data of a verdict map.
pub(super) fn verdict(verdict: &Verdict) -> Value {
    match verdict {
        Verdict::Accept => json!({ "accept": null }),
        Verdict::Drop => json!({ "drop": null }),
        Verdict::Return => json!({ "return": null }),
        Verdict::Jump(chain) => json!({ "jump": { "target": chain.as_str() } }),
        Verdict::Goto(chain) => json!({ "goto": { "target": chain.as_str() } }),
    }
}

/// An expression of a field's type, for `typeof`.
pub(super) fn typeof_field(field: Field) -> Value {
    match field {
        Field::Ipv4Addr => payload("ip", "daddr"),
        Field::Ipv6Addr => payload("ip6", "daddr"),
        Field::InetProto => meta("l4proto"),
        Field::InetService => payload("th", "dport"),
        Field::Port(protocol) => payload(protocol.as_lower(), "dport"),
        Field::Slot => numgen("random", 65_536),
    }
}

fn matching(operator: &str, left: Value, right: impl Into<Value>) -> Value {
    let right: Value = right.into();
    json!({ "match": { "op": operator, "left": left, "right": right } })
}

fn equality(negated: bool) -> &'static str {
    if negated { "!=" } else { "==" }
}

/// A network, or an address alone.
pub(super) fn network(net: &IpNet) -> Value {
    let net = net.trunc();
    match net.prefix_len() == net.max_prefix_len() {
        true => json!(net.addr()),
        false => json!({ "prefix": { "addr": net.addr(), "len": net.prefix_len() } }),
    }
}

fn address(family: Family, side: Side) -> Value {
    payload(family.as_str(), side.as_str())
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({ "payload": { "protocol": protocol, "field": field } })
}

fn meta(key: &str) -> Value {
    json!({ "meta": { "key": key } })
}

fn ct(key: &str) -> Value {
    json!({ "ct": { "key": key } })
}

fn socket(key: &str) -> Value {
    json!({ "socket": { "key": key } })
}

fn numgen(mode: &str, modulus: u32) -> Value {
    json!({ "numgen": { "mode": mode, "mod": modulus, "offset": 0 } })
}

fn set_mark(value: Value) -> Value {
    json!({ "mangle": { "key": meta("mark"), "value": value } })
}

fn reference(set: &SetName) -> String {
    format!("@{set}")
}

/// The parts of the packet.
fn selectors(family: Family, key: &[Selector]) -> Value {
    concat(selectors_of(family, key, "th"))
}

/// The parts of a packet whose transport header has this name.
fn selectors_of(family: Family, key: &[Selector], transport: &str) -> Vec<Value> {
    let original = |key: String| json!({ "ct": { "key": key, "dir": "original" } });
    let part = |part: &Selector| match part {
        Selector::SourceAddress => address(family, Side::Source),
        Selector::DestinationAddress => address(family, Side::Destination),
        Selector::Protocol => meta("l4proto"),
        Selector::SourcePort => payload(transport, "sport"),
        Selector::DestinationPort => payload(transport, "dport"),
        Selector::OriginalSource => original(format!("{family} saddr")),
        Selector::OriginalDestination => original(format!("{family} daddr")),
        Selector::OriginalDestinationPort => original("proto-dst".to_owned()),
    };
    key.iter().map(part).collect()
}

/// One value, or a concatenation of several.
pub(super) fn concat(mut parts: Vec<Value>) -> Value {
    match parts.len() {
        1 => parts.remove(0),
        _ => json!({ "concat": parts }),
    }
}
