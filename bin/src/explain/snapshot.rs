//! Snapshots: JSON lines, so that neither side holds all of one. Objects are there as far as the
//! proxy keeps them: no labels, no annotations, and nothing of a Secret. Problems with annotations
//! are there without the values.

use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};
use switchyard_core::explain::{KnownNode, KnownService, Picture};

use super::history::Sync;

/// The version of the format.
pub const VERSION: u32 = 1;
/// The longest line that is read, in bytes.
const LONGEST: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// The first line.
    Snapshot {
        /// The version of the format.
        version: u32,
        /// The version of the program.
        program: String,
        /// The time, RFC 3339.
        taken: String,
    },
    Node(Box<KnownNode>),
    Service(Box<KnownService>),
    /// A sync, the oldest first.
    Sync(Box<Sync>),
    /// A table of the proxy as the kernel has it
    /// ([`KernelTable`](switchyard_core::proxier::KernelTable)).
    Kernel {
        table: String,
        /// The text; cut if it is long.
        text: String,
    },
    /// The names of the tables of others.
    OtherTables(Vec<String>),
    /// All metrics, in Prometheus' text format.
    Metrics(String),
    /// The last line.
    End {
        services: usize,
        /// Whether the kernel had all of it; earlier versions did not say so.
        #[serde(default, rename = "isSettled")]
        is_settled: bool,
    },
    /// The only line, if the proxy refuses to answer.
    Error(String),
}

impl Line {
    /// Returns the line of a Service, without values of annotations that its problems quote.
    pub fn service(mut service: KnownService) -> Self {
        for problem in &mut service.problems {
            let quoted = problem.split_once('`').zip(problem.rsplit_once('`'));
            if let Some(((before, _), (_, after))) = quoted
                && before.starts_with("metadata.annotations")
            {
                *problem = format!("{before}`...`{after}");
            }
        }
        Self::Service(Box::new(service))
    }
}

#[derive(Debug, PartialEq)]
pub struct Snapshot {
    pub picture: Picture,
    /// Whether the kernel had all of it, and nothing was to be repaired.
    pub is_settled: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("cannot read line {0}")]
    Io(usize, #[source] io::Error),
    #[error("line {0} is not one of a snapshot")]
    Line(usize, #[source] serde_json::Error),
    #[error("the snapshot has version {0}; this program reads version {VERSION}")]
    Version(u32),
    #[error("the proxy does not answer: {0}")]
    Refused(String),
    /// The end, or the node, is missing.
    #[error("the snapshot is incomplete")]
    Incomplete,
}

pub fn read(mut input: impl BufRead) -> Result<Snapshot, SnapshotError> {
    let (mut node, mut services) = (None, Vec::new());
    let mut text = String::new();
    for number in 1.. {
        text.clear();
        let length = input.by_ref().take(LONGEST).read_line(&mut text);
        if length.map_err(|error| SnapshotError::Io(number, error))? == 0 {
            break;
        }
        let line = serde_json::from_str(&text);
        match line.map_err(|error| SnapshotError::Line(number, error))? {
            Line::Snapshot { version: VERSION, .. }
            | Line::Sync(_)
            | Line::Kernel { .. }
            | Line::OtherTables(_)
            | Line::Metrics(_) => {}
            Line::Snapshot { version, .. } => return Err(SnapshotError::Version(version)),
            Line::Node(found) => node = Some(*found),
            Line::Service(service) => services.push(*service),
            Line::Error(why) => return Err(SnapshotError::Refused(why)),
            Line::End { services: count, is_settled } if count == services.len() => {
                let node = node.ok_or(SnapshotError::Incomplete)?;
                return Ok(Snapshot { picture: Picture { node, services }, is_settled });
            }
            Line::End { .. } => break,
        }
    }
    Err(SnapshotError::Incomplete)
}
