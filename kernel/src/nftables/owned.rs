//! Batches for a table that belongs to a socket: the kernel removes it when the socket is closed.

use super::{
    abi::{message, rule, table},
    netlink::batch::base_chain,
    ruleset::{BaseChain, ChainKind, Hook},
};
use crate::netlink::{Error, KernelError, Socket, Writer, flags, nfnetlink};

/// Messages of one table, which are committed together.
pub(super) struct Batch<'a> {
    writer: Writer,
    family: u8,
    first: u32,
    count: u32,
    name: &'a str,
}

impl<'a> Batch<'a> {
    /// Begins a batch of less than `most` messages.
    pub(super) fn new(owner: &mut Socket, family: i32, name: &'a str, most: u32) -> Self {
        let first = owner.sequences(most + 2);
        let mut writer = Writer::new();
        nfnetlink::batch_begin(&mut writer, nfnetlink::subsystem::NFTABLES, first, None);
        Self { writer, family: family as u8, first, count: 1, name }
    }

    /// Adds the table, which becomes the socket's, if the batch is sent to the socket that it was
    /// begun with.
    pub(super) fn add_table(&mut self) {
        self.add(message::NEW_TABLE, flags::EXCLUSIVE, |w, name| {
            w.string(table::NAME, name);
            w.be32(table::FLAGS, table::FLAG_OWNER);
        });
    }

    /// Adds a base chain of the type `filter`.
    pub(super) fn add_chain(&mut self, name: &str, hook: Hook, priority: i32) {
        let kind = ChainKind::Filter;
        self.add(message::NEW_CHAIN, flags::EXCLUSIVE, |w, table| {
            base_chain(w, table, &BaseChain { name: name.into(), kind, hook, priority });
        });
    }

    /// Adds a rule of these expressions at the end of a chain.
    pub(super) fn add_rule(&mut self, chain: &str, expressions: impl FnOnce(&mut Writer)) {
        self.add(message::NEW_RULE, flags::APPEND, |w, table| {
            w.string(rule::TABLE, table);
            w.string(rule::CHAIN, chain);
            w.nest(rule::EXPRESSIONS, expressions);
        });
    }

    /// Adds a message with flags besides those of a new object, and returns its number in the
    /// batch.
    pub(super) fn add(&mut self, kind: u8, more: u16, fill: impl FnOnce(&mut Writer, &str)) -> u32 {
        let kind = nfnetlink::kind(nfnetlink::subsystem::NFTABLES, kind);
        let number = self.count;
        self.count += 1;
        let sequence = self.first.wrapping_add(number);
        self.writer.message(kind, flags::CREATE | flags::ACK | more, sequence, |w| {
            nfnetlink::header(w, self.family, 0);
            fill(w, self.name);
        });
        number
    }

    /// Commits all, or nothing if anything is refused, which is an error.
    pub(super) fn commit_all(self, owner: &mut Socket) -> Result<(), Error> {
        let refused = self.commit(owner)?.into_iter().next();
        refused.map_or(Ok(()), |(_, refused)| Err(Error::Kernel(refused)))
    }

    /// Commits all, or nothing if anything is refused: then returns what is, with the numbers.
    pub(super) fn commit(mut self, owner: &mut Socket) -> Result<Vec<(u32, KernelError)>, Error> {
        let end = self.first.wrapping_add(self.count);
        nfnetlink::batch_end(&mut self.writer, nfnetlink::subsystem::NFTABLES, end);
        let refused = owner.transaction(self.writer.as_slice(), end.wrapping_sub(1))?.into_iter();
        Ok(refused.map(|error| (error.sequence.wrapping_sub(self.first), error)).collect())
    }
}
