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
    xtables::{OwnedChains, Table, nft_tables},
};

use super::{ATTEMPTS, LeftoverError};

/// The most rules or chains that are deleted at once. While the kernel commits, no other program
/// can; and if anybody listens, the kernel allocates a page for each object to notify listeners,
/// and keeps all until the commit ends.
const AT_ONCE: usize = 1_000;

/// An object to delete.
enum Object {
    Rule { table: Table, chain: String, handle: u64 },
    Chain { table: Table, name: String },
}

/// A rule, by what becomes of it.
enum Found {
    /// A rule of an owned chain.
    Owned(Object),
    /// An owned jump to an owned chain, in another chain.
    Jump(Object),
    /// Another program's jump to the chain with this name, which therefore stays, without rules.
    Foreign(Table, String),
}

/// Removes the owned chains of a family: the jumps in one transaction, after which no packet comes
/// to the chains, and then the rest by and by. Returns whether there was any.
pub(super) fn remove(family: IpFamily, owned: &OwnedChains) -> Result<bool, LeftoverError> {
    let mut socket = nft_tables::open()?;
    let mut is_any = false;
    let mut busy = LeftoverError::Busy;
    for _ in 0..ATTEMPTS {
        let Some(generation) = nftables::generation(&mut socket)? else { return Ok(false) };
        let chains =
            nft_tables::chains(&mut socket, family, |table, name| owned.contains(table, name))?;
        if chains.is_empty() {
            return Ok(is_any);
        }
        is_any = true;
        let found = nft_tables::rules(&mut socket, family, None, |table, from, handle, to| {
            let object = || Object::Rule { table, chain: from.to_owned(), handle };
            if owned.contains(table, from) {
                return Some(Found::Owned(object()));
            }
            let to = to.filter(|to| owned.contains(table, to))?;
            Some(match owned.has_jump(table, from, to) {
                true => Found::Jump(object()),
                false => Found::Foreign(table, to.to_owned()),
            })
        })?;
        let (mut jumps, mut rules, mut held) = (Vec::new(), Vec::new(), HashSet::new());
        for found in found {
            match found {
                Found::Owned(rule) => rules.push(rule),
                Found::Jump(jump) => jumps.push(jump),
                Found::Foreign(table, to) => _ = held.insert((table, to)),
            }
        }
        let free = chains.into_iter().filter(|chain| !held.contains(chain));
        let free: Vec<_> = free.map(|(table, name)| Object::Chain { table, name }).collect();
        let mut failure = delete(&mut socket, family, &jumps, Some(generation))?;
        if failure.is_none() {
            for some in rules.chunks(AT_ONCE).chain(free.chunks(AT_ONCE)) {
                let refused = delete(&mut socket, family, some, None)?;
                failure = failure.or(refused);
            }
        }
        match failure {
            None => return Ok(true),
            Some(error) if error.errno == libc::ERESTART => {}
            // Perhaps another program leads there since the rules were read.
            Some(error) if error.errno == libc::EBUSY => busy = Error::Kernel(error).into(),
            Some(error) => return Err(Error::Kernel(error).into()),
        }
    }
    Err(busy)
}

/// Deletes objects at once, but for those that the kernel refuses to delete. Returns the first
/// refusal, unless the object is gone.
fn delete(
    socket: &mut Socket,
    family: IpFamily,
    objects: &[Object],
    generation: Option<u32>,
) -> Result<Option<KernelError>, Error> {
    let mut objects: Vec<&Object> = objects.iter().collect();
    let mut failure = None;
    while !objects.is_empty() {
        let begin = socket.sequences(u32::try_from(objects.len() + 2).unwrap_or(u32::MAX));
        let errors = send(socket, family, &objects, begin, generation)?;
        let place = |error: &KernelError| error.sequence.wrapping_sub(begin) as usize;
        let refused: HashSet<usize> = errors.iter().map(place).collect();
        let count = objects.len();
        let mut places = 1..;
        objects.retain(|_| places.next().is_none_or(|place| !refused.contains(&place)));
        let is_whole = objects.len() == count;
        let is_gone = |error: &KernelError| error.errno == libc::ENOENT;
        let is_done = errors.is_empty();
        failure = failure.or(errors.into_iter().find(|error| is_whole || !is_gone(error)));
        if is_done || is_whole {
            break;
        }
    }
    Ok(failure)
}

/// Sends a transaction, and returns what the kernel refused, by sequence numbers that follow
/// `begin`.
fn send(
    socket: &mut Socket,
    family: IpFamily,
    objects: &[&Object],
    begin: u32,
    generation: Option<u32>,
) -> Result<Vec<KernelError>, Error> {
    let mut sequence = begin;
    let mut batch = Writer::new();
    nfnetlink::batch_begin(&mut batch, NFTABLES, sequence, generation);
    let mut last = 0;
    for object in objects {
        sequence = sequence.wrapping_add(1);
        last = batch.len();
        let kind = match object {
            Object::Rule { .. } => message::DEL_RULE,
            Object::Chain { .. } => message::DEL_CHAIN,
        };
        batch.message(nfnetlink::kind(NFTABLES, kind), flags::REQUEST, sequence, |w| {
            nfnetlink::header(w, family_number(family), 0);
            match object {
                Object::Rule { table, chain, handle } => {
                    w.string(rule::TABLE, table.name());
                    w.string(rule::CHAIN, chain);
                    w.be64(rule::HANDLE, *handle);
                }
                Object::Chain { table, name } => {
                    w.string(chain::TABLE, table.name());
                    w.string(chain::NAME, name);
                }
            }
        });
    }
    batch.add_flags(last, flags::ACK);
    nfnetlink::batch_end(&mut batch, NFTABLES, sequence.wrapping_add(1));
    if batch.overflowed() {
        return Err(Error::TooLong);
    }
    socket.batch(batch.as_slice(), sequence)
}
