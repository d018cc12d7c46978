//! The protobuf encoding of objects, lists and watch events, from JSON.
//!
//! An object, a list or a `Status` comes after a magic number, in a message that names its type. A
//! watch consists of frames: a length, and an event that has such an object.
//!
//! Source: `runtime.Unknown` and `meta.WatchEvent` in the `generated.proto` files of
//! `k8s.io/apimachinery`, and its serializer and framer for protobuf.

mod messages;

use bytes::{BufMut, Bytes};
use jiff::Timestamp;
use prost::encoding::{
    WireType, bool, encode_key, encode_varint, encoded_len_varint, int32, int64,
};
use serde_json::Value;

use self::messages::{Field, Kind, Presence};
use crate::resource::Resource;

/// The bytes before every message but the frames of a watch.
const MAGIC: &[u8] = b"k8s\0";

/// Returns an object of a resource, or its part that the bookmark of a watch has.
pub(crate) fn object(resource: Resource, value: &Value) -> Vec<u8> {
    let fields = messages::of(resource.kind());
    envelope(resource.api_version(), resource.kind(), |out| message(out, fields, value))
}

pub(crate) fn status(value: &Value) -> Vec<u8> {
    envelope("v1", "Status", |out| message(out, messages::of("Status"), value))
}

pub(crate) fn list(resource: Resource, metadata: &Value, items: &[&Value]) -> Vec<u8> {
    let fields = messages::of(resource.kind());
    envelope(resource.api_version(), &format!("{}List", resource.kind()), |out| {
        nested(out, 1, |out| message(out, messages::LIST_META, metadata));
        for item in items {
            nested(out, 2, |out| message(out, fields, item));
        }
    })
}

/// Returns the frame of a watch with an event of this type. `object` is what [`object`] or
/// [`status`] returned.
pub(crate) fn event(kind: &str, object: &[u8]) -> Bytes {
    let mut frame = vec![0; 4];
    bytes(&mut frame, 1, kind.as_bytes());
    nested(&mut frame, 2, |out| bytes(out, 1, object));
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame.into()
}

/// Returns the magic number and a `runtime.Unknown` with a message of this type.
fn envelope(api_version: &str, kind: &str, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    nested(&mut out, 1, |out| {
        bytes(out, 1, api_version.as_bytes());
        bytes(out, 2, kind.as_bytes());
    });
    nested(&mut out, 2, write);
    // The content's encoding and media type, which a server leaves empty.
    bytes(&mut out, 3, b"");
    bytes(&mut out, 4, b"");
    out
}

/// Writes the fields of a message, in the order of their numbers. `null` is a message of which all
/// fields are absent.
fn message(out: &mut Vec<u8>, fields: &[Field], object: &Value) {
    for field in fields {
        let value = object.get(field.name).unwrap_or(&Value::Null);
        match (field.presence, value) {
            (Presence::Always, value) => one(out, field, value),
            (_, Value::Null) => (),
            (Presence::Repeated, Value::Array(values)) => {
                values.iter().for_each(|value| one(out, field, value));
            }
            (Presence::Map, Value::Object(entries)) => {
                for (key, value) in entries {
                    nested(out, field.number, |out| {
                        bytes(out, 1, key.as_bytes());
                        one(out, &Field { number: 2, ..*field }, value);
                    });
                }
            }
            (Presence::Optional, value) => one(out, field, value),
            (Presence::Repeated | Presence::Map, _) => misfit(out, field, value),
        }
    }
}

/// Writes one value of a field; `null` as zero or empty.
fn one(out: &mut Vec<u8>, field: &Field, value: &Value) {
    if fitting(out, field.number, field.kind, value).is_none() {
        misfit(out, field, value);
    }
}

/// Writes one value of a field if the value has the field's type.
fn fitting(out: &mut Vec<u8>, number: u32, kind: Kind, value: &Value) -> Option<()> {
    match kind {
        Kind::Text => bytes(out, number, text(value)?.as_bytes()),
        Kind::Int32 => int32::encode(number, &i32::try_from(integer(value)?).ok()?, out),
        Kind::Int64 => int64::encode(number, &integer(value)?, out),
        Kind::Bool if value.is_null() => bool::encode(number, &false, out),
        Kind::Bool => bool::encode(number, &value.as_bool()?, out),
        Kind::Time => {
            let seconds = match text(value)? {
                "" => None,
                text => Some(text.parse::<Timestamp>().ok()?.as_second()),
            };
            nested(out, number, |out| {
                if let Some(seconds) = seconds {
                    int64::encode(1, &seconds, out);
                    // Servers cut times to seconds.
                    int32::encode(2, &0, out);
                }
            });
        }
        Kind::IntOrString => {
            let (kind, integer, text) = match value {
                Value::String(text) => (1, 0, text.as_str()),
                value => (0, i32::try_from(integer(value)?).ok()?, ""),
            };
            nested(out, number, |out| {
                int32::encode(1, &kind, out);
                int32::encode(2, &integer, out);
                bytes(out, 3, text.as_bytes());
            });
        }
        Kind::Quantity => {
            let quantity = text(value)?;
            nested(out, number, |out| bytes(out, 1, quantity.as_bytes()));
        }
        Kind::FieldsV1 => nested(out, number, |out| bytes(out, 1, value.to_string().as_bytes())),
        Kind::Message(fields) if value.is_object() || value.is_null() => {
            nested(out, number, |out| message(out, fields, value));
        }
        Kind::Message(_) => return None,
    }
    Some(())
}

/// Writes a value that is not of the field's type with a wire type that the field does not have, so
/// that no client can decode the message.
fn misfit(out: &mut Vec<u8>, field: &Field, value: &Value) {
    match field.kind {
        Kind::Int32 | Kind::Int64 | Kind::Bool => {
            bytes(out, field.number, value.to_string().as_bytes());
        }
        _ => int32::encode(field.number, &0, out),
    }
}

fn text(value: &Value) -> Option<&str> {
    if value.is_null() { Some("") } else { value.as_str() }
}

fn integer(value: &Value) -> Option<i64> {
    if value.is_null() { Some(0) } else { value.as_i64() }
}

/// Writes a field with these bytes.
fn bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.put_slice(bytes);
}

/// Writes a field with the bytes that `write` appends.
fn nested(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    encode_key(number, WireType::LengthDelimited, out);
    // The place of the length, which has one byte for most messages. For others, it is made wider.
    let start = out.len();
    out.push(0);
    write(out);
    let end = out.len();
    let length = (end - start - 1) as u64;
    let more = encoded_len_varint(length) - 1;
    if more > 0 {
        out.resize(end + more, 0);
        out.copy_within(start + 1..end, start + 1 + more);
    }
    encode_varint(length, &mut &mut out[start..]);
}

#[cfg(test)]
mod tests;
