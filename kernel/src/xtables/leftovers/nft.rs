//! Removal of chains of iptables-nft.

use std::collections::HashSet;

use switchyard_model::IpFamily;

use crate::{
    families::family_number,
    netlink::{
        Error, KernelError, Socket, Writer, flags,
        nfnetlink::{self, subsystem::NFTABLES},
    },
    nftables::{
        self,
        abi::{chain, message, rule},
    },
    xtables::{
        OwnedChains, Table,
        nft_tables::{self, ChainJump},
    },
};

use super::{ATTEMPTS, LeftoverError};

/// Removes the owned chains of a family, in one transaction. Returns whether there was any.
pub(super) fn remove(family: IpFamily, owned: &OwnedChains) -> Result<bool, LeftoverError> {
    let mut socket = nft_tables::open()?;
    for _ in 0..ATTEMPTS {
        let Some(generation) = nftables::generation(&mut socket)? else { return Ok(false) };
        let chains =
            nft_tables::chains(&mut socket, family, |table, name| owned.contains(table, name))?;
        if chains.is_empty() {
            return Ok(false);
        }
        let jumps = nft_tables::jumps(&mut socket, family, None, |table, from, to| {
            owned.contains(table, to) && !owned.contains(table, from)
        })?;
        let (removed, foreign): (Vec<ChainJump>, Vec<ChainJump>) =
            jumps.into_iter().partition(|jump| owned.has_jump(jump.table, &jump.from, &jump.to));
        let removal = Removal { chains, jumps: removed, foreign };
        let errors = removal.commit(&mut socket, family, generation)?;
        match errors.into_iter().next() {
            None => return Ok(true),
            Some(error) if error.errno == libc::ERESTART => {}
            Some(error) => return Err(Error::Kernel(error).into()),
        }
    }
    Err(LeftoverError::Busy)
}

/// The objects to remove from a family's tables.
struct Removal {
    chains: Vec<(Table, String)>,
    jumps: Vec<ChainJump>,
    /// Jumps of other programs to owned chains, which therefore stay, without rules.
    foreign: Vec<ChainJump>,
}

impl Removal {
    /// Removes the jumps, then all rules of the chains, then the chains. Returns what the kernel
    /// refused.
    fn commit(
        &self,
        socket: &mut Socket,
        family: IpFamily,
        generation: u32,
    ) -> Result<Vec<KernelError>, Error> {
        let held: HashSet<(Table, &str)> =
            self.foreign.iter().map(|jump| (jump.table, jump.to.as_str())).collect();
        let count = self.jumps.len() + 2 * self.chains.len() + 2;
        let mut sequence = socket.sequences(u32::try_from(count).unwrap_or(u32::MAX));
        let mut batch = Writer::new();
        nfnetlink::batch_begin(&mut batch, NFTABLES, sequence, Some(generation));
        let mut last = 0;
        let mut add = |kind: u8, fill: &dyn Fn(&mut Writer)| {
            sequence = sequence.wrapping_add(1);
            last = batch.len();
            batch.message(nfnetlink::kind(NFTABLES, kind), flags::REQUEST, sequence, |w| {
                nfnetlink::header(w, family_number(family), 0);
                fill(w);
            });
        };
        for jump in &self.jumps {
            add(message::DEL_RULE, &|w| {
                w.string(rule::TABLE, jump.table.name());
                w.string(rule::CHAIN, &jump.from);
                w.be64(rule::HANDLE, jump.handle);
            });
        }
        for (table, name) in &self.chains {
            add(message::DEL_RULE, &|w| {
                w.string(rule::TABLE, table.name());
                w.string(rule::CHAIN, name);
            });
        }
        for (table, name) in &self.chains {
            if !held.contains(&(*table, name)) {
                add(message::DEL_CHAIN, &|w| {
                    w.string(chain::TABLE, table.name());
                    w.string(chain::NAME, name);
                });
            }
        }
        batch.add_flags(last, flags::ACK);
        nfnetlink::batch_end(&mut batch, NFTABLES, sequence.wrapping_add(1));
        if batch.overflowed() {
            return Err(Error::TooLong);
        }
        socket.batch(batch.as_slice(), sequence)
    }
}
