//! The kernel's own interface: a transaction is one batch of nf_tables messages, and a table is
//! read by dumps.

pub(super) mod batch;
mod dump;
pub(super) mod expression;
mod notice;
mod record;
mod refusal;
mod touched;
pub(super) mod userdata;

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use crate::{
    netlink::{Error, Membership, Socket, Writer},
    nftables::{
        self,
        ruleset::{ElementDump, Family, Operation, SetDef, Table, TableDump, Transaction},
        transport::{CommitStats, Elements, Transport, TransportError},
    },
};

use self::{batch::Batch, record::Record};
pub use self::{
    notice::{Author, Listener},
    touched::{Touched, TouchedElements, TouchedTable},
};

/// The largest buffer that is kept for the next transaction, in bytes.
const KEPT_BUFFER: usize = 256 * 1024;

/// The number of attempts to read a table that changes while it is read.
const READ_ATTEMPTS: usize = 20;

/// The attempts that are made however long they take.
const LEAST_READ_ATTEMPTS: usize = 3;

/// The time that further attempts to read a table may begin.
const READ_FOR: Duration = Duration::from_millis(500);

/// The number of attempts to commit to an expected generation while other programs commit to other
/// tables.
const COMMIT_ATTEMPTS: usize = 8;

/// The numbers of elements in a message with which a transaction that was refused is sent again,
/// until one fits. The receive buffer takes the errors of some 20,000 messages.
const DIVISIONS: [usize; 2] = [1, 16];

/// Commits and reads by netlink, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NetlinkTransport {
    socket: Socket,
    buffer: Writer,
    /// The commits of other programs, from a read until [`Transport::release`].
    record: Option<Record>,
    /// The generation of the last commit that was not notified of, until [`Transport::release`].
    unheard: Option<u32>,
    /// The ports of other sockets whose commits are no other program's.
    disregarded: Vec<u32>,
    /// The tables that changed all the time when they were read last.
    changing: Vec<Table>,
}

impl NetlinkTransport {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, TransportError> {
        let socket = Socket::open(libc::NETLINK_NETFILTER)?;
        Ok(Self {
            socket,
            buffer: Writer::new(),
            record: None,
            unheard: None,
            disregarded: Vec::new(),
            changing: Vec::new(),
        })
    }

    /// Commits a transaction, with as many elements in a message, and without notifications to a
    /// listener.
    fn commit_batch(
        &mut self,
        transaction: &Transaction,
        elements_per_message: usize,
        unheard_by: Option<&Membership>,
    ) -> Result<CommitStats, TransportError> {
        let mut stats =
            CommitStats { operations: transaction.operations().len(), ..CommitStats::default() };
        let sequence = self.socket.sequences(batch::message_bound(transaction));
        let buffer = std::mem::take(&mut self.buffer);
        let mut batch = batch::encode(transaction, sequence, buffer, elements_per_message);
        if batch.writer.overflowed() {
            return Err(Error::TooLong.into());
        }
        stats.bytes = batch.writer.len();
        let sent = Instant::now();
        let result = match (unheard_by, transaction.generation()) {
            (Some(listener), _) => self.send_unheard(transaction, &mut batch, listener),
            (None, Some(expected)) => self.commit_expecting(transaction, &mut batch, expected),
            (None, None) => self.send(transaction, &batch).map(|()| false),
        };
        stats.commit = sent.elapsed();
        if batch.writer.len() <= KEPT_BUFFER {
            self.buffer = std::mem::take(&mut batch.writer);
        }
        stats.overtaken = result?;
        Ok(stats)
    }

    /// Commits a batch, unless another program has changed a table since the table was read at the
    /// generation `expected`. Returns whether one may have, at the time of the commit.
    fn commit_expecting(
        &mut self,
        transaction: &Transaction,
        batch: &mut Batch,
        expected: u32,
    ) -> Result<bool, TransportError> {
        if self.record.is_none() {
            batch.expect(expected);
            return self.send(transaction, batch).map(|()| false);
        }
        for _ in 0..COMMIT_ATTEMPTS {
            let Some(newest) = self.newest_unchanged_since(expected, |_| true)? else {
                return Err(TransportError::Conflict);
            };
            batch.expect(newest);
            match self.send(transaction, batch) {
                Err(TransportError::Conflict) => {}
                result => return result.map(|()| false),
            }
        }
        // There is always another commit between the question and the batch, which is long. So the
        // question comes after the batch.
        batch.expect(batch::ANY_GENERATION);
        let result = self.send(transaction, batch);
        let is_unchanged = self.newest_unchanged_since(expected, |_| true)?.is_some();
        match result {
            Ok(()) => Ok(!is_unchanged),
            Err(_) if !is_unchanged => Err(TransportError::Conflict),
            Err(error) => Err(error),
        }
    }

    /// Commits a batch while a listener gets no notifications. Returns whether another program may
    /// have committed something before the listener got them again.
    fn send_unheard(
        &mut self,
        transaction: &Transaction,
        batch: &mut Batch,
        listener: &Membership,
    ) -> Result<bool, TransportError> {
        let newest = match (self.unheard, transaction.generation()) {
            (Some(newest), _) => Some(newest),
            (None, Some(expected)) => self.newest_unchanged_since(expected, |_| true)?,
            (None, None) => nftables::generation(&mut self.socket)?,
        };
        let newest = newest.ok_or(TransportError::Conflict)?;
        // The record listens as well.
        self.record = None;
        batch.expect(newest);
        listener.without(|| self.send(transaction, batch))??;
        // The kernel counts commits that change something, and leaves zero out.
        for newest in [newest.checked_add(1).unwrap_or(1), newest] {
            if nftables::is_generation(&mut self.socket, newest)? {
                self.unheard = Some(newest);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the newest generation; `None` if another program may have changed one of the tables
    /// that were read, and are `among` these, since the generation `expected`.
    fn newest_unchanged_since(
        &mut self,
        expected: u32,
        among: impl Fn(&Table) -> bool,
    ) -> Result<Option<u32>, Error> {
        let Some(record) = &mut self.record else { return Ok(None) };
        match record.update(&mut self.socket) {
            Ok(newest) => Ok(record.is_unchanged_since(expected, among).then_some(newest)),
            Err(Error::Overrun) => {
                self.record = None;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, transaction: &Transaction, batch: &Batch) -> Result<(), TransportError> {
        let errors = self.socket.transaction(batch.writer.as_slice(), batch.acked)?;
        match errors.is_empty() {
            true => Ok(()),
            false => Err(refusal::decode(transaction, batch, errors)),
        }
    }

    /// Begins or continues the record of commits to `table`; returns the generation.
    fn watch(&mut self, table: &Table) -> Result<Option<u32>, Error> {
        if self.record.is_none() {
            let mut own = self.disregarded.clone();
            own.push(self.socket.port()?);
            self.record = Some(Record::open(&own)?);
        }
        let Some(record) = &mut self.record else { return Ok(None) };
        record.watch(table);
        match record.update(&mut self.socket) {
            Ok(generation) => Ok(Some(generation)),
            Err(Error::Overrun) => {
                self.record = None;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Transport for NetlinkTransport {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        if transaction.is_empty() {
            return Ok(CommitStats::default());
        }
        let result = self.commit_batch(transaction, batch::ELEMENTS_PER_MESSAGE, None);
        if !is_divisible(transaction, &result) {
            return result;
        }
        // The kernel names one element of a message at most, and kernels before 5.19 none.
        for elements_per_message in DIVISIONS {
            match self.commit_batch(transaction, elements_per_message, None) {
                // The longer batch may be too long, or its answers too many, which is not why the
                // first one was refused.
                Err(error) if !error.is_conflict() && !names(transaction, &error) => {}
                divided => return divided,
            }
        }
        result
    }

    fn commit_unheard(
        &mut self,
        transaction: &Transaction,
        listener: &Membership,
    ) -> Result<CommitStats, TransportError> {
        let all = batch::ELEMENTS_PER_MESSAGE;
        match self.commit_batch(transaction, all, Some(listener)) {
            // The next attempt finds out what.
            Err(TransportError::Refused(..)) => Err(TransportError::Conflict),
            result => result,
        }
    }

    fn read(
        &mut self,
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError> {
        // A kernel without nf_tables has no table.
        if nftables::generation(&mut self.socket)?.is_none() {
            return Ok(None);
        }
        let begun = Instant::now();
        // A program that changed the table during all attempts of before may do so still.
        let was_changing = self.changing.contains(table);
        self.changing.retain(|changing| changing != table);
        let mut is_hasty = was_changing;
        let mut torn = None;
        for attempt in 0..READ_ATTEMPTS {
            let is_late = attempt >= LEAST_READ_ATTEMPTS && begun.elapsed() >= READ_FOR;
            if is_late || was_changing && is_hasty && torn.is_some() {
                break;
            }
            let generation = self.watch(table)?;
            let read = dump::read_table(&mut self.socket, table, elements, generation, is_hasty);
            // The dumps show one state if nothing in the tables was changed between them.
            let is_unchanged = match generation {
                Some(generation) => {
                    self.newest_unchanged_since(generation, |it| it == table)?.is_some()
                }
                None => false,
            };
            is_hasty = !is_unchanged;
            match read {
                Ok((read, true)) if is_unchanged => return Ok(read),
                Ok((read, _)) => torn = Some(read),
                Err(Error::Interrupted) => {}
                Err(error) if is_unchanged => return Err(error.into()),
                Err(_) => {}
            }
        }
        self.changing.push(table.clone());
        Err(match torn {
            Some(torn) => TransportError::Changing(torn.map(Box::new)),
            None => Error::Interrupted.into(),
        })
    }

    fn scan_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
        visit: &mut dyn FnMut(ElementDump) -> ControlFlow<()>,
    ) -> Result<bool, TransportError> {
        match dump::scan_elements(table, set, visit) {
            Ok(()) => Ok(true),
            Err(Error::Kernel(error)) if error.errno == libc::ENOENT => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn release(&mut self) {
        self.record = None;
        self.unheard = None;
    }

    fn disregard(&mut self, port: u32) {
        self.disregarded.push(port);
    }

    fn port(&self) -> Option<u32> {
        self.socket.port().ok()
    }
}

/// Whether an operation that was refused has several elements.
fn is_divisible(transaction: &Transaction, result: &Result<CommitStats, TransportError>) -> bool {
    let refused = result.as_ref().err().into_iter().flat_map(|error| refused(transaction, error));
    refused.into_iter().any(|operation| operation.elements() > 1)
}

/// Whether an error names operations.
fn names(transaction: &Transaction, error: &TransportError) -> bool {
    refused(transaction, error).next().is_some()
}

fn refused<'a>(
    transaction: &'a Transaction,
    error: &'a TransportError,
) -> impl Iterator<Item = &'a Operation> {
    error.refusals().filter_map(|refusal| transaction.operations().get(refusal.operation))
}

impl Family {
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`, `linux/netfilter.h`.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Ip => libc::NFPROTO_IPV4 as u8,
            Self::Ip6 => libc::NFPROTO_IPV6 as u8,
        }
    }
}
