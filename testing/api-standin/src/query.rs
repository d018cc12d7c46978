//! The parameters of a request.

use std::collections::HashMap;

use serde_json::Value;

use crate::{answer::Status, selector::Selector};

/// The parameters of a request, and of its `Accept` header.
#[derive(Debug, Default)]
pub(crate) struct Query {
    parameters: HashMap<String, String>,
    drops_managed_fields: bool,
}

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = form_urlencoded::parse(text.as_bytes()).into_owned();
        Self { parameters: pairs.collect(), drops_managed_fields: false }
    }

    /// Takes over what an `Accept` header asks to leave out (KEP-5958). The first media type
    /// counts.
    pub(crate) fn accepting(self, header: &str) -> Self {
        let first = header.split(',').next().unwrap_or_default();
        let mut dropped = first
            .split(';')
            .filter_map(|parameter| parameter.trim().strip_prefix("drop="))
            .flat_map(|fields| fields.split('+'));
        let drops_managed_fields = dropped.any(|field| field == "metadata.managedFields");
        Self { drops_managed_fields, ..self }
    }

    /// Returns a parameter; empty if absent.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.parameters.get(key).map_or("", String::as_str)
    }

    /// Returns the function that leaves out of an object what the request asks to leave out.
    pub(crate) fn view(&self) -> fn(&Value) -> Value {
        match self.drops_managed_fields {
            true => |object| {
                let mut object = object.clone();
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                }
                object
            },
            false => Value::clone,
        }
    }

    pub(crate) fn is_true(&self, key: &str) -> bool {
        matches!(self.get(key), "true" | "1")
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, Status> {
        match self.get(key) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| Status::bad_request(format!("strconv.ParseInt: {key}: {text:?}"))),
        }
    }

    pub(crate) fn version(&self) -> Result<Option<u64>, Status> {
        self.number("resourceVersion")
    }

    /// The version that a watch asks for, whose error is not the one of a list.
    pub(crate) fn watch_version(&self) -> Result<Option<u64>, Status> {
        self.version().map_err(|status| Status { code: 500, reason: "", ..status })
    }

    pub(crate) fn selector(&self) -> Result<Selector, Status> {
        Selector::parse(self.get("labelSelector"), self.get("fieldSelector"))
            .map_err(|error| Status::bad_request(error.to_string()))
    }
}
