//! Transports: what commits transactions and reads tables back.

use std::{io, ops::ControlFlow, time::Duration};

use crate::netlink::Membership;
use crate::nftables::ruleset::{ElementDump, Key, SetDef, Table, TableDump, Transaction};

/// A way to the kernel.
///
/// All calls block until the kernel is done, so a runtime's threads should not make them: a commit
/// of 60,000 elements takes 0.1 s by netlink.
pub trait Transport: Send {
    /// Commits a transaction. After an error, nothing of it was done. An empty transaction
    /// succeeds.
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError>;

    /// Commits a transaction as [`Self::commit`] does, but without notifications, which take a
    /// quarter of the time of a large commit: the kernel makes none for `listener` in the meantime,
    /// and the record that [`Self::read`] began ends. A commit of another program to whichever
    /// table is a conflict, or overtakes the transaction ([`CommitStats::overtaken`]); and what the
    /// kernel refuses is a conflict.
    fn commit_unheard(
        &mut self,
        transaction: &Transaction,
        _listener: &Membership,
    ) -> Result<CommitStats, TransportError> {
        self.commit(transaction)
    }

    /// Reads a table; returns `None` if it does not exist. Of the sets, elements are read only
    /// where [`SetDef`] can express the definition, and not where they time out: packets add them,
    /// as many and as fast as they like. (A transport that runs a program may read them
    /// nevertheless.) If other programs change the table during all attempts, the error has what
    /// was read ([`TransportError::Changing`]).
    ///
    /// A transport that knows generations keeps a record of the commits of other programs from now
    /// on, for [`Transaction::expect_generation`], until [`Self::release`].
    fn read(
        &mut self,
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError>;

    /// Shows the elements of a set or map, in any order, to `visit` until `visit` breaks. Returns
    /// false if there is no such set. For sets with a timeout, which packets change in the
    /// meantime: an element may be shown twice, and an element that was there all the time may be
    /// left out.
    ///
    /// The kernel takes time in proportion to the square of the number of elements that are shown:
    /// 0.4 s for 100,000.
    fn scan_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
        visit: &mut dyn FnMut(ElementDump) -> ControlFlow<()>,
    ) -> Result<bool, TransportError>;

    /// Takes the commits from another netlink port for this transport's own from now on: they do
    /// not conflict with transactions that expect a generation.
    fn disregard(&mut self, _port: u32) {}

    /// Ends what was begun by [`Self::read`], and frees its memory. A transaction that expects a
    /// generation from before then conflicts with all commits since, to whichever table.
    fn release(&mut self) {}

    /// The netlink port from which this transport commits, for [`crate::nftables::netlink::Listener::open`];
    /// `None` if its commits have no fixed port.
    fn port(&self) -> Option<u32> {
        None
    }
}

/// Whether a table is read with the elements of its sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    /// The elements of all sets without a timeout.
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
    /// The time that the kernel, or the program `nft`, took.
    pub commit: Duration,
    /// Whether another program changed a table, before or after this commit, since the generation
    /// that the transaction expects: the transaction is committed, but perhaps to something else.
    /// Only after several attempts, while others commit to other tables without a pause; otherwise
    /// such a transaction is refused as a conflict.
    pub overtaken: bool,
}

/// An operation that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The index of the operation in the transaction; too large for a refusal of the commit as a
    /// whole.
    pub operation: usize,
    /// The element's key, if the refusal concerns one element.
    pub element: Option<Box<Key>>,
    /// The operation in words: the verb, the object and, if known, the element.
    pub subject: String,
    /// The kernel's error number, if known.
    pub errno: Option<i32>,
    /// The reason in words.
    pub reason: String,
}

impl Refusal {
    /// Whether the kernel refuses all changes of the table: another program owns it
    /// (`NFT_TABLE_F_OWNER`), or this one has not the privileges.
    pub fn concerns_table(&self) -> bool {
        match self.errno {
            Some(errno) => errno == libc::EPERM,
            None => self.reason.contains(NOT_PERMITTED),
        }
    }

    /// Whether the kernel had no memory for it, which is no fault of the operation.
    pub fn lacks_memory(&self) -> bool {
        matches!(self.errno, Some(libc::ENOMEM | libc::ENOBUFS))
    }

    /// Whether the kernel has what was to be added already, or has not what was to be deleted.
    pub fn is_made(&self) -> bool {
        matches!(self.errno, Some(libc::ENOENT | libc::EEXIST))
    }
}

/// Why nothing was committed, or a table could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Another program changed a table after the generation that the transaction expects. The
    /// caller should read the table again, and retry.
    #[error("another program changed the ruleset in the meantime")]
    Conflict,
    /// Other programs changed the table again and again while it was read. Each object is as the
    /// object was at some time in the meantime.
    #[error("other programs change the table all the time")]
    Changing(Option<Box<TableDump>>),
    /// The kernel refused the transaction: the first refusal, and the others.
    #[error("cannot {}: {}{}", .0.subject, .0.reason, also(.1))]
    Refused(Refusal, Vec<Refusal>),
    /// The exchange with the kernel failed.
    #[error(transparent)]
    Netlink(#[from] crate::netlink::Error),
    /// The program `nft` lacks something.
    #[error("cannot use {program}: {reason}")]
    Unusable {
        /// The program.
        program: String,
        /// The feature that the program lacks.
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
        /// The text that the program wrote to its standard error.
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

    /// The refusals of single operations, if there are any.
    pub fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        let refused = match self {
            Self::Refused(first, others) => Some((first, others)),
            _ => None,
        };
        refused.into_iter().flat_map(|(first, others)| [first].into_iter().chain(others))
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

    /// Whether the kernel holds something else than the transaction assumes: something is missing,
    /// is there already, or is in use; or the program `nft` reports no number.
    pub fn contradicts_kernel(&self) -> bool {
        let causes = [Some(libc::ENOENT), Some(libc::EEXIST), Some(libc::EBUSY), None];
        self.is_missing() || self.refusals().any(|refusal| causes.contains(&refusal.errno))
    }
}

/// The text of `ENOENT`, as the program `nft` prints it.
pub(crate) const NO_SUCH_OBJECT: &str = "No such file or directory";

/// The text of `EPERM`, as the program `nft` prints it.
const NOT_PERMITTED: &str = "Operation not permitted";

fn also(others: &[Refusal]) -> String {
    match others.len() {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    }
}
