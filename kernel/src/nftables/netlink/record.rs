//! The record of what other programs commit while tables are read and changed.
//!
//! The kernel counts the commits to all tables of a network namespace. So a generation that has
//! passed does not mean that a table has changed: the notifications of the commits since then show
//! whether one has.

use crate::{
    netlink::{Error, Socket, nfnetlink},
    nftables::{
        self,
        abi::{GROUP, generation},
        ruleset::Table,
    },
};

use super::{notice, touched::is_after};

/// The number of attempts to find out the generation.
const ATTEMPTS: usize = 20;

/// A record of commits of other programs, from when it is opened.
#[derive(Debug)]
pub(super) struct Record {
    listener: Socket,
    /// The tables that were read, each with the generation of the last commit of another program to
    /// it.
    tables: Vec<(Table, Option<u32>)>,
    /// The generation at which the record begins; `None` before it was found out.
    since: Option<u32>,
    /// The tables that the commit whose notifications are being read touches, by index.
    touched: Vec<usize>,
}

impl Record {
    /// Opens a record in the network namespace of the calling thread. The commits of the sockets
    /// with the ports `own` are left out.
    pub(super) fn open(own: &[u32]) -> Result<Self, Error> {
        let listener = Socket::open(libc::NETLINK_NETFILTER)?;
        listener.ignore_requests_of(own)?;
        listener.join(GROUP)?;
        Ok(Self { listener, tables: Vec::new(), since: None, touched: Vec::new() })
    }

    /// Records commits to this table from now on.
    pub(super) fn watch(&mut self, table: &Table) {
        if !self.tables.iter().any(|(known, _)| known == table) {
            self.tables.push((table.clone(), None));
        }
    }

    /// Waits for the end of a commit that is going on, and returns the generation. Everything that
    /// was committed up to this generation is in the record.
    pub(super) fn update(&mut self, socket: &mut Socket) -> Result<u32, Error> {
        for _ in 0..ATTEMPTS {
            let asked =
                nftables::generation(socket)?.ok_or(Error::Malformed("there is no nf_tables"))?;
            // The kernel counts a commit before the commit takes effect and is notified of, but
            // answers this question when both are done.
            let is_current = nftables::is_generation(socket, asked)?;
            let notified = self.read_notifications()?;
            let newest = match notified {
                Some(notified) if !is_current || is_after(notified, asked) => notified,
                _ if is_current => asked,
                _ => continue,
            };
            self.since.get_or_insert(newest);
            return Ok(newest);
        }
        Err(Error::Interrupted)
    }

    /// Whether no other program has changed a table of the record, which is among `tables`, since
    /// `generation`, up to the last update.
    pub(super) fn is_unchanged_since(
        &self,
        generation: u32,
        among: impl Fn(&Table) -> bool,
    ) -> bool {
        let is_known = self.since.is_some_and(|since| !is_after(since, generation));
        let tables = self.tables.iter().filter(|(table, _)| among(table));
        let mut changes = tables.filter_map(|(_, changed)| *changed);
        is_known && !changes.any(|changed| is_after(changed, generation))
    }

    /// Reads all pending notifications; returns the generation of the last commit.
    fn read_notifications(&mut self) -> Result<Option<u32>, Error> {
        let mut last = None;
        while let Some(datagram) = self.listener.receive()? {
            for notification in datagram {
                if notice::ends_commit(&notification) {
                    let attributes = notification.attributes(nfnetlink::HEADER);
                    let id = attributes.be32(generation::ID);
                    let id = id.ok_or(Error::Malformed("no generation"))?;
                    for index in self.touched.drain(..) {
                        self.tables[index].1 = Some(id);
                    }
                    last = Some(id);
                } else {
                    let is_touched =
                        |(table, _): &(Table, _)| notice::is_about(table, &notification);
                    self.touched.extend(self.tables.iter().position(is_touched));
                }
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_wrap() {
        assert!(is_after(2, 1) && !is_after(1, 2) && !is_after(1, 1));
        assert!(is_after(1, u32::MAX) && !is_after(u32::MAX, 1));
    }
}
