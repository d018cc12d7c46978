//! The parameters of a request.

use std::{borrow::Cow, collections::HashMap};

use crate::{answer::Status, selector::Selector};

/// The parameters of a request.
#[derive(Debug, Default)]
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(key, value)| (decode(key).into(), decode(value).into())).collect())
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

/// Undoes the encoding of a query: `+` and `%41`.
fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['+', '%']) {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits =
                    [rest.next(), rest.next()].map(|d| d.and_then(|d| (d as char).to_digit(16)));
                match digits {
                    [Some(high), Some(low)] => (high * 16 + low) as u8,
                    _ => b'%',
                }
            }
            byte => byte,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query =
            Query::parse("fieldSelector=spec.clusterIP%21%3DNone&watch=true&limit=5&x=a+b%2");
        assert_eq!(query.get("fieldSelector"), "spec.clusterIP!=None");
        assert!(query.is_true("watch") && !query.is_true("other"));
        assert_eq!(query.number("limit"), Ok(Some(5)));
        assert!(query.number("x").is_err());
        assert_eq!(query.get("x"), "a b%");
    }
}
