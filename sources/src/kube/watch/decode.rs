//! Decoding of JSON that the server sends into the core's objects, one by one.
//!
//! Servers without protobuf send it. An item is taken as raw text first and then decoded by itself.
//! An object that cannot be decoded is therefore reported with its name and field, and the rest of
//! its list or watch is unaffected. The raw text is borrowed from the answer and not copied.

use std::{borrow::Cow, marker::PhantomData, mem};

use kube::core::{Status, WatchEvent, watch::Bookmark};
use prost::Message;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;
use switchyard_core::objects::{
    EndpointSlice, Kind, Metadata, Node, Object, ObjectKey, Service, ServiceCidr,
};

use crate::wording::worded;

/// Why an answer, or an event, cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    /// The answer is no JSON of what was asked for.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The answer is no protobuf of what was asked for.
    #[error(transparent)]
    Protobuf(#[from] prost::DecodeError),
    /// The answer does not begin as the API's protobuf does.
    #[error("this is no protobuf of the Kubernetes API")]
    NoMark,
    /// The answer is an object of another kind.
    #[error("the kind is not {0}")]
    Kind(String),
    /// The event is none that the API has.
    #[error("`{0}` is no type of an event")]
    Event(String),
}

/// An object type of the core that can be decoded from the server's answers.
pub(crate) trait DecodableObject:
    DeserializeOwned + Message + Default + Clone + 'static
{
    /// The kind of the type's objects.
    const KIND: Kind;

    /// The object's `metadata`.
    fn metadata(&mut self) -> &mut Metadata;

    /// Returns the object as an object of any kind.
    fn into_object(self) -> Object;
}

macro_rules! decodable {
    ($($type:ident: $variant:ident),*) => {$(
        impl DecodableObject for $type {
            const KIND: Kind = Kind::$variant;

            fn metadata(&mut self) -> &mut Metadata {
                &mut self.metadata
            }

            fn into_object(self) -> Object {
                Object::$variant(self)
            }
        }
    )*};
}

decodable!(Node: Node, Service: Service, EndpointSlice: EndpointSlice, ServiceCidr: ServiceCidr);

/// An object of a list or a watch.
#[derive(Clone, Debug)]
pub(super) struct Item<T> {
    /// The object's kind, namespace and name; `None` if the name cannot be read.
    pub(super) key: Option<ObjectKey>,
    /// The object's `resourceVersion`; empty if it cannot be read.
    pub(super) version: String,
    /// The object, or why it cannot be decoded.
    pub(super) content: Result<Object, Fault>,
    kind: PhantomData<T>,
}

/// Why an object cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fault {
    /// The field, as a path such as `spec.ports[0].port`.
    pub(super) field: String,
    /// The problem with the field.
    pub(super) message: String,
}

/// The part of an object that identifies it and its version.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Identity {
    metadata: IdentityMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct IdentityMetadata {
    name: String,
    namespace: Option<String>,
    resource_version: Option<String>,
}

impl<'de, T: DecodableObject> Deserialize<'de> for Item<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Self::decode(raw.get()))
    }
}

/// Returns the object's key, if its name is known.
fn key(kind: Kind, metadata: &Metadata) -> Option<ObjectKey> {
    (!metadata.name.is_empty()).then(|| ObjectKey::new(kind, metadata))
}

impl<T: DecodableObject> Item<T> {
    /// Returns a decoded object as an item, or what was decoded of it and why the rest was not.
    pub(super) fn new(mut object: T, decoded: Result<(), Fault>) -> Self {
        let version = mem::take(&mut object.metadata().resource_version);
        let key = key(T::KIND, object.metadata());
        Self { key, version, content: decoded.map(|()| object.into_object()), kind: PhantomData }
    }

    fn decode(text: &str) -> Self {
        if let Ok(object) = serde_json::from_str::<T>(text) {
            return Self::new(object, Ok(()));
        }
        let identity = serde_json::from_str::<Identity>(text).unwrap_or_default();
        let IdentityMetadata { name, namespace, resource_version } = identity.metadata;
        let namespace = namespace.unwrap_or_default();
        Self {
            key: key(T::KIND, &Metadata { name, namespace, ..Metadata::default() }),
            version: resource_version.unwrap_or_default(),
            content: decode_tracked::<T>(text),
            kind: PhantomData,
        }
    }
}

/// Decodes again, now with a record of the path to each field.
fn decode_tracked<T: DecodableObject>(text: &str) -> Result<Object, Fault> {
    let mut json = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut json) {
        Ok(object) => Ok(object.into_object()),
        Err(error) => {
            let field = error.path().to_string();
            let message = error.inner().to_string();
            // The position is of no use: it counts from the object's start.
            let end = message.rfind(" at line ").unwrap_or(message.len());
            Err(Fault {
                field: if field == "." { String::new() } else { field },
                message: worded(&message[..end], None),
            })
        }
    }
}

/// A list, or a page of one.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: DecodableObject")]
pub(super) struct Page<T> {
    #[expect(dead_code, reason = "checked when it is decoded")]
    kind: ListKind<T>,
    #[serde(default)]
    pub(super) metadata: PageMetadata,
    /// `null` for none, but always there.
    #[serde(deserialize_with = "Deserialize::deserialize")]
    pub(super) items: Option<Vec<Item<T>>>,
}

/// `kind` of a list: any object with a version would be an empty list otherwise.
#[derive(Debug)]
struct ListKind<T>(PhantomData<T>);

impl<'de, T: DecodableObject> Deserialize<'de> for ListKind<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = Cow::<str>::deserialize(deserializer)?;
        if kind.strip_suffix("List") == Some(T::KIND.as_str()) {
            return Ok(Self(PhantomData));
        }
        Err(D::Error::custom(format_args!("the kind is not {}List", T::KIND)))
    }
}

/// `metadata` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PageMetadata {
    pub(super) resource_version: Option<String>,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

impl<T> Page<T> {
    pub(super) fn new(metadata: PageMetadata, items: Vec<Item<T>>) -> Self {
        Self { kind: ListKind(PhantomData), metadata, items: Some(items) }
    }
}

pub(super) type WatchItem<T> = WatchEvent<Item<T>>;

/// Reads an event of a watch. A status alone is an error.
pub(super) fn event<T: DecodableObject>(text: &[u8]) -> Result<WatchItem<T>, DecodeError> {
    serde_json::from_slice(text).or_else(|error| match serde_json::from_slice::<Status>(text) {
        Ok(status) if status.code != 0 => Ok(WatchEvent::Error(status.boxed())),
        _ => Err(error.into()),
    })
}

/// Whether a bookmark ends a streamed list.
pub(super) fn ends_list(bookmark: &Bookmark) -> bool {
    bookmark.metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|v| v == "true")
}

/// Decodes an object in JSON as an item of a list: its name, and the object, or the field and the
/// problem.
#[cfg(feature = "testing")]
pub fn decode_item(kind: Kind, text: &str) -> (Option<ObjectKey>, Result<Object, [String; 2]>) {
    fn read<T: DecodableObject>(text: &str) -> (Option<ObjectKey>, Result<Object, [String; 2]>) {
        let item = Item::<T>::decode(text);
        (item.key, item.content.map_err(|fault| [fault.field, fault.message]))
    }
    match kind {
        Kind::Service => read::<Service>(text),
        Kind::EndpointSlice => read::<EndpointSlice>(text),
        Kind::Node => read::<Node>(text),
        Kind::ServiceCidr => read::<ServiceCidr>(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"kind":"Service","metadata":{"name":"a","namespace":"n",
        "resourceVersion":"7","managedFields":[{"x":1}],
        "annotations":{"switchyard/lb-algorithm":"maglev"}},"spec":{"clusterIP":"10.0.0.1"}}"#;
    const BAD: &str = r#"{"metadata":{"name":"b","namespace":"n","resourceVersion":"8"},
        "spec":{"ports":[{"port":80},{"port":"http"}]}}"#;

    fn fault<T>(item: &Item<T>) -> (&str, &str) {
        item.content.as_ref().map_err(|f| (f.field.as_str(), f.message.as_str())).unwrap_err()
    }

    #[test]
    fn an_object_comes_with_key_and_version() {
        let item: Item<Service> = serde_json::from_str(GOOD).unwrap();
        assert_eq!(item.key.unwrap().to_string(), "Service n/a");
        assert_eq!(item.version, "7");
        let Ok(Object::Service(service)) = item.content else { panic!() };
        assert_eq!(service.spec.cluster_ip, "10.0.0.1");
        assert_eq!(service.metadata.annotations["switchyard/lb-algorithm"], "maglev");
    }

    #[test]
    fn a_page_survives_a_malformed_item() {
        let text = format!(
            r#"{{"kind":"ServiceList","apiVersion":"v1","metadata":{{"resourceVersion":"9",
            "continue":"x","remainingItemCount":4}},"items":[{BAD},{GOOD},5]}}"#
        );
        let page: Page<Service> = serde_json::from_str(&text).unwrap();
        assert_eq!(page.metadata.next.as_deref(), Some("x"));
        let items = page.items.unwrap();
        let (field, message) = fault(&items[0]);
        assert_eq!(field, "spec.ports[1].port");
        assert!(message.starts_with("invalid type: string \"http\""), "{message}");
        assert!(!message.contains("line"), "{message}");
        assert_eq!(items[0].key.as_ref().unwrap().name, "b");
        assert!(items[1].content.is_ok());
        assert_eq!((&items[2].key, fault(&items[2]).0), (&None, ""));
    }

    #[test]
    fn a_page_is_one_of_its_kind_with_items() {
        let read = |text| serde_json::from_str::<Page<Service>>(text);
        assert!(read(r#"{"kind":"ServiceList","items":null}"#).unwrap().items.is_none());
        for other in [
            r#"{"kind":"ServiceList","metadata":{"resourceVersion":"7"}}"#,
            r#"{"kind":"NodeList","items":[]}"#,
            r#"{"kind":"Other","items":[]}"#,
            r#"{"items":[]}"#,
        ] {
            assert!(read(other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_watch_event_survives_a_malformed_object() {
        let text = format!(r#"{{"type":"MODIFIED","object":{BAD}}}"#);
        let WatchEvent::Modified(item) = serde_json::from_str::<WatchItem<Service>>(&text).unwrap()
        else {
            panic!()
        };
        assert_eq!((item.version.as_str(), fault(&item).0), ("8", "spec.ports[1].port"));
        let text = r#"{"type":"BOOKMARK","object":{"kind":"Service","apiVersion":"v1","metadata":
            {"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        let WatchEvent::Bookmark(bookmark) =
            serde_json::from_str::<WatchItem<Service>>(text).unwrap()
        else {
            panic!()
        };
        assert!(ends_list(&bookmark));
    }
}
