//! The kernel's own interface: a transaction is one batch of nf_tables messages, and a table is
//! read by dumps.

mod batch;
mod dump;
mod expression;
mod notice;
mod record;
mod refusal;
mod userdata;

use std::time::Instant;

use switchyard_netlink::{Error, Socket, Writer};

pub use self::notice::{Author, Listener};
use self::{batch::Batch, record::Record};
use crate::{
    ruleset::{ElementDump, Family, SetDef, Table, TableDump, Transaction},
    transport::{CommitStats, Elements, Transport, TransportError},
};

/// The largest buffer that is kept for the next transaction, in bytes.
const KEPT_BUFFER: usize = 256 * 1024;

/// The number of attempts to read a table that changes while it is read.
const READ_ATTEMPTS: usize = 20;

/// The number of attempts to commit to an expected generation while other programs commit to other
/// tables.
const COMMIT_ATTEMPTS: usize = 8;

/// Commits and reads by netlink, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NetlinkTransport {
    socket: Socket,
    buffer: Writer,
    /// What other programs commit, from a read until [`Transport::release`].
    record: Option<Record>,
}

impl NetlinkTransport {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, TransportError> {
        let socket = Socket::open(libc::NETLINK_NETFILTER)?;
        Ok(Self { socket, buffer: Writer::new(), record: None })
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
            let Some(newest) = self.newest_unchanged_since(expected)? else {
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
        let is_unchanged = self.newest_unchanged_since(expected)?.is_some();
        match result {
            Ok(()) => Ok(!is_unchanged),
            Err(_) if !is_unchanged => Err(TransportError::Conflict),
            Err(error) => Err(error),
        }
    }

    /// Returns the newest generation; `None` if another program may have changed a table since the
    /// generation `expected`.
    fn newest_unchanged_since(&mut self, expected: u32) -> Result<Option<u32>, Error> {
        let Some(record) = &mut self.record else { return Ok(None) };
        match record.update(&mut self.socket) {
            Ok(newest) => Ok(record.is_unchanged_since(expected).then_some(newest)),
            Err(Error::Overrun) => {
                self.record = None;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, transaction: &Transaction, batch: &Batch) -> Result<(), TransportError> {
        let errors = self.socket.batch(batch.writer.as_slice(), batch.acked)?;
        match errors.is_empty() {
            true => Ok(()),
            false => Err(refusal::decode(transaction, batch, errors)),
        }
    }

    /// Begins or continues the record of commits to `table`; returns the generation.
    fn watch(&mut self, table: &Table) -> Result<Option<u32>, Error> {
        if self.record.is_none() {
            self.record = Some(Record::open(self.socket.port()?)?);
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
        let mut stats =
            CommitStats { operations: transaction.operations().len(), ..CommitStats::default() };
        if transaction.is_empty() {
            return Ok(stats);
        }
        let sequence = self.socket.sequences(batch::message_bound(transaction));
        let mut batch = batch::encode(transaction, sequence, std::mem::take(&mut self.buffer));
        if batch.writer.overflowed() {
            return Err(Error::TooLong.into());
        }
        stats.bytes = batch.writer.len();
        let sent = Instant::now();
        let result = match transaction.generation() {
            Some(expected) => self.commit_expecting(transaction, &mut batch, expected),
            None => self.send(transaction, &batch).map(|()| false),
        };
        stats.commit = sent.elapsed();
        if batch.writer.len() <= KEPT_BUFFER {
            self.buffer = std::mem::take(&mut batch.writer);
        }
        stats.overtaken = result?;
        Ok(stats)
    }

    fn read(
        &mut self,
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError> {
        for _ in 0..READ_ATTEMPTS {
            let Some(generation) = self.watch(table)? else { continue };
            let read = dump::read_table(&mut self.socket, table, elements, generation);
            // The dumps show one state if nothing in the tables was changed between them.
            if self.newest_unchanged_since(generation)?.is_some() {
                return Ok(read?);
            }
        }
        Err(Error::Interrupted.into())
    }

    fn read_elements(
        &mut self,
        table: &Table,
        set: &SetDef,
    ) -> Result<Option<Vec<ElementDump>>, TransportError> {
        match dump::read_elements(&mut self.socket, table, set) {
            Ok(elements) => Ok(Some(elements)),
            Err(Error::Kernel(error)) if error.errno == libc::ENOENT => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn release(&mut self) {
        self.record = None;
    }

    fn port(&self) -> Option<u32> {
        self.socket.port().ok()
    }
}

impl Family {
    /// `NFPROTO_IPV4` or `NFPROTO_IPV6`, `linux/netfilter.h`.
    fn number(self) -> u8 {
        match self {
            Self::Ip => libc::NFPROTO_IPV4 as u8,
            Self::Ip6 => libc::NFPROTO_IPV6 as u8,
        }
    }
}
