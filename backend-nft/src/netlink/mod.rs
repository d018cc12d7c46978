//! The kernel's own interface: a transaction is one batch of nf_tables messages, and a table is
//! read by dumps.

mod abi;
mod batch;
mod dump;
mod expression;
mod notice;
mod refusal;
mod userdata;

use std::time::Instant;

use ::netlink::{Error, Socket, Writer};

pub(crate) use self::notice::{Author, Listener};

use crate::{
    ruleset::{Family, SetName, TableDump, Transaction},
    transport::{CommitStats, Transport, TransportError},
};

/// A larger buffer is not kept for the next transaction.
const KEPT_BUFFER: usize = 256 * 1024;

/// How often a table that changes while it is read is read again.
const READ_ATTEMPTS: usize = 20;

/// Commits and reads by netlink, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NetlinkTransport {
    socket: Socket,
    buffer: Writer,
}

impl NetlinkTransport {
    /// Opens a socket.
    pub fn open() -> Result<Self, TransportError> {
        let socket = Socket::open(libc::NETLINK_NETFILTER)?;
        Ok(Self { socket, buffer: Writer::new() })
    }

    /// The generation of the ruleset: it changes with every commit of anybody.
    pub fn generation(&mut self) -> Result<u32, TransportError> {
        Ok(dump::generation(&mut self.socket)?)
    }
}

impl Transport for NetlinkTransport {
    fn commit(&mut self, transaction: &Transaction) -> Result<CommitStats, TransportError> {
        let mut stats = CommitStats::of(transaction);
        if transaction.is_empty() {
            return Ok(stats);
        }
        let begun = Instant::now();
        let sequence = self.socket.sequences(batch::message_bound(transaction));
        let mut batch = batch::encode(transaction, sequence, std::mem::take(&mut self.buffer));
        if batch.writer.overflowed() {
            return Err(Error::TooLong.into());
        }
        stats.bytes = batch.writer.len();
        stats.encode = begun.elapsed();
        let sent = Instant::now();
        let errors = self.socket.batch(batch.writer.as_slice(), batch.acked)?;
        stats.commit = sent.elapsed();
        let result = match errors.is_empty() {
            true => Ok(stats),
            false => Err(refusal::decode(transaction, &batch, errors)),
        };
        if batch.writer.len() <= KEPT_BUFFER {
            self.buffer = std::mem::take(&mut batch.writer);
        }
        result
    }

    fn read(
        &mut self,
        family: Family,
        elements_of: &[SetName],
    ) -> Result<Option<TableDump>, TransportError> {
        for _ in 0..READ_ATTEMPTS {
            let before = dump::generation(&mut self.socket)?;
            let read = dump::table(&mut self.socket, family, elements_of, before);
            // Several dumps tell of one state only if nothing was committed between them.
            if dump::generation(&mut self.socket)? == before {
                return Ok(read?);
            }
        }
        Err(Error::Interrupted.into())
    }

    fn name(&self) -> &'static str {
        "netlink"
    }

    fn port(&self) -> Option<u32> {
        self.socket.port().ok()
    }
}
