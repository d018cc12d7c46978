//! The first pass over a document: the kinds and names of its objects.

use std::{borrow::Cow, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use switchyard_core::objects::Kind;

use super::{
    super::syntax::{DecodeError, Document},
    api_version,
};

/// Type and name of an object, and of the objects in it if it is a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Header {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<HeaderMetadata>,
    #[serde(deserialize_with = "items")]
    items: Option<Vec<Header>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct HeaderMetadata {
    name: Option<String>,
    namespace: Option<String>,
}

/// The type of a document, without the rest.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeOnly {
    api_version: Option<String>,
    kind: Option<String>,
}

/// The meaning of a kind and `apiVersion`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Meaning {
    /// A kind that is read.
    Known(Kind),
    /// A kind that is read, but not in this version of its API group.
    WrongVersion { kind: Kind, expected: &'static str },
    /// Another kind.
    Other,
    /// No kind.
    Unknown,
}

impl Header {
    /// Reads the header of a document. A document of another kind never fails, unless its syntax
    /// is wrong.
    pub(super) fn decode(document: &Document<'_>) -> Result<Self, DecodeError> {
        let error = match document.decode(PhantomData::<Self>) {
            Ok(header) => return Ok(header),
            Err(error) => error,
        };
        let TypeOnly { api_version, kind } = match document.decode(PhantomData) {
            Ok(types) => types,
            Err(_) => return Err(error),
        };
        let header = Self { api_version, kind, ..Self::default() };
        match header.meaning() {
            Meaning::Other if !header.kind().ends_with("List") => Ok(header),
            _ => Err(error),
        }
    }

    /// Whether the document's objects are its `items`.
    pub(super) fn is_list(&self) -> bool {
        self.items.is_some() && self.kind().ends_with("List")
    }

    /// The headers of the document's objects: of its items, or its own.
    pub(super) fn objects(&self) -> impl Iterator<Item = Cow<'_, Header>> {
        let items = self.items.as_deref().filter(|_| self.is_list());
        let own = items.is_none().then_some(Cow::Borrowed(self));
        items.into_iter().flatten().map(|item| Cow::Owned(self.typed_item(item))).chain(own)
    }

    /// The items of a `ServiceList` need not name their kind.
    fn typed_item(&self, item: &Header) -> Header {
        let mut item = item.clone();
        if item.kind.is_none() && self.kind() != "List" {
            item.kind = self.kind().strip_suffix("List").map(str::to_owned);
            item.api_version = item.api_version.or_else(|| self.api_version.clone());
        }
        item
    }

    pub(super) fn meaning(&self) -> Meaning {
        if self.kind().is_empty() {
            return Meaning::Unknown;
        }
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.as_str() == self.kind()) else {
            return Meaning::Other;
        };
        let expected = api_version(kind);
        let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
        match self.api_version() {
            found if found == expected => Meaning::Known(kind),
            "" => Meaning::WrongVersion { kind, expected },
            found if group(found) == group(expected) => Meaning::WrongVersion { kind, expected },
            _ => Meaning::Other,
        }
    }

    /// Returns the kind that is probably meant by another one in its API group.
    pub(super) fn meant(&self) -> Option<Kind> {
        let letters = |word: &str| {
            let mut letters = word.to_ascii_lowercase().into_bytes();
            letters.sort_unstable();
            letters
        };
        Kind::ALL.into_iter().find(|&kind| {
            let is_alike = match self.kind() {
                // What came before EndpointSlices.
                "Endpoints" => kind == Kind::EndpointSlice,
                found => found != kind.as_str() && letters(found) == letters(kind.as_str()),
            };
            let is_ours = [api_version(kind), "v1", ""].contains(&self.api_version());
            is_alike && is_ours
        })
    }

    pub(super) fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or_default()
    }

    pub(super) fn api_version(&self) -> &str {
        self.api_version.as_deref().unwrap_or_default()
    }

    pub(super) fn name(&self) -> &str {
        self.metadata.as_ref().and_then(|m| m.name.as_deref()).unwrap_or_default()
    }

    pub(super) fn namespace(&self) -> &str {
        self.metadata.as_ref().and_then(|m| m.namespace.as_deref()).unwrap_or_default()
    }
}

/// Reads `items`, if they are a list: `null` has none, and a mapping of that name is no list.
fn items<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<Header>>, D::Error> {
    struct Items;

    impl<'de> Visitor<'de> for Items {
        type Value = Option<Vec<Header>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of objects")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Some(Vec::new()))
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(Some(Vec::new()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element::<Option<Header>>()? {
                items.push(item.unwrap_or_default());
            }
            Ok(Some(items))
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok(None)
        }
    }

    deserializer.deserialize_any(Items)
}
