//! How a transaction gets to the kernel, and how a table is read back.

use std::{io, time::Duration};

use crate::{
    json::JsonTransport,
    netlink::NetlinkTransport,
    ruleset::{Family, SetName, TableDump, Transaction},
};

/// A way to the kernel. All calls block until the kernel is done: a commit takes as long as it
/// takes, 0.1 s for 60,000 elements by netlink.
pub trait Transport: Send {
    /// Commits a transaction; nothing of it is done if it fails. An empty one succeeds.
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError>;

    /// Reads the table of a family; `None` if there is none. Elements are read only of the sets
    /// `elements_of`, and only if their definition is one of ours.
    fn read(
        &mut self,
        family: Family,
        elements_of: &[SetName],
    ) -> Result<Option<TableDump>, TransportError>;

    /// The name of the transport, for people.
    fn name(&self) -> &'static str;

    /// The netlink port from which it commits, by which the kernel's notifications of its own
    /// commits can be told from others'; `None` if it has no such port.
    fn port(&self) -> Option<u32> {
        None
    }
}

impl Transport for Box<dyn Transport> {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        (**self).commit(transaction)
    }

    fn read(
        &mut self,
        family: Family,
        elements_of: &[SetName],
    ) -> Result<Option<TableDump>, TransportError> {
        (**self).read(family, elements_of)
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn port(&self) -> Option<u32> {
        (**self).port()
    }
}

/// Which transport to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// The kernel's own interface.
    #[default]
    Netlink,
    /// The program `nft`, with JSON.
    Json,
}

impl TransportKind {
    /// Opens the transport, in the network namespace of this thread.
    pub fn open(self) -> Result<Box<dyn Transport>, TransportError> {
        Ok(match self {
            Self::Netlink => Box::new(NetlinkTransport::open()?),
            Self::Json => Box::new(JsonTransport::open()?),
        })
    }
}

/// What a commit took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// The number of operations.
    pub operations: usize,
    /// The number of elements added and deleted.
    pub elements: usize,
    /// The number of bytes sent.
    pub bytes: usize,
    /// How long encoding took.
    pub encode: Duration,
    /// How long the kernel (or the program) took.
    pub commit: Duration,
}

impl CommitStats {
    /// What is known of a transaction before it is sent.
    pub(crate) fn of(transaction: &Transaction) -> Self {
        Self {
            operations: transaction.operations().len(),
            elements: transaction.operations().iter().map(|o| o.elements()).sum(),
            ..Self::default()
        }
    }
}

/// What the kernel refused in a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The index of the operation.
    pub operation: usize,
    /// What it would have done, in words: the verb, the object and, if known, the element.
    pub subject: String,
    /// The error number, if known.
    pub errno: Option<i32>,
    /// The reason, in words.
    pub reason: String,
}

/// Why nothing was committed, or nothing could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Somebody else changed the ruleset since the generation that the transaction expects: read
    /// again and retry.
    #[error("the ruleset was changed by somebody else meanwhile")]
    Conflict,
    /// The kernel refused the transaction; nothing of it was done.
    #[error("cannot {}: {}{}", .0.subject, .0.reason, also(.1))]
    Refused(Refusal, Vec<Refusal>),
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Netlink(#[from] ::netlink::Error),
    /// The program `nft` cannot be used.
    #[error("cannot use {program}: {reason}")]
    Unusable {
        /// The program.
        program: String,
        /// Why.
        reason: String,
    },
    /// The program `nft` could not be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// The program `nft` failed.
    #[error("{program} failed: {message}")]
    Program {
        /// The program.
        program: String,
        /// What it said.
        message: String,
    },
    /// What was read makes no sense.
    #[error("cannot understand the ruleset: {0}")]
    Malformed(String),
}

impl TransportError {
    /// Whether the same may succeed after reading the table again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict)
    }

    /// The error number of the first refusal, if known.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(first, _) => first.errno,
            Self::Netlink(error) => error.errno(),
            _ => None,
        }
    }
}

fn also(others: &[Refusal]) -> String {
    match others.len() {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    }
}
