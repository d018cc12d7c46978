//! The parameters of a request.

use std::collections::HashMap;

use crate::{answer::Status, selector::Selector};

/// The parameters of a request.
#[derive(Debug)]
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    /// Returns a parameter; empty if absent.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
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
