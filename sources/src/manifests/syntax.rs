//! YAML and JSON texts: splitting into documents, and decoding with the places of errors.

use std::path::Path;

use serde::de::DeserializeSeed;
use serde_json::value::RawValue;
use serde_path_to_error::{Deserializer as Tracked, Segment, Track};
use serde_saphyr::MessageFormatter as _;

use crate::wording::worded;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    Yaml,
    Json,
}

impl Syntax {
    /// Returns the syntax of a file, by its extension; `None` if the file is no manifest.
    pub(super) fn from_path(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "yaml" | "yml" => Some(Self::Yaml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// The text of one document of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Document<'t> {
    /// The number of the document in the file, from 1.
    pub(super) number: usize,
    /// The number of lines of the file that come before `text`.
    lines_before: u64,
    syntax: Syntax,
    text: &'t str,
}

/// Why a document could not be decoded.
#[derive(Debug, PartialEq)]
pub(super) struct DecodeError {
    /// The path to the value, outermost first.
    pub(super) path: Vec<Step>,
    /// The line in the file, counted from 1.
    pub(super) line: Option<u64>,
    /// The description of the error.
    pub(super) message: String,
}

/// One step of a path into a document.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Field(String),
    Index(usize),
}

/// Prints a path as `spec.ports[0].port`.
pub(super) fn print_path(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Field(name) if text.is_empty() => text.push_str(name),
            Step::Field(name) => {
                text.push('.');
                text.push_str(name);
            }
            Step::Index(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

impl<'t> Document<'t> {
    pub(super) fn contains(&self, word: &str) -> bool {
        self.text.contains(word)
    }

    /// Decodes the document. Only if that fails, the document is decoded again with a record of the
    /// place, which takes twice the time.
    pub(super) fn decode<S>(&self, seed: S) -> Result<S::Value, DecodeError>
    where
        S: DeserializeSeed<'t> + Copy,
    {
        let plain = match self.syntax {
            Syntax::Yaml => serde_saphyr::with_deserializer_from_str_with_options(
                self.text,
                yaml_options(),
                |yaml| seed.deserialize(yaml),
            )
            .ok(),
            Syntax::Json => {
                let mut json = serde_json::Deserializer::from_str(self.text);
                seed.deserialize(&mut json).and_then(|value| json.end().map(|()| value)).ok()
            }
        };
        if let Some(value) = plain {
            return Ok(value);
        }
        let mut track = Track::new();
        let result = match self.syntax {
            Syntax::Yaml => serde_saphyr::with_deserializer_from_str_with_options(
                self.text,
                yaml_options(),
                |yaml| seed.deserialize(Tracked::new(yaml, &mut track)),
            )
            .map_err(|error| {
                let at = error.location();
                let value = at.and_then(|at| scalar(self.text, at.line(), at.column()));
                let message = serde_saphyr::UserMessageFormatter.format_message(&error);
                (at.map(|at| at.line()), worded(&message, value))
            }),
            Syntax::Json => {
                let mut json = serde_json::Deserializer::from_str(self.text);
                seed.deserialize(Tracked::new(&mut json, &mut track))
                    .and_then(|value| json.end().map(|()| value))
                    .map_err(|error| (json_line(&error), json_message(&error)))
            }
        };
        result.map_err(|(line, message)| DecodeError {
            path: steps(&track.path()),
            line: line.map(|line| line + self.lines_before),
            message,
        })
    }
}

fn steps(path: &serde_path_to_error::Path) -> Vec<Step> {
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(Step::Index(*index)),
            Segment::Map { key } => Some(Step::Field(key.clone())),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect()
}

/// Returns the limits of the YAML parser. Manifests are the operator's own files: only nesting and
/// the replay of aliases are limited.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        emit_comments: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
        },
    }
}

fn json_line(error: &serde_json::Error) -> Option<u64> {
    (error.line() > 0).then_some(error.line() as u64)
}

/// Returns the decoder's message without the position, which is reported separately.
fn json_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    worded(&text[..text.rfind(" at line ").unwrap_or(text.len())], None)
}

/// Returns the plain scalar at a line and a column, both from 1.
fn scalar(text: &str, line: u64, column: u64) -> Option<&str> {
    let line = text.lines().nth(usize::try_from(line).ok()?.checked_sub(1)?)?;
    let (start, _) = line.char_indices().nth(usize::try_from(column).ok()?.checked_sub(1)?)?;
    let (before, from) = line.split_at(start);
    let ends: &[char] = if before.contains(['{', '[']) { &[',', '}', ']'] } else { &[] };
    from.split(" #").next()?.split(ends).next().map(str::trim_end)
}

/// Splits a file into documents. The error concerns the text after the last document.
pub(super) fn documents(syntax: Syntax, text: &str) -> (Vec<Document<'_>>, Option<DecodeError>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    match syntax {
        Syntax::Yaml => (yaml_documents(text), None),
        Syntax::Json => json_documents(text),
    }
}

/// Splits YAML at its document markers. A line that starts with `---` or `...` is always a marker:
/// YAML forbids such lines inside of scalars. The text can therefore be split before it is parsed,
/// and a document that cannot be parsed does not hide the documents after it.
fn yaml_documents(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut start_line) = (0, 0);
    let mut cut = |start: usize, end: usize, lines_before: u64| {
        let text = &text[start..end];
        if !is_blank(text) {
            let number = documents.len() + 1;
            documents.push(Document { number, lines_before, syntax: Syntax::Yaml, text });
        }
    };
    let mut offset = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if is_marker(line) {
            cut(start, offset, start_line);
            (start, start_line) = (offset + 3, number as u64);
        }
        offset += line.len();
    }
    cut(start, text.len(), start_line);
    documents
}

fn is_marker(line: &str) -> bool {
    match line.strip_prefix("---").or_else(|| line.strip_prefix("...")) {
        Some(rest) => rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']),
        None => false,
    }
}

/// Whether a text holds nothing but white space, comments and directives.
fn is_blank(text: &str) -> bool {
    text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with(['#', '%'])
    })
}

/// Splits a text into JSON values that follow each other.
fn json_documents(text: &str) -> (Vec<Document<'_>>, Option<DecodeError>) {
    let mut documents = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        match value {
            Ok(raw) => {
                let start = raw.get().as_ptr() as usize - text.as_ptr() as usize;
                documents.push(Document {
                    number: documents.len() + 1,
                    lines_before: text[..start].matches('\n').count() as u64,
                    syntax: Syntax::Json,
                    text: raw.get(),
                });
            }
            Err(error) => {
                let (line, message) = (json_line(&error), json_message(&error));
                return (documents, Some(DecodeError { path: Vec::new(), line, message }));
            }
        }
    }
    (documents, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(syntax: Syntax, text: &str) -> Vec<(usize, u64, &str)> {
        let (documents, error) = documents(syntax, text);
        assert_eq!(error, None);
        documents.iter().map(|d| (d.number, d.lines_before, d.text)).collect()
    }

    #[test]
    fn yaml_is_cut_at_markers_only() {
        let text =
            "# licence\n%YAML 1.2\n---\na: 1\nb: |\n  x\n  ---\n  y\n--- # c\n\n---\nc: 1\n...\n";
        assert_eq!(
            texts(Syntax::Yaml, text),
            [(1, 2, "\na: 1\nb: |\n  x\n  ---\n  y\n"), (2, 10, "\nc: 1\n")]
        );
        assert_eq!(texts(Syntax::Yaml, "---a: 1\n"), [(1, 0, "---a: 1\n")]);
        assert_eq!(texts(Syntax::Yaml, "\u{feff}a: 1"), [(1, 0, "a: 1")]);
        assert_eq!(texts(Syntax::Yaml, "--- {a: 1}\r\n---\r\n"), [(1, 0, " {a: 1}\r\n")]);
        assert_eq!(texts(Syntax::Yaml, ""), []);
    }

    #[test]
    fn json_is_cut_between_values() {
        assert_eq!(texts(Syntax::Json, "{}\n\n {\"a\":1}"), [(1, 0, "{}"), (2, 2, "{\"a\":1}")]);
        let (documents, error) = documents(Syntax::Json, "{}\n{\"a\":");
        assert_eq!(documents.len(), 1);
        assert_eq!(error.unwrap().line, Some(2));
    }
}
