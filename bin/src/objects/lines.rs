//! The lines of both sides, which `docs/objects.schema.json` describes.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use switchyard_core::objects::{Kind, Metadata, ObjectKey};
use tokio::io::{self, AsyncBufRead, AsyncBufReadExt};

use crate::local_socket::ProblemLine;

/// The version of the protocol.
pub(super) const VERSION: u32 = 1;
/// The longest line of a client, in bytes; an API server keeps no object above 1.5 MiB.
const LONGEST: usize = 2 << 20;

/// A line of the client.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Request<'a> {
    /// A list of all objects begins.
    List,
    /// The list ends.
    Synced,
    /// The object exists and looks like this now.
    #[serde(borrow)]
    Apply(&'a RawValue),
    /// The same for the Node of the proxy.
    #[serde(borrow)]
    Node(&'a RawValue),
    /// The object is gone.
    Delete(Name),
    /// A number that is answered once the engine has taken all that came before.
    Confirm(u64),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Name {
    kind: String,
    #[serde(default)]
    namespace: String,
    name: String,
}

impl Name {
    /// Returns the key; `None` if the kind is not one that is read.
    pub(super) fn key(self) -> Option<ObjectKey> {
        let Self { kind, namespace, name } = self;
        let kind = Kind::ALL.into_iter().find(|known| known.as_str() == kind)?;
        Some(ObjectKey::new(kind, &Metadata { name, namespace, ..Metadata::default() }))
    }
}

/// A line of the server.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Answer<'a> {
    /// The first line.
    Hello {
        /// The version of the protocol.
        version: u32,
        /// The version of the program.
        program: &'a str,
        /// The name of the proxy's Node.
        node: &'a str,
    },
    /// A line that has no effect.
    Error {
        /// The number of the client's line, from 1.
        line: Option<u64>,
        /// The object, if its name is known.
        object: Option<String>,
        /// The field, which may be empty.
        field: &'a str,
        message: &'a str,
    },
    /// A value in an object that cannot be used; the rest of the object is.
    Problem(ProblemLine<'a>),
    /// The list is complete.
    Synced {
        /// The number of objects that there are.
        objects: usize,
        /// Whether each line of the list could be read; if not, the list removed nothing.
        #[serde(rename = "isWhole")]
        is_whole: bool,
    },
    /// The number of a request to confirm.
    Confirmed(u64),
}

impl<'a> Answer<'a> {
    /// Returns an error that concerns a line as a whole.
    pub(super) fn error(line: Option<u64>, message: &'a str) -> Self {
        Self::Error { line, object: None, field: "", message }
    }
}

/// The lines of a client.
#[derive(Debug)]
pub(super) struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    /// Whether the beginning of the line is gone, since it is too long.
    is_too_long: bool,
    is_taken: bool,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, line: Vec::new(), is_too_long: false, is_taken: false }
    }

    /// Reads a line; `Some(None)` is one that is too long, `None` the end. An unfinished last line
    /// does not count. A call that is dropped loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<Option<Option<&[u8]>>> {
        if self.is_taken {
            // One large line does not keep its memory.
            self.line.clear();
            self.line.shrink_to(LONGEST / 32);
            (self.is_too_long, self.is_taken) = (false, false);
        }
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Ok(None);
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = &read[..end.unwrap_or(read.len())];
            if self.line.len() + part.len() > LONGEST {
                self.is_too_long = true;
                self.line.clear();
            }
            if !self.is_too_long {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                self.is_taken = true;
                return Ok(Some((!self.is_too_long).then_some(&self.line[..])));
            }
        }
    }
}
