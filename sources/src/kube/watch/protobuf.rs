//! Decoding of the server's protobuf into the core's objects, one by one.
//!
//! The messages are those of `meta/v1` and `runtime` in `k8s.io/apimachinery`, as far as a client
//! reads them.

use std::ops::Range;

use bytes::Bytes;
use kube::core::{
    Status, TypeMeta, WatchEvent,
    watch::{Bookmark, BookmarkMeta},
};
use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};

use super::{
    decode::{DecodableObject, DecodeError, Fault, Item, Page, PageMetadata, WatchItem},
    failure,
};

/// The bytes before each `Unknown` that is no part of another message.
const MARK: &[u8] = b"k8s\0";

/// Any object, with its type.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, required, tag = "1")]
    types: Types,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct Types {
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, required, tag = "2")]
    object: Extension,
}

#[derive(Clone, PartialEq, Message)]
struct Extension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, required, tag = "1")]
    metadata: ListMetadata,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    items: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
struct ListMetadata {
    #[prost(string, tag = "2")]
    resource_version: String,
    #[prost(string, tag = "3")]
    next: String,
}

#[derive(Clone, PartialEq, Message)]
struct Refusal {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, required, tag = "5")]
    details: Details,
    #[prost(int32, tag = "6")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Details {
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
}

/// Reads an object of this kind behind the mark.
fn marked(kind: &str, bytes: Bytes) -> Result<Bytes, DecodeError> {
    let Some(unmarked) = bytes.strip_prefix(MARK) else { return Err(DecodeError::NoMark) };
    let unknown = Unknown::decode(bytes.slice_ref(unmarked))?;
    match unknown.types.kind == kind {
        true => Ok(unknown.raw),
        false => Err(DecodeError::Kind(kind.to_owned())),
    }
}

/// Reads the status of a request that failed.
pub(super) fn status(bytes: Bytes) -> Result<Status, DecodeError> {
    let Refusal { message, reason, details, code } = Refusal::decode(marked("Status", bytes)?)?;
    let seconds = details.retry_after_seconds.try_into().unwrap_or(0);
    let status = Status::failure(&message, &reason).with_code(code.try_into().unwrap_or(0));
    Ok(status.with_details(failure::details(seconds)))
}

/// Reads a list, or a page of one.
pub(super) fn page<T: DecodableObject>(bytes: Bytes) -> Result<Page<T>, DecodeError> {
    let List { metadata, items } = List::decode(marked(&format!("{}List", T::KIND), bytes)?)?;
    let ListMetadata { resource_version, next } = metadata;
    let metadata = PageMetadata { resource_version: Some(resource_version), next: Some(next) };
    Ok(Page::new(metadata, items.into_iter().map(item).collect()))
}

/// Reads an event of a watch.
pub(super) fn event<T: DecodableObject>(bytes: Bytes) -> Result<WatchItem<T>, DecodeError> {
    let Event { kind, object } = Event::decode(bytes)?;
    if kind == "ERROR" {
        return Ok(WatchEvent::Error(status(object.raw)?.boxed()));
    }
    let raw = marked(T::KIND.as_str(), object.raw)?;
    Ok(match kind.as_str() {
        "ADDED" => WatchEvent::Added(item(raw)),
        "MODIFIED" => WatchEvent::Modified(item(raw)),
        "DELETED" => WatchEvent::Deleted(item(raw)),
        "BOOKMARK" => {
            let mut object = T::decode(raw)?;
            let metadata = std::mem::take(object.metadata());
            WatchEvent::Bookmark(Bookmark {
                types: TypeMeta::default(),
                metadata: BookmarkMeta {
                    resource_version: metadata.resource_version,
                    annotations: metadata.annotations,
                },
            })
        }
        _ => return Err(DecodeError::Event(kind)),
    })
}

/// Reads an object, such as an EndpointSlice. Of one that cannot be decoded, what comes before the
/// fault is known.
fn item<T: DecodableObject>(bytes: Bytes) -> Item<T> {
    let mut object = T::default();
    let mut read = object.merge(bytes.clone());
    if let Some(mended) = read.as_ref().err().and_then(|_| with_readable_annotations(&bytes)) {
        object = T::default();
        read = object.merge(Bytes::from(mended));
    }
    Item::new(
        object,
        read.map_err(|error| Fault { field: String::new(), message: error.to_string() }),
    )
}

/// Returns the object with a `?` in place of each byte of an annotation's value that is no UTF-8,
/// `None` if there is none. The API server checks no values; in JSON, it replaces such bytes, too.
fn with_readable_annotations(object: &[u8]) -> Option<Vec<u8>> {
    let mut mended = object.to_vec();
    // `metadata`, `annotations`, and the value of an entry.
    for metadata in fields(object, 1) {
        for annotation in fields(&object[metadata.clone()], 12) {
            let start = metadata.start + annotation.start;
            for value in fields(&object[start..metadata.start + annotation.end], 2) {
                let value = &mut mended[start + value.start..start + value.end];
                while let Err(error) = str::from_utf8(value) {
                    value[error.valid_up_to()] = b'?';
                }
            }
        }
    }
    (mended != object).then_some(mended)
}

/// Returns the places of a message's fields of this number that have a length.
fn fields(message: &[u8], number: u32) -> Vec<Range<usize>> {
    let (mut rest, mut found) = (message, Vec::new());
    while let Ok((tag, wire_type)) = decode_key(&mut rest) {
        let mut value = rest;
        if skip_field(wire_type, tag, &mut rest, DecodeContext::default()).is_err() {
            break;
        }
        let is_sought = wire_type == WireType::LengthDelimited && tag == number;
        // Of what was skipped, the length comes first.
        if is_sought && decode_varint(&mut value).is_ok() {
            found.push(message.len() - value.len()..message.len() - rest.len());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use switchyard_core::objects::{Object, Service};

    use super::*;

    #[test]
    fn annotations_need_not_be_text() {
        // metadata {name: "a", annotations: {"k": "x\xff\xc3", "l": "y"}}, spec {clusterIP: "1"}
        let object = b"\x0a\x15\x0a\x01ab\x08\x0a\x01k\x12\x03x\xff\xc3b\x06\x0a\x01l\x12\x01y\x12\x03\x1a\x011";
        let Ok(Object::Service(service)) = item::<Service>(Bytes::from_static(object)).content
        else {
            panic!()
        };
        assert_eq!(service.metadata.annotations["k"], "x??");
        assert_eq!(service.spec.cluster_ip, "1");
        // Nothing else is mended, and nothing panics on what is cut.
        let name = b"\x0a\x03\x0a\x01\xff";
        assert!(item::<Service>(Bytes::from_static(name)).content.is_err());
        for end in 0..object.len() {
            let _ = item::<Service>(Bytes::from_static(&object[..end]));
        }
    }
}
