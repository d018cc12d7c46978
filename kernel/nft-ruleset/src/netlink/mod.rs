//! The kernel's own interface: a transaction is one batch of nf_tables messages, and a table is
//! read by dumps.

mod batch;
mod dump;
mod expression;
mod notice;
mod refusal;
mod userdata;

use std::time::Instant;

use switchyard_netlink::{Error, Socket, Writer};

pub use self::notice::{Author, Listener};
use crate::{
    ruleset::{ElementDump, Family, SetDef, Table, TableDump, Transaction},
    transport::{CommitStats, Elements, Transport, TransportError},
};

/// The largest buffer that is kept for the next transaction, in bytes.
const KEPT_BUFFER: usize = 256 * 1024;

/// The number of attempts to read a table that changes while it is read.
const READ_ATTEMPTS: usize = 20;

/// Commits and reads by netlink, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct NetlinkTransport {
    socket: Socket,
    buffer: Writer,
}

impl NetlinkTransport {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, TransportError> {
        let socket = Socket::open(libc::NETLINK_NETFILTER)?;
        Ok(Self { socket, buffer: Writer::new() })
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
        table: &Table,
        elements: Elements,
    ) -> Result<Option<TableDump>, TransportError> {
        for _ in 0..READ_ATTEMPTS {
            let before = dump::generation(&mut self.socket)?;
            let read = dump::read_table(&mut self.socket, table, elements, before);
            // The dumps show one state if nothing was committed between them.
            if dump::generation(&mut self.socket)? == before {
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
