//! For tests: a transport that intercepts commits, and a model of the kernel.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what tests are made of fails by panics"
)]

mod kernel;
mod model;
mod walk;

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

pub use self::{kernel::Kernel, model::Ruleset, walk::Commit};
use crate::nftables::{
    ruleset::{ElementDump, SetDef, Table, TableDump, Transaction},
    transport::{CommitStats, Elements, Transport, TransportError},
};
pub use switchyard_model::testing::{Fate, Packet};

/// Decides whether a transaction is committed, or what is committed instead.
type Intercept = Box<dyn FnMut(&mut Transaction) -> Result<(), TransportError> + Send>;

/// A transport that shows each transaction to a hook first. If the hook returns an error, the
/// commit fails with it.
pub struct InterceptingTransport {
    inner: Option<Box<dyn Transport>>,
    hook: Intercept,
}

impl InterceptingTransport {
    /// Commits to `inner`, and reads from there.
    pub fn new(
        inner: Box<dyn Transport>,
        mut hook: impl FnMut(&Transaction) -> Result<(), TransportError> + Send + 'static,
    ) -> Self {
        Self::altering(inner, move |transaction| hook(transaction))
    }

    /// Commits to `inner` what the hook makes of a transaction. The hook must leave the operations
    /// in their places.
    pub fn altering(
        inner: Box<dyn Transport>,
        hook: impl FnMut(&mut Transaction) -> Result<(), TransportError> + Send + 'static,
    ) -> Self {
        Self { inner: Some(inner), hook: Box::new(hook) }
    }

    /// Commits nowhere: there is no table to read, whatever was committed.
    pub fn without_kernel(
        mut hook: impl FnMut(&Transaction) -> Result<(), TransportError> + Send + 'static,
    ) -> Self {
        Self { inner: None, hook: Box::new(move |transaction| hook(transaction)) }
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
        let mut transaction = transaction.clone();
        (self.hook)(&mut transaction)?;
        match &mut self.inner {
            Some(inner) => inner.commit(&transaction),
            None => Ok(CommitStats::default()),
        }
    }

    fn read(
        &mut self,
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError> {
        match &mut self.inner {
            Some(inner) => inner.read(table, elements),
            None => Ok(None),
        }
    }

    fn read_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
    ) -> Result<Option<Vec<ElementDump>>, TransportError> {
        match &mut self.inner {
            Some(inner) => inner.read_elements(table, set),
            None => Ok(None),
        }
    }

    fn scan_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
        visit: &mut dyn FnMut(ElementDump) -> ControlFlow<()>,
    ) -> Result<bool, TransportError> {
        match &mut self.inner {
            Some(inner) => inner.scan_elements(table, set, visit),
            None => Ok(false),
        }
    }

    fn disregard(&mut self, port: u32) {
        if let Some(inner) = &mut self.inner {
            inner.disregard(port);
        }
    }

    fn release(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.release();
        }
    }

    fn port(&self) -> Option<u32> {
        self.inner.as_ref().and_then(|inner| inner.port())
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
