//! Label and field selectors.

use serde_json::Value;

/// A label and a field selector, both of which an object must meet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

/// A requirement on one key: that it is there, or has a value; or not that.
#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: String,
    value: Option<String>,
    is_negated: bool,
}

/// A selector that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse requirement: {0}")]
pub(crate) struct SelectorError(String);

impl Selector {
    /// Reads the query parameters `labelSelector` and `fieldSelector`.
    pub(crate) fn parse(labels: &str, fields: &str) -> Result<Self, SelectorError> {
        let fields = parse(fields)?;
        let known = ["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"];
        let is_known = |field: &Requirement| field.value.is_some() && known.contains(&&*field.key);
        let unsupported = fields.iter().find(|field| !is_known(field));
        match unsupported {
            Some(requirement) => Err(SelectorError(format!("{requirement:?}"))),
            None => Ok(Self { labels: parse(labels)?, fields }),
        }
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let label = |key: &str| labels.get(key).and_then(Value::as_str);
        // A field that is not set reads as the empty string.
        let field = |key: &str| {
            let value = key.split('.').try_fold(object, |value, step| value.get(step));
            Some(value.and_then(Value::as_str).unwrap_or_default())
        };
        self.labels.iter().all(|requirement| requirement.holds(label))
            && self.fields.iter().all(|requirement| requirement.holds(field))
    }
}

impl Requirement {
    fn holds<'v>(&self, value: impl Fn(&str) -> Option<&'v str>) -> bool {
        let value = value(&self.key);
        let is_met = match &self.value {
            Some(wanted) => value == Some(wanted),
            None => value.is_some(),
        };
        is_met != self.is_negated
    }
}

fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(requirement).collect()
}

fn requirement(text: &str) -> Result<Requirement, SelectorError> {
    let (is_negated, key, value) = if let Some((key, value)) = text.split_once("!=") {
        (true, key, Some(value))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (false, key, Some(value))
    } else if let Some(key) = text.strip_prefix('!') {
        (true, key, None)
    } else {
        (false, text, None)
    };
    let (key, value) = (key.trim().to_owned(), value.map(|value| value.trim().to_owned()));
    // Sets of values, as in `a in (b, c)`, are not read.
    match key.is_empty() || key.contains([' ', '(', ')', '=']) {
        true => Err(SelectorError(text.to_owned())),
        false => Ok(Requirement { key, value, is_negated }),
    }
}
