//! The media type of answers: its negotiation, and the encoding of what is answered.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{protobuf, resource::Resource};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediaType {
    Json {
        /// Whether objects come without their `managedFields` (KEP-5958).
        drops_managed_fields: bool,
    },
    Protobuf,
}

impl MediaType {
    /// Returns the first media type of an `Accept` header that the server has; JSON if there is
    /// none. Only JSON has a parameter that counts.
    pub(crate) fn negotiate(accept: &str, offers_protobuf: bool, drops_fields: bool) -> Self {
        let offered = |clause: &str| {
            let mut parts = clause.split(';').map(str::trim);
            match parts.next()? {
                "application/vnd.kubernetes.protobuf" if offers_protobuf => Some(Self::Protobuf),
                "application/json" | "application/*" | "*/*" => {
                    let mut dropped = parts
                        .filter_map(|parameter| parameter.strip_prefix("drop="))
                        .flat_map(|fields| fields.split('+'));
                    let is_dropped = dropped.any(|field| field == "metadata.managedFields");
                    Some(Self::Json { drops_managed_fields: is_dropped && drops_fields })
                }
                _ => None,
            }
        };
        let json = Self::Json { drops_managed_fields: false };
        accept.split(',').find_map(offered).unwrap_or(json)
    }

    /// The `Content-Type` of an object, a list or an error.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json { .. } => "application/json",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// The `Content-Type` of a watch.
    pub(crate) fn watch_name(self) -> &'static str {
        match self {
            Self::Json { .. } => self.name(),
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }

    pub(crate) fn object(self, resource: Resource, object: &Value) -> Vec<u8> {
        match self {
            Self::Json { .. } => self.view(object).to_string().into(),
            Self::Protobuf => protobuf::object(resource, object),
        }
    }

    pub(crate) fn status(self, status: &Value) -> Vec<u8> {
        match self {
            Self::Json { .. } => status.to_string().into(),
            Self::Protobuf => protobuf::status(status),
        }
    }

    pub(crate) fn list(self, resource: Resource, metadata: &Value, items: &[&Value]) -> Bytes {
        if self == Self::Protobuf {
            return protobuf::list(resource, metadata, items).into();
        }
        // Items of a typed list have no `kind` and `apiVersion`.
        let untyped = |item: &&Value| {
            let mut item = self.view(item).into_owned();
            if let Some(item) = item.as_object_mut() {
                item.remove("kind");
                item.remove("apiVersion");
            }
            item
        };
        let list = json!({
            "kind": format!("{}List", resource.kind()),
            "apiVersion": resource.api_version(),
            "metadata": metadata,
            "items": items.iter().map(untyped).collect::<Vec<_>>(),
        });
        list.to_string().into()
    }

    /// Returns an event of a watch with what [`MediaType::object`] or [`MediaType::status`]
    /// returned.
    pub(crate) fn event(self, kind: &str, object: &[u8]) -> Bytes {
        match self {
            // In this order, as the server's encoder has it.
            Self::Json { .. } => {
                let parts: [&[u8]; 5] =
                    [b"{\"type\":\"", kind.as_bytes(), b"\",\"object\":", object, b"}\n"];
                parts.concat().into()
            }
            Self::Protobuf => protobuf::event(kind, object),
        }
    }

    /// Returns an object without what is to be left out.
    fn view(self, object: &Value) -> Cow<'_, Value> {
        if self == (Self::Json { drops_managed_fields: true }) {
            let mut object = object.clone();
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
            return Cow::Owned(object);
        }
        Cow::Borrowed(object)
    }
}
