//! Tables, read from the output of `nft -j list table`. Unknown parts of it are ignored.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::Value;

use super::statement;
use crate::nftables::{
    ruleset::{
        BaseChain, Bytes, ChainBase, ChainDump, ChainName, Element, ElementData, ElementDump,
        Family, Field, Key, Rule, RuleDump, SetData, SetDef, SetDump, SetName, Table, TableDump,
    },
    transport::{Elements, TransportError},
};

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

/// An object in a listing: one of these, or an object of another kind.
#[derive(Deserialize)]
struct Object {
    table: Option<ListedTable>,
    chain: Option<Chain>,
    rule: Option<ListedRule>,
    set: Option<Set>,
    map: Option<Set>,
}

#[derive(Deserialize)]
struct ListedTable {
    #[serde(default)]
    flags: OneOrMore,
}

#[derive(Deserialize)]
struct Chain {
    name: String,
    handle: u64,
    #[serde(rename = "type")]
    kind: Option<String>,
    hook: Option<String>,
    prio: Option<i32>,
    policy: Option<String>,
}

#[derive(Deserialize)]
struct ListedRule {
    chain: String,
    handle: u64,
    #[serde(default)]
    expr: Vec<Value>,
    comment: Option<String>,
}

#[derive(Deserialize)]
struct Set {
    name: String,
    handle: u64,
    #[serde(rename = "type")]
    key: Value,
    #[serde(rename = "map")]
    data: Option<Value>,
    #[serde(default)]
    flags: OneOrMore,
    timeout: Option<u64>,
    size: Option<u32>,
    comment: Option<String>,
    stmt: Option<Value>,
    #[serde(default)]
    elem: Vec<Value>,
}

/// Flags: a list, or in some versions of nft one word.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Default for OneOrMore {
    fn default() -> Self {
        Self::More(Vec::new())
    }
}

impl OneOrMore {
    fn contains(&self, word: &str) -> bool {
        self.as_slice().iter().any(|one| one == word)
    }

    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::More(more) => more,
        }
    }
}

/// Reads a table from its listing.
pub(super) fn table(
    table: &Table,
    elements: Elements,
    listing: &[u8],
) -> Result<TableDump, TransportError> {
    let malformed = |error: serde_json::Error| TransportError::Malformed(error.to_string());
    let listing: Listing = serde_json::from_slice(listing).map_err(malformed)?;
    let mut chains: BTreeMap<ChainName, ChainDump> = BTreeMap::new();
    let mut sets = BTreeMap::new();
    let mut dormant = false;
    for object in listing.nftables {
        dormant |= object.table.is_some_and(|table| table.flags.contains("dormant"));
        if let Some(chain) = object.chain {
            let name = ChainName::from(chain.name.as_str());
            let base = base(&name, &chain);
            chains.insert(name, ChainDump { handle: chain.handle, base, rules: Vec::new() });
        }
        if let Some(rule) = object.rule {
            // Chains come before their rules.
            if let Some(chain) = chains.get_mut(rule.chain.as_str()) {
                chain.rules.push(rule_dump(table.family, &rule));
            }
        }
        if let Some(set) = object.set.or(object.map) {
            let name = SetName::from(set.name.as_str());
            let dump = set_dump(&name, set, elements == Elements::Include);
            sets.insert(name, dump);
        }
    }
    Ok(TableDump { table: table.clone(), generation: None, dormant, chains, sets })
}

fn base(name: &ChainName, chain: &Chain) -> ChainBase {
    let Some(hook) = &chain.hook else { return ChainBase::Regular };
    let base = || {
        Some(BaseChain {
            name: name.clone(),
            kind: chain.kind.as_deref()?.parse().ok()?,
            hook: hook.parse().ok()?,
            priority: chain.prio?,
        })
    };
    match base().filter(|_| chain.policy.as_deref() == Some("accept")) {
        Some(base) => ChainBase::Base(base),
        None => ChainBase::Foreign("its type, hook or policy is another".into()),
    }
}

/// A rule, without a fingerprint if [`Rule`] cannot express it. JSON does not show the fingerprint
/// that was written, so it is computed.
fn rule_dump(family: Family, read: &ListedRule) -> RuleDump {
    let statements: Option<Vec<_>> =
        read.expr.iter().map(|statement| statement::parse(family, statement)).collect();
    let rule = statements.map(Rule::new).map(|rule| match &read.comment {
        Some(comment) => rule.with_comment(comment.clone()),
        None => rule,
    });
    RuleDump {
        handle: read.handle,
        fingerprint: rule.as_ref().map(|rule| rule.fingerprint(family)),
        leads_to: rule.and_then(|rule| rule.leads_to().cloned()),
    }
}

fn set_dump(name: &SetName, set: Set, with_elements: bool) -> SetDump {
    let handle = set.handle;
    let definition = match definition(name, &set) {
        Ok(definition) => definition,
        Err(why) => return SetDump { handle, definition: Err(why.to_owned()), elements: None },
    };
    if !with_elements {
        return SetDump { handle, definition: Ok(definition), elements: None };
    }
    let read = |element: &Value| {
        element_dump(&definition, element)
            .ok_or_else(|| format!("an element has an unknown form: {element}"))
    };
    match set.elem.iter().map(read).collect::<Result<Vec<_>, _>>() {
        Ok(mut elements) => {
            elements.sort_unstable_by_key(|found| found.element.key);
            SetDump { handle, definition: Ok(definition), elements: Some(elements) }
        }
        Err(why) => SetDump { handle, definition: Err(why), elements: None },
    }
}

fn definition(name: &SetName, set: &Set) -> Result<SetDef, &'static str> {
    let fields = |kind: &Value| fields(kind).ok_or("its fields have other types");
    let data = match &set.data {
        None => SetData::None,
        Some(data) if data == "verdict" => SetData::Verdict,
        Some(data) => SetData::Value(fields(data)?),
    };
    let timeout = set.timeout.map(Duration::from_secs);
    let interval = set.flags.contains("interval");
    let known: &[&str] = match (timeout, interval) {
        (Some(_), _) => &["timeout", "dynamic"],
        (None, true) => &["interval"],
        (None, false) => &[],
    };
    let flags = set.flags.as_slice();
    if flags.len() != known.len() || !known.iter().all(|flag| set.flags.contains(flag)) {
        return Err("its flags are others");
    }
    if set.stmt.is_some() {
        return Err("its elements have statements");
    }
    let comment = set.comment.clone().map(Into::into);
    let (key, size) = (fields(&set.key)?, set.size);
    let definition = SetDef { name: name.clone(), key, data, timeout, size, interval, comment };
    if interval && !definition.has_addresses() {
        return Err("its elements are intervals of something else than addresses");
    }
    Ok(definition)
}

/// The fields of a type, which is a name, a list of names, or expressions.
fn fields(kind: &Value) -> Option<Vec<Field>> {
    if let Some(expression) = kind.get("typeof") {
        return statement::parts(expression).iter().map(expression_field).collect();
    }
    match kind {
        Value::Array(names) => names.iter().map(named_field).collect(),
        name => Some(vec![named_field(name)?]),
    }
}

fn named_field(name: &Value) -> Option<Field> {
    Field::TYPES.into_iter().find(|field| name == field.type_name())
}

fn expression_field(expression: &Value) -> Option<Field> {
    let payload = |part| expression.pointer(part).and_then(Value::as_str);
    match (payload("/payload/protocol"), payload("/payload/field")) {
        (Some("ip"), Some("saddr" | "daddr")) => Some(Field::Ipv4Addr),
        (Some("ip6"), Some("saddr" | "daddr")) => Some(Field::Ipv6Addr),
        (Some("th" | "tcp" | "udp" | "sctp"), Some("sport" | "dport")) => Some(Field::InetService),
        (None, None) if expression.get("numgen").is_some() => Some(Field::Slot),
        (None, None) => (expression.pointer("/meta/key")? == "l4proto").then_some(Field::InetProto),
        _ => None,
    }
}

fn element_dump(set: &SetDef, read: &Value) -> Option<ElementDump> {
    let (key, data) = match (&set.data, read) {
        (SetData::None, key) => (key, None),
        (_, Value::Array(pair)) => (pair.first()?, pair.get(1)),
        _ => return None,
    };
    // With a comment or a timeout, the key is an object.
    let detail = |name| key.pointer("/elem").and_then(|element| element.get(name));
    let data = match (&set.data, data) {
        (SetData::None, None) => ElementData::None,
        (SetData::Verdict, Some(data)) => ElementData::Verdict(statement::verdict(data)?),
        (SetData::Value(fields), Some(data)) => ElementData::Value(concat(fields, data)?),
        _ => return None,
    };
    let value = detail("val").unwrap_or(key);
    let element = Element {
        key: if set.interval { interval(value)? } else { concat(&set.key, value)? },
        data,
        comment: detail("comment").and_then(Value::as_str).map(Into::into),
    };
    let expires = detail("expires").and_then(Value::as_u64).map(Duration::from_secs);
    Some(ElementDump { element, expires })
}

/// The key of an interval, which is printed as an address, a network or a range.
fn interval(read: &Value) -> Option<Key> {
    if let Some(range) = read.get("range") {
        let address = |end| range.get(end)?.as_str()?.parse().ok();
        return Some(Key::interval(address(0)?, address(1)?));
    }
    let net = statement::network(read)?;
    Some(Key::interval(net.network(), net.broadcast()))
}

fn concat<const N: usize>(fields: &[Field], read: &Value) -> Option<Bytes<N>> {
    let parts = statement::parts(read);
    if parts.len() != fields.len() {
        return None;
    }
    fields.iter().zip(parts).try_fold(Bytes::new(), |bytes, (field, part)| {
        Some(match field {
            Field::Ipv4Addr | Field::Ipv6Addr => bytes.address(part.as_str()?.parse().ok()?),
            Field::InetService | Field::Port(_) => bytes.port(part.as_u64()?.try_into().ok()?),
            Field::Slot => bytes.slot(part.as_u64()?.try_into().ok()?),
            Field::InetProto => bytes.protocol(statement::protocol(part)?),
        })
    })
}
