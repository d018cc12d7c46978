//! Transactions as documents for `nft -j -f -`.
//!
//! Chains and rules have the types of the `nftables` crate. Other objects have types of their own
//! here: tables for their comment; sets and maps for verdict maps, `typeof` and concatenated data; and
//! elements for verdicts as data, and so that 60,000 elements need no tree of boxes.

use std::{borrow::Cow, fmt, net::IpAddr, time::Duration};

use nftables::{
    schema::Chain,
    types::{NfChainPolicy, NfChainType, NfHook},
};
use serde::{
    Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq},
};
use switchyard_model::Protocol;

use super::rule::{self, RuleObject};
use crate::{
    ruleset::{
        self, BaseChain, ChainKind, ChainName, Element, ElementData, ElementDump, Field, Hook, Key,
        Operation, OperationKind, SetData, SetDef, Transaction, interval,
    },
    text,
};

/// A transaction as commands of libnftables' JSON schema, in order, for a serializer. The document
/// prints as [`super::JsonTransport`] sends it, unless nft would not load it.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a>(pub &'a Transaction);

impl Document<'_> {
    /// Whether nft loads the document. nft (seen with 1.1.3) lists a [`crate::Draw::Hash`] of several parts
    /// in JSON, but does not load it from there.
    pub fn nft_loads(&self) -> bool {
        self.0.operations().iter().all(|operation| match &operation.kind {
            OperationKind::AddRule(_, rule) => rule.statements.iter().all(rule::nft_loads),
            _ => true,
        })
    }
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_map(Some(1))?;
        document.serialize_entry("nftables", &Commands(self.0))?;
        document.end()
    }
}

impl fmt::Display for Document<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

struct Commands<'a>(&'a Transaction);

impl Serialize for Commands<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.operations().iter().map(command))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Command<'a> {
    Add(Object<'a>),
    Delete(Object<'a>),
    Flush(Object<'a>),
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Object<'a> {
    Table(Table<'a>),
    Chain(Chain<'a>),
    Rule(RuleObject<'a>),
    Set(Set<'a>),
    Map(Set<'a>),
    Element(Elements<'a>),
}

#[derive(Serialize)]
struct Table<'a> {
    family: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<Cow<'a, str>>,
}

/// A set, or a map if it has data.
#[derive(Serialize)]
struct Set<'a> {
    family: &'static str,
    table: &'a str,
    name: &'a str,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    key: Option<Type<'a>>,
    #[serde(rename = "map", skip_serializing_if = "Option::is_none")]
    data: Option<Type<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    flags: &'static [&'static str],
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<Cow<'a, str>>,
}

enum Type<'a> {
    Verdict,
    Names(&'a [Field]),
    Expressions(&'a [Field]),
}

#[derive(Serialize)]
struct Elements<'a> {
    family: &'static str,
    table: &'a str,
    name: &'a str,
    elem: ElementList<'a>,
}

enum ElementList<'a> {
    Added(&'a SetDef, &'a [Element]),
    Restored(&'a SetDef, &'a [ElementDump]),
    Deleted(&'a SetDef, &'a [Key]),
}

fn command(operation: &Operation) -> Command<'_> {
    let table = &operation.table;
    match &operation.kind {
        OperationKind::AddTable { comment } => {
            let comment = comment.as_ref().map(|comment| text::comment_text(comment));
            Command::Add(table_object(table, comment))
        }
        OperationKind::DeleteTable => Command::Delete(table_object(table, None)),
        OperationKind::AddBaseChain(base) => Command::Add(Object::Chain(base_chain(table, base))),
        OperationKind::AddChain(name) => Command::Add(chain_object(table, name)),
        OperationKind::FlushChain(name) => Command::Flush(chain_object(table, name)),
        OperationKind::DeleteChain(name) => Command::Delete(chain_object(table, name)),
        OperationKind::AddSet(definition) => Command::Add(set_object(table, definition)),
        // The command deletes a map as well.
        OperationKind::DeleteSet(name) => {
            Command::Delete(Object::Set(Set::named(table, name.as_str())))
        }
        OperationKind::AddRule(chain, rule) => {
            Command::Add(Object::Rule(RuleObject::new(table, chain.as_str(), rule)))
        }
        OperationKind::AddElements(definition, elements) => Command::Add(Object::Element(
            Elements::new(table, definition, ElementList::Added(definition, elements)),
        )),
        OperationKind::RestoreElements(definition, elements) => Command::Add(Object::Element(
            Elements::new(table, definition, ElementList::Restored(definition, elements)),
        )),
        OperationKind::DeleteElements(definition, keys) => Command::Delete(Object::Element(
            Elements::new(table, definition, ElementList::Deleted(definition, keys)),
        )),
    }
}

fn table_object<'a>(table: &'a ruleset::Table, comment: Option<Cow<'a, str>>) -> Object<'a> {
    Object::Table(Table { family: table.family.as_str(), name: table.name.as_str(), comment })
}

fn chain_object<'a>(table: &'a ruleset::Table, name: &'a ChainName) -> Object<'a> {
    Object::Chain(Chain {
        family: rule::nf_family(table.family),
        table: table.name.as_str().into(),
        name: name.as_str().into(),
        ..Chain::default()
    })
}

fn base_chain<'a>(table: &'a ruleset::Table, base: &'a BaseChain) -> Chain<'a> {
    Chain {
        family: rule::nf_family(table.family),
        table: table.name.as_str().into(),
        name: base.name.as_str().into(),
        _type: Some(match base.kind {
            ChainKind::Filter => NfChainType::Filter,
            ChainKind::Nat => NfChainType::NAT,
        }),
        hook: Some(match base.hook {
            Hook::Prerouting => NfHook::Prerouting,
            Hook::Input => NfHook::Input,
            Hook::Forward => NfHook::Forward,
            Hook::Output => NfHook::Output,
            Hook::Postrouting => NfHook::Postrouting,
        }),
        prio: Some(base.priority),
        policy: Some(NfChainPolicy::Accept),
        ..Chain::default()
    }
}

fn set_object<'a>(table: &'a ruleset::Table, definition: &'a SetDef) -> Object<'a> {
    let fields = |fields| match definition.is_typeof() {
        true => Type::Expressions(fields),
        false => Type::Names(fields),
    };
    let set = Set {
        key: Some(fields(&definition.key)),
        data: match &definition.data {
            SetData::None => None,
            SetData::Verdict => Some(Type::Verdict),
            SetData::Value(value) => Some(fields(value)),
        },
        flags: match (definition.timeout, definition.interval) {
            (Some(_), _) => &["timeout", "dynamic"],
            (None, true) => &["interval"],
            (None, false) => &[],
        },
        timeout: definition.timeout.map(|timeout| timeout.as_secs()),
        size: definition.size,
        comment: definition.comment.as_ref().map(|comment| text::set_comment_text(comment)),
        ..Set::named(table, definition.name.as_str())
    };
    if definition.is_map() { Object::Map(set) } else { Object::Set(set) }
}

impl<'a> Set<'a> {
    fn named(table: &'a ruleset::Table, name: &'a str) -> Self {
        Self {
            family: table.family.as_str(),
            table: table.name.as_str(),
            name,
            key: None,
            data: None,
            flags: &[],
            timeout: None,
            size: None,
            comment: None,
        }
    }
}

impl<'a> Elements<'a> {
    fn new(table: &'a ruleset::Table, definition: &'a SetDef, elem: ElementList<'a>) -> Self {
        let name = definition.name.as_str();
        Self { family: table.family.as_str(), table: table.name.as_str(), name, elem }
    }
}

impl Serialize for Type<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Verdict => serializer.serialize_str("verdict"),
            Self::Names([one]) => serializer.serialize_str(one.type_name()),
            Self::Names(fields) => serializer.collect_seq(fields.iter().map(|f| f.type_name())),
            Self::Expressions(fields) => {
                let mut map = serializer.serialize_map(Some(1))?;
                match fields {
                    [one] => map.serialize_entry("typeof", &rule::typeof_field(*one))?,
                    many => {
                        let fields = many.iter().map(|field| rule::typeof_field(*field)).collect();
                        let concat = nftables::expr::NamedExpression::Concat(fields);
                        map.serialize_entry("typeof", &concat)?;
                    }
                }
                map.end()
            }
        }
    }
}

impl Serialize for ElementList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Added(set, elements) => {
                let elements = elements.iter();
                serializer.collect_seq(elements.map(|e| SetElement {
                    set,
                    element: e,
                    expires: None,
                }))
            }
            Self::Restored(set, elements) => {
                serializer.collect_seq(elements.iter().map(|restored| SetElement {
                    set,
                    element: &restored.element,
                    expires: restored.expires,
                }))
            }
            Self::Deleted(set, keys) => serializer
                .collect_seq(keys.iter().map(|key| KeyValue { set, bytes: key.as_slice() })),
        }
    }
}

/// An element: a key, or a pair of key and data. Comment and remaining time are parts of the key.
struct SetElement<'a> {
    set: &'a SetDef,
    element: &'a Element,
    expires: Option<Duration>,
}

impl Serialize for SetElement<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { set, element, expires } = self;
        let key = ElementKey {
            key: KeyValue { set, bytes: element.key.as_slice() },
            comment: element.comment.as_deref(),
            expires: *expires,
        };
        match (&element.data, &set.data) {
            (ElementData::Verdict(verdict), _) => {
                let mut pair = serializer.serialize_seq(Some(2))?;
                pair.serialize_element(&key)?;
                pair.serialize_element(&rule::verdict(verdict))?;
                pair.end()
            }
            (ElementData::Value(value), SetData::Value(fields)) => {
                let mut pair = serializer.serialize_seq(Some(2))?;
                pair.serialize_element(&key)?;
                pair.serialize_element(&Concat { fields, bytes: value.as_slice() })?;
                pair.end()
            }
            (ElementData::None | ElementData::Value(_), _) => key.serialize(serializer),
        }
    }
}

struct ElementKey<'a> {
    key: KeyValue<'a>,
    comment: Option<&'a str>,
    expires: Option<Duration>,
}

impl Serialize for ElementKey<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Detailed<'a> {
            val: &'a KeyValue<'a>,
            #[serde(skip_serializing_if = "Option::is_none")]
            comment: Option<Cow<'a, str>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            expires: Option<u64>,
        }
        if self.comment.is_none() && self.expires.is_none() {
            return self.key.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        let detailed = Detailed {
            val: &self.key,
            comment: self.comment.map(text::comment_text),
            expires: self.expires.map(|expires| expires.as_secs()),
        };
        map.serialize_entry("elem", &detailed)?;
        map.end()
    }
}

/// A key: fields or an interval.
struct KeyValue<'a> {
    set: &'a SetDef,
    bytes: &'a [u8],
}

impl Serialize for KeyValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some((before, first, last)) = interval::split(self.set, self.bytes) else {
            return Concat { fields: &self.set.key, bytes: self.bytes }.serialize(serializer);
        };
        if !before.is_empty() {
            let fields = &self.set.key[..self.set.key.len() - 1];
            let before = Concat { fields, bytes: before };
            let mut map = serializer.serialize_map(Some(1))?;
            map.serialize_entry("concat", &BeforeInterval { before, first, last })?;
            return map.end();
        }
        Interval { first, last }.serialize(serializer)
    }
}

/// The fields before an interval, and the interval.
struct BeforeInterval<'a> {
    before: Concat<'a>,
    first: IpAddr,
    last: IpAddr,
}

impl Serialize for BeforeInterval<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for value in self.before.values() {
            list.serialize_element(&value)?;
        }
        list.serialize_element(&Interval { first: self.first, last: self.last })?;
        list.end()
    }
}

/// An interval, as an address, a network or a range.
struct Interval {
    first: IpAddr,
    last: IpAddr,
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Prefix {
            addr: IpAddr,
            len: u8,
        }
        let Self { first, last } = *self;
        if first == last {
            return serializer.collect_str(&first);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        match interval::network(first, last) {
            Some(net) => {
                let prefix = Prefix { addr: net.addr(), len: net.prefix_len() };
                map.serialize_entry("prefix", &prefix)?;
            }
            None => map.serialize_entry("range", &[first, last])?,
        }
        map.end()
    }
}

/// The fields of a key or a value.
struct Concat<'a> {
    fields: &'a [Field],
    bytes: &'a [u8],
}

impl<'a> Concat<'a> {
    fn values(&self) -> impl Iterator<Item = FieldValue<'a>> {
        text::split_fields(self.fields, self.bytes)
            .map(|(field, bytes)| FieldValue { field, bytes })
    }
}

impl Serialize for Concat<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Values<'a>(&'a Concat<'a>);
        impl Serialize for Values<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.values())
            }
        }
        if let [field] = *self.fields {
            let bytes = &self.bytes[..self.bytes.len().min(field.width())];
            return FieldValue { field, bytes }.serialize(serializer);
        }
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("concat", &Values(self))?;
        map.end()
    }
}

struct FieldValue<'a> {
    field: Field,
    bytes: &'a [u8],
}

impl Serialize for FieldValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.field, self.bytes) {
            (Field::InetService | Field::Port(_), &[high, low]) => {
                serializer.serialize_u16(u16::from_be_bytes([high, low]))
            }
            (Field::Slot, &[a, b, c, d]) => {
                serializer.serialize_u32(u32::from_ne_bytes([a, b, c, d]))
            }
            (Field::InetProto, &[number])
                if Protocol::ALL.iter().all(|protocol| protocol.number() != number) =>
            {
                serializer.serialize_u8(number)
            }
            _ => serializer.collect_str(&text::field_text(self.field, self.bytes)),
        }
    }
}
