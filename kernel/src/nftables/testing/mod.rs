//! For tests: a transport that intercepts commits, and a model of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

mod kernel;
mod meanwhile;
mod model;
mod spoil;
mod walk;

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

pub use self::{
    kernel::Kernel, meanwhile::while_others_commit, model::Ruleset, spoil::spoil, walk::Commit,
};
use crate::nftables::{
    ruleset::{ElementDump, SetDef, Table, TableDump, Transaction},
    transport::{CommitStats, Elements, Transport, TransportError},
};
pub use switchyard_model::testing::{Fate, Packet};

/// Makes a commit of a transaction, or another one, or none.
type Commits =
    Box<dyn FnMut(&mut dyn Transport, &Transaction) -> Result<CommitStats, TransportError> + Send>;

/// Decides whether a table is read, or the elements of one of its sets.
type Reads = Box<dyn FnMut(&Table, Option<&SetDef>) -> Result<(), TransportError> + Send>;

/// A transport that shows each transaction to a hook first, and hands all other calls on. If the
/// hook returns an error, the commit fails with it.
pub struct InterceptingTransport {
    inner: Box<dyn Transport>,
    commits: Commits,
    reads: Reads,
}

impl InterceptingTransport {
    /// Commits to `inner`, and reads from there.
    pub fn new(
        inner: Box<dyn Transport>,
        mut hook: impl FnMut(&Transaction) -> Result<(), TransportError> + Send + 'static,
    ) -> Self {
        Self::committing(inner, move |inner, transaction| {
            hook(transaction)?;
            inner.commit(transaction)
        })
    }

    /// Commits to `inner` what the hook makes of a transaction. The hook must leave the operations
    /// in their places.
    pub fn altering(
        inner: Box<dyn Transport>,
        mut hook: impl FnMut(&mut Transaction) -> Result<(), TransportError> + Send + 'static,
    ) -> Self {
        Self::committing(inner, move |inner, transaction| {
            let mut transaction = transaction.clone();
            hook(&mut transaction)?;
            inner.commit(&transaction)
        })
    }

    /// Has the hook make each commit, to `inner` or elsewhere.
    pub fn committing(
        inner: Box<dyn Transport>,
        commits: impl FnMut(&mut dyn Transport, &Transaction) -> Result<CommitStats, TransportError>
        + Send
        + 'static,
    ) -> Self {
        Self { inner, commits: Box::new(commits), reads: Box::new(|_, _| Ok(())) }
    }

    /// Asks a hook before each read, of a table or of the elements of a set: if it returns an
    /// error, the read fails with it.
    #[must_use]
    pub fn reading(
        mut self,
        hook: impl FnMut(&Table, Option<&SetDef>) -> Result<(), TransportError> + Send + 'static,
    ) -> Self {
        self.reads = Box::new(hook);
        self
    }

    /// Commits nowhere: there is no table to read, whatever was committed.
    pub fn without_kernel(
        mut hook: impl FnMut(&Transaction) -> Result<(), TransportError> + Send + 'static,
    ) -> Self {
        let hook = move |_: &mut dyn Transport, transaction: &Transaction| {
            hook(transaction).map(|()| CommitStats::default())
        };
        Self::committing(Box::new(Kernel::default()), hook)
    }

    /// Commits to `inner`, and records what is committed.
    pub fn recording(inner: Box<dyn Transport>) -> (Self, Recorded) {
        let recorded = Recorded::default();
        let record = recorded.clone();
        let hook = move |transaction: &Transaction| {
            record.lock().push(transaction.clone());
            Ok(())
        };
        (Self::new(inner, hook), recorded)
    }

    /// Commits to `inner`, but fails the next commit whenever the flag is set, and resets the flag.
    pub fn failing(inner: Box<dyn Transport>) -> (Self, Arc<AtomicBool>) {
        let fails = Arc::new(AtomicBool::new(false));
        let flag = fails.clone();
        let hook = move |_: &Transaction| match flag.swap(false, Ordering::Relaxed) {
            true => Err(TransportError::Malformed("made to fail by a test".to_owned())),
            false => Ok(()),
        };
        (Self::new(inner, hook), fails)
    }
}

impl Transport for InterceptingTransport {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        (self.commits)(&mut *self.inner, transaction)
    }

    fn read(
        &mut self,
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError> {
        (self.reads)(table, None)?;
        self.inner.read(table, elements)
    }

    fn scan_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
        visit: &mut dyn FnMut(ElementDump) -> ControlFlow<()>,
    ) -> Result<bool, TransportError> {
        (self.reads)(table, Some(set))?;
        self.inner.scan_elements(table, set, visit)
    }

    fn disregard(&mut self, port: u32) {
        self.inner.disregard(port);
    }

    fn release(&mut self) {
        self.inner.release();
    }

    fn port(&self) -> Option<u32> {
        self.inner.port()
    }
}

/// The transactions that a transport was asked to commit.
#[derive(Clone, Debug, Default)]
pub struct Recorded(Arc<Mutex<Vec<Transaction>>>);

impl Recorded {
    /// Removes and returns the transactions that were recorded so far, each as text.
    pub fn take(&self) -> Vec<String> {
        let transactions = std::mem::take(&mut *self.lock());
        transactions.iter().map(Transaction::to_string).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Transaction>> {
        // A list of transactions is whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
