//! Label and field selectors.

use serde_json::Value;

/// A label and a field selector, both of which an object must meet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

/// One requirement on one key.
#[derive(Clone, Debug, PartialEq)]
enum Requirement {
    Exists(String),
    NotExists(String),
    Equal(String, String),
    NotEqual(String, String),
}

/// A selector that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unable to parse requirement: {0}")]
pub(crate) struct SelectorError(String);

impl Selector {
    /// Reads the query parameters `labelSelector` and `fieldSelector`.
    pub(crate) fn parse(labels: &str, fields: &str) -> Result<Self, SelectorError> {
        let fields = parse(fields)?;
        let unsupported = fields.iter().find(|requirement| {
            let known = ["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"];
            match requirement {
                Requirement::Equal(key, _) | Requirement::NotEqual(key, _) => {
                    !known.contains(&key.as_str())
                }
                _ => true,
            }
        });
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
    fn key(&self) -> &str {
        match self {
            Self::Exists(key)
            | Self::NotExists(key)
            | Self::Equal(key, _)
            | Self::NotEqual(key, _) => key,
        }
    }

    fn holds<'v>(&self, value: impl Fn(&str) -> Option<&'v str>) -> bool {
        match self {
            Self::Exists(key) => value(key).is_some(),
            Self::NotExists(key) => value(key).is_none(),
            Self::Equal(key, wanted) => value(key) == Some(wanted),
            Self::NotEqual(key, unwanted) => value(key) != Some(unwanted),
        }
    }
}

fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(requirement).collect()
}

fn requirement(text: &str) -> Result<Requirement, SelectorError> {
    let pair = |(key, value): (&str, &str)| (key.trim().to_owned(), value.trim().to_owned());
    let requirement = if let Some(parts) = text.split_once("!=") {
        let (key, value) = pair(parts);
        Requirement::NotEqual(key, value)
    } else if let Some(parts) = text.split_once("==").or_else(|| text.split_once('=')) {
        let (key, value) = pair(parts);
        Requirement::Equal(key, value)
    } else if let Some(key) = text.strip_prefix('!') {
        Requirement::NotExists(key.trim().to_owned())
    } else if text.contains([' ', '(', ')']) {
        return Err(SelectorError(text.to_owned()));
    } else {
        Requirement::Exists(text.to_owned())
    };
    match requirement.key().is_empty() || requirement.key().starts_with('=') {
        true => Err(SelectorError(text.to_owned())),
        false => Ok(requirement),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requirements_hold_or_not() {
        let object = json!({
            "metadata": {"name": "a", "labels": {"app": "web", "empty": ""}},
            "spec": {"clusterIP": "10.0.0.1"},
        });
        for (labels, fields, expected) in [
            ("", "", true),
            ("app", "", true),
            ("!app", "", false),
            ("!service.kubernetes.io/headless", "", true),
            ("app=web,empty", "", true),
            ("app==db", "", false),
            ("app!=db,other!=x", "", true),
            ("", "metadata.name=a", true),
            ("", "metadata.name=b", false),
            ("", "spec.clusterIP!=None", true),
            ("", "spec.type=", true),
        ] {
            let selector = Selector::parse(labels, fields).unwrap();
            assert_eq!(selector.matches(&object), expected, "{labels} {fields}");
        }
        assert!(Selector::parse("a in (b)", "").is_err());
        assert!(Selector::parse("", "spec.other=1").is_err());
    }
}
