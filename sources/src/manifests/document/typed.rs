//! The second pass over a document: its objects, with the types of their kinds.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use switchyard_core::objects::{EndpointSlice, Kind, Object, ObjectKey};

use crate::manifests::syntax::{DecodeError, Document};

/// The objects to decode in a document, by position; `None` is skipped.
#[derive(Debug)]
pub(super) struct TypedDocument {
    /// Whether the objects are the `items` of the document; otherwise the document is the object.
    pub(super) is_list: bool,
    /// One for each object of the document.
    pub(super) slots: Vec<Option<Slot>>,
}

/// An object that should be decoded.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) kind: Kind,
    pub(super) key: ObjectKey,
}

impl TypedDocument {
    /// Decodes all objects that are not skipped, or none.
    pub(super) fn decode(&self, document: &Document<'_>) -> Result<Vec<Object>, DecodeError> {
        if self.is_list {
            return document.decode(ListSeed(&self.slots));
        }
        match self.slots.first() {
            Some(Some(slot)) => document.decode(ObjectSeed(slot.kind)).map(|object| vec![object]),
            _ => Ok(Vec::new()),
        }
    }
}

#[derive(Clone, Copy)]
struct ObjectSeed(Kind);

impl<'de> DeserializeSeed<'de> for ObjectSeed {
    type Value = Object;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object, D::Error> {
        match self.0 {
            Kind::Service => Deserialize::deserialize(deserializer).map(Object::Service),
            Kind::EndpointSlice => {
                let mut slice = EndpointSlice::deserialize(deserializer)?;
                // The default of the API server, `SetDefaults_EndpointPort`.
                for port in &mut slice.ports {
                    port.name.get_or_insert_default();
                }
                Ok(Object::EndpointSlice(slice))
            }
            Kind::Node => Deserialize::deserialize(deserializer).map(Object::Node),
            Kind::ServiceCidr => Deserialize::deserialize(deserializer).map(Object::ServiceCidr),
        }
    }
}

/// Decodes a list, of which only `items` counts.
#[derive(Clone, Copy)]
struct ListSeed<'s>(&'s [Option<Slot>]);

impl<'de> DeserializeSeed<'de> for ListSeed<'_> {
    type Value = Vec<Object>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_> {
    type Value = Vec<Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut objects = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "items" {
                objects = map.next_value_seed(ItemsSeed(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(objects)
    }
}

struct ItemsSeed<'s>(&'s [Option<Slot>]);

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_> {
    type Value = Vec<Object>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_> {
    type Value = Vec<Object>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut objects = Vec::with_capacity(self.0.len());
        for slot in self.0 {
            match slot {
                Some(slot) => objects.extend(seq.next_element_seed(ObjectSeed(slot.kind))?),
                None => {
                    seq.next_element::<IgnoredAny>()?;
                }
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(objects)
    }
}
