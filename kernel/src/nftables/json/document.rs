//! Transactions as documents for `nft -j -f -`. Elements are written one by one, so that 60,000 of
//! them need no tree.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use switchyard_model::Protocol;

use super::rule::{self, concat};
use crate::nftables::{
    ruleset::{
        BaseChain, ChainName, Element, ElementData, Field, Operation, OperationKind, SetData,
        SetDef, Table, Transaction, interval,
    },
    text,
};

/// A transaction as commands of libnftables' JSON schema, in order, for a serializer. The document
/// prints as [`super::JsonTransport`] sends it, unless nft would not load it.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a>(pub &'a Transaction);

impl Document<'_> {
    /// Whether nft loads the document. nft (seen with 1.1.3) lists a [`crate::nftables::SlotChoice::Hash`] of
    /// several parts in JSON, but does not load it from there.
    pub fn nft_loads(&self) -> bool {
        self.0.operations().iter().all(|operation| match &operation.kind {
            OperationKind::AddRule(_, rule) => rule.statements.iter().all(rule::nft_loads),
            _ => true,
        })
    }
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let commands = List(|| self.0.operations().iter().map(Command));
        BTreeMap::from([("nftables", commands)]).serialize(serializer)
    }
}

impl fmt::Display for Document<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// A list whose items are made as they are written.
struct List<F>(F);

impl<I: Iterator<Item: Serialize>, F: Fn() -> I> Serialize for List<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

struct Command<'a>(&'a Operation);

impl Serialize for Command<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Operation { table, kind } = self.0;
        let (verb, object) = match kind {
            OperationKind::AddElements(set, added) => {
                let list = List(|| added.iter().map(|added| element(set, added, None)));
                return elements("add", table, set, list).serialize(serializer);
            }
            OperationKind::RestoreElements(set, restored) => {
                let one = |(added, expires)| element(set, added, expires);
                let restored =
                    restored.iter().map(|restored| (&restored.element, restored.expires));
                let list = List(|| restored.clone().map(one));
                return elements("add", table, set, list).serialize(serializer);
            }
            OperationKind::DeleteElements(set, keys) => {
                let list = List(|| keys.iter().map(|deleted| key(set, deleted.as_slice())));
                return elements("delete", table, set, list).serialize(serializer);
            }
            OperationKind::AddRule(chain, rule) => {
                ("add", json!({ "rule": rule::rule(table, chain.as_str(), rule) }))
            }
            OperationKind::AddTable { comment } => {
                let mut object = named_table(table);
                if let Some(comment) = comment {
                    object["comment"] = text::comment_text(comment).into();
                }
                ("add", json!({ "table": object }))
            }
            // The program nft adds a table without flags, and takes those that it has.
            OperationKind::WakeTable => ("add", json!({ "table": named_table(table) })),
            OperationKind::DeleteTable => ("delete", json!({ "table": named_table(table) })),
            OperationKind::AddBaseChain(base) => {
                ("add", json!({ "chain": base_chain(table, base) }))
            }
            OperationKind::AddChain(name) => ("add", json!({ "chain": chain(table, name) })),
            OperationKind::FlushChain(name) => ("flush", json!({ "chain": chain(table, name) })),
            OperationKind::DeleteChain(name) => ("delete", json!({ "chain": chain(table, name) })),
            OperationKind::AddSet(definition) => {
                let kind = if definition.is_map() { "map" } else { "set" };
                ("add", json!({ kind: set(table, definition) }))
            }
            // The command deletes a map as well.
            OperationKind::DeleteSet(name) => {
                ("delete", json!({ "set": in_table(table, name.as_str()) }))
            }
        };
        json!({ verb: object }).serialize(serializer)
    }
}

fn named_table(table: &Table) -> Value {
    json!({ "family": table.family.as_str(), "name": table.name.as_str() })
}

fn in_table(table: &Table, name: &str) -> Value {
    json!({ "family": table.family.as_str(), "table": table.name.as_str(), "name": name })
}

fn elements<'a, T: Serialize>(
    verb: &'static str,
    table: &'a Table,
    set: &'a SetDef,
    elem: T,
) -> impl Serialize + use<'a, T> {
    #[derive(Serialize)]
    struct Elements<'a, T> {
        family: &'a str,
        table: &'a str,
        name: &'a str,
        elem: T,
    }
    let (family, table, name) = (table.family.as_str(), table.name.as_str(), set.name.as_str());
    BTreeMap::from([(verb, BTreeMap::from([("element", Elements { family, table, name, elem })]))])
}

fn chain(table: &Table, name: &ChainName) -> Value {
    in_table(table, name.as_str())
}

fn base_chain(table: &Table, base: &BaseChain) -> Value {
    let mut chain = chain(table, &base.name);
    chain["type"] = base.kind.to_string().into();
    chain["hook"] = base.hook.to_string().into();
    chain["prio"] = base.priority.into();
    chain["policy"] = "accept".into();
    chain
}

/// A set, or a map if it has data.
fn set(table: &Table, definition: &SetDef) -> Value {
    let fields = |fields: &[Field]| match (definition.is_typeof(), fields) {
        (true, fields) => {
            let expressions = fields.iter().map(|field| rule::typeof_field(*field));
            json!({ "typeof": concat(expressions.collect()) })
        }
        (false, [one]) => one.type_name().into(),
        (false, many) => many.iter().map(|field| field.type_name()).collect(),
    };
    let mut set = in_table(table, definition.name.as_str());
    set["type"] = fields(&definition.key);
    match &definition.data {
        SetData::None => {}
        SetData::Verdict => set["map"] = "verdict".into(),
        SetData::Value(value) => set["map"] = fields(value),
    }
    if let Some(timeout) = definition.timeout {
        set["flags"] = json!(["timeout", "dynamic"]);
        set["timeout"] = timeout.as_secs().into();
    } else if definition.interval {
        set["flags"] = json!(["interval"]);
    }
    if let Some(size) = definition.size {
        set["size"] = size.into();
    }
    if let Some(comment) = &definition.comment {
        set["comment"] = text::set_comment_text(comment).into();
    }
    set
}

/// An element: a key, or a pair of key and data. Comment and remaining time are parts of the key.
fn element(set: &SetDef, element: &Element, expires: Option<Duration>) -> Value {
    let mut key = key(set, element.key.as_slice());
    if element.comment.is_some() || expires.is_some() {
        let mut detailed = json!({ "val": key });
        if let Some(comment) = &element.comment {
            detailed["comment"] = text::comment_text(comment).into();
        }
        if let Some(expires) = expires {
            detailed["expires"] = expires.as_secs().into();
        }
        key = json!({ "elem": detailed });
    }
    match (&element.data, &set.data) {
        (ElementData::Verdict(verdict), _) => json!([key, rule::verdict(verdict)]),
        (ElementData::Value(value), SetData::Value(fields)) => {
            json!([key, concat(values(fields, value.as_slice()))])
        }
        (ElementData::None | ElementData::Value(_), _) => key,
    }
}

/// A key: fields, or in a set of intervals an address, a network or a range.
fn key(set: &SetDef, bytes: &[u8]) -> Value {
    let Some((first, last)) = interval::bounds(bytes).filter(|_| set.interval) else {
        return concat(values(&set.key, bytes));
    };
    match interval::network(first, last) {
        Some(net) => rule::network(&net),
        None => json!({ "range": [first, last] }),
    }
}

fn values(fields: &[Field], bytes: &[u8]) -> Vec<Value> {
    let value = |(field, bytes): (Field, &[u8])| match (field, bytes) {
        (Field::InetService | Field::Port(_), &[high, low]) => {
            u16::from_be_bytes([high, low]).into()
        }
        (Field::Slot, &[a, b, c, d]) => u32::from_ne_bytes([a, b, c, d]).into(),
        (Field::InetProto, &[number])
            if Protocol::ALL.iter().all(|protocol| protocol.number() != number) =>
        {
            number.into()
        }
        _ => text::field_text(field, bytes).into(),
    };
    text::split_fields(fields, bytes).map(value).collect()
}
