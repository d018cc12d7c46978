//! Problems with manifests, and where they are.

use std::{fmt, path::PathBuf};

use switchyard_core::objects::ObjectKey;

/// The severity of a [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The manifest was read, but probably has another effect than its author meant.
    Warning,
    /// A part of the manifest could not be read.
    Error,
}

/// A problem with a manifest.
///
/// Prints as `web.yaml, document 2, line 14: Service default/web: spec.ports[0].port: ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether the manifest was read.
    pub severity: Severity,
    /// The file, relative to the manifest directory; empty for the directory itself.
    pub file: PathBuf,
    /// The number of the document in the file, from 1; documents without content are not counted.
    pub document: Option<usize>,
    /// The line in the file, from 1, if the decoder reports the line.
    pub line: Option<u64>,
    /// The object, if it is known.
    pub object: Option<ObjectKey>,
    /// The field as a path such as `spec.ports[0].port`; may be empty.
    pub field: String,
    /// The description of the problem.
    pub message: String,
}

impl Problem {
    /// Returns an error that concerns a file as a whole.
    pub(super) fn with_file(file: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            file: file.into(),
            document: None,
            line: None,
            object: None,
            field: String::new(),
            message: message.into(),
        }
    }

    /// Returns the place of the problem: file, document and line.
    pub(super) fn place(&self) -> String {
        let mut place = self.file.display().to_string();
        if place.is_empty() {
            place.push('.');
        }
        if let Some(document) = self.document {
            place.push_str(&format!(", document {document}"));
        }
        if let Some(line) = self.line {
            place.push_str(&format!(", line {line}"));
        }
        place
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place())?;
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}
