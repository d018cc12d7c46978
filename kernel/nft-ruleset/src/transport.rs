//! Transports: what commits transactions and reads tables back.

use std::{io, time::Duration};

use crate::ruleset::{ElementDump, SetDef, Table, TableDump, Transaction};

/// A way to the kernel.
///
/// All calls block until the kernel is done, so a runtime's threads should not make them: a commit
/// of 60,000 elements takes 0.1 s by netlink.
pub trait Transport: Send {
    /// Commits a transaction. After an error, nothing of it was done. An empty transaction succeeds.
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError>;

    /// Reads a table; returns `None` if it does not exist. Of the sets, elements are read only where
    /// [`SetDef`] can express the definition.
    ///
    /// A transport that knows generations keeps a record of the commits of other programs from now on,
    /// for [`Transaction::expect_generation`], until [`Self::release`].
    fn read(
        &mut self,
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError>;

    /// Reads the elements of a set or map, sorted by key; returns `None` if there is no such set.
    fn read_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
    ) -> Result<Option<Vec<ElementDump>>, TransportError>;

    /// Ends what was begun by [`Self::read`], and frees its memory. A transaction that expects a
    /// generation from before then conflicts with all commits since, to whichever table.
    fn release(&mut self) {}

    /// The netlink port from which this transport commits, for [`crate::netlink::Listener::open`];
    /// `None` if its commits have no fixed port.
    fn port(&self) -> Option<u32> {
        None
    }
}

/// Whether a table is read with the elements of its sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// The elements of all sets.
    Include,
    /// No elements: chains, rules and the definitions of sets alone.
    Omit,
}

/// The size and the duration of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitStats {
    /// The number of operations.
    pub operations: usize,
    /// The number of bytes sent.
    pub bytes: usize,
    /// How long the kernel, or the program `nft`, took.
    pub commit: Duration,
    /// Whether another program changed a table, before or after this commit, since the generation
    /// that the transaction expects: the transaction is committed, but perhaps to something else. Only
    /// after several attempts, while others commit to other tables without a pause; otherwise such a
    /// transaction is refused as a conflict.
    pub overtaken: bool,
}

/// An operation that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The index of the operation in the transaction.
    pub operation: usize,
    /// The operation in words: the verb, the object and, if known, the element.
    pub subject: String,
    /// The kernel's error number, if known.
    pub errno: Option<i32>,
    /// The reason in words.
    pub reason: String,
}

/// Why nothing was committed, or a table could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Another program changed a table after the generation that the transaction expects. The caller
    /// should read the table again, and retry.
    #[error("another program changed the ruleset in the meantime")]
    Conflict,
    /// The kernel refused the transaction: the first refusal, and the others.
    #[error("cannot {}: {}{}", .0.subject, .0.reason, also(.1))]
    Refused(Refusal, Vec<Refusal>),
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Netlink(#[from] switchyard_netlink::Error),
    /// The program `nft` lacks something.
    #[error("cannot use {program}: {reason}")]
    Unusable {
        /// The program.
        program: String,
        /// What the program lacks.
        reason: String,
    },
    /// The program `nft` could not be run.
    #[error("cannot run {program}")]
    Run {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// The program `nft` failed.
    #[error("{program} failed: {message}")]
    Program {
        /// The program.
        program: String,
        /// What the program wrote to its standard error.
        message: String,
    },
    /// The transaction or the table has a form that cannot be written or read.
    #[error("cannot understand the ruleset: {0}")]
    Malformed(String),
}

impl TransportError {
    /// Whether another attempt may succeed after the table was read again.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict)
    }

    /// Whether something that the transaction deletes or changes does not exist, such as an element
    /// that has timed out.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Refused(first, _) => first.errno == Some(libc::ENOENT),
            Self::Program { message, .. } => message.contains(NO_SUCH_OBJECT),
            _ => false,
        }
    }
}

/// The text of `ENOENT`, as the program `nft` prints it.
pub(crate) const NO_SUCH_OBJECT: &str = "No such file or directory";

fn also(others: &[Refusal]) -> String {
    match others.len() {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    }
}
