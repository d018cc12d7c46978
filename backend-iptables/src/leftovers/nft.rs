//! Rules of iptables-nft: chains of nf_tables, in tables with the names of iptables'.

use std::collections::HashSet;

use netlink::{
    Attributes, Error, Message, Socket, Writer, flags,
    nfnetlink::{self, subsystem::NFTABLES},
    nftables,
};
use proxy_core::model::IpFamily;

use super::{ATTEMPTS, LeftoverError, is_our_jump, is_ours};
use crate::layout::Table;

/// `NFT_MSG_*`, `linux/netfilter/nf_tables.h`
mod message {
    pub(super) const GET_CHAIN: u8 = 4;
    pub(super) const DEL_CHAIN: u8 = 5;
    pub(super) const GET_RULE: u8 = 7;
    pub(super) const DEL_RULE: u8 = 8;
}

/// `NFTA_CHAIN_*`
mod chain {
    pub(super) const TABLE: u16 = 1;
    pub(super) const NAME: u16 = 3;
}

/// `NFTA_RULE_*`, and of what is in it: `NFTA_EXPR_*`, `NFTA_IMMEDIATE_*`, `NFTA_DATA_*` and
/// `NFTA_VERDICT_*`.
mod rule {
    pub(super) const TABLE: u16 = 1;
    pub(super) const CHAIN: u16 = 2;
    pub(super) const HANDLE: u16 = 3;
    pub(super) const EXPRESSIONS: u16 = 4;
    pub(super) const EXPRESSION_NAME: u16 = 1;
    pub(super) const EXPRESSION_DATA: u16 = 2;
    pub(super) const IMMEDIATE_DATA: u16 = 2;
    pub(super) const VERDICT: u16 = 2;
    pub(super) const VERDICT_CHAIN: u16 = 2;
}

/// A rule that leads to a chain.
struct Jump {
    table: Table,
    from: String,
    handle: u64,
    to: String,
}

/// Removes our rules of a family, in one transaction.
pub(super) fn remove(family: IpFamily) -> Result<(), LeftoverError> {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER)?;
    let family = match family {
        IpFamily::V4 => libc::NFPROTO_IPV4,
        IpFamily::V6 => libc::NFPROTO_IPV6,
    } as u8;
    for _ in 0..ATTEMPTS {
        let Some(generation) = nftables::generation(&mut socket)? else { return Ok(()) };
        let chains = chains(&mut socket, family)?;
        if chains.is_empty() {
            return Ok(());
        }
        let jumps = jumps(&mut socket, family)?;
        let errors = commit(&mut socket, family, generation, &chains, &jumps)?;
        match errors.into_iter().next() {
            None => return Ok(()),
            Some(error) if error.errno == libc::ERESTART => {}
            Some(error) => return Err(Error::Kernel(error).into()),
        }
    }
    Err(LeftoverError::Busy)
}

/// Our chains.
fn chains(socket: &mut Socket, family: u8) -> Result<Vec<(Table, String)>, Error> {
    dump(socket, family, message::GET_CHAIN, |read| {
        let table = Table::called(text(read, chain::TABLE)?)?;
        let name = text(read, chain::NAME)?;
        is_ours(table, name).then(|| (table, name.to_owned()))
    })
}

/// The rules of others' chains that lead to ours.
fn jumps(socket: &mut Socket, family: u8) -> Result<Vec<Jump>, Error> {
    dump(socket, family, message::GET_RULE, |read| {
        let table = Table::called(text(read, rule::TABLE)?)?;
        let from = text(read, rule::CHAIN)?;
        let to = target(read)?;
        let leads_to_us = is_ours(table, to) && !is_ours(table, from);
        let handle = read.find_kind(rule::HANDLE)?.be64()?;
        leads_to_us.then(|| Jump { table, from: from.to_owned(), handle, to: to.to_owned() })
    })
}

/// The chain that a rule leads to.
fn target<'a>(read: Attributes<'a>) -> Option<&'a str> {
    read.find_kind(rule::EXPRESSIONS)?.nested().find_map(|expression| {
        let expression = expression.nested();
        if text(expression, rule::EXPRESSION_NAME)? != "immediate" {
            return None;
        }
        let immediate = expression.find_kind(rule::EXPRESSION_DATA)?.nested();
        let verdict =
            immediate.find_kind(rule::IMMEDIATE_DATA)?.nested().find_kind(rule::VERDICT)?;
        text(verdict.nested(), rule::VERDICT_CHAIN)
    })
}

fn text<'a>(attributes: Attributes<'a>, kind: u16) -> Option<&'a str> {
    attributes.find_kind(kind)?.str()
}

fn dump<T>(
    socket: &mut Socket,
    family: u8,
    kind: u8,
    read: impl Fn(Attributes<'_>) -> Option<T>,
) -> Result<Vec<T>, Error> {
    socket.dump(
        |sequence| {
            let mut writer = Writer::new();
            nfnetlink::dump(&mut writer, nfnetlink::kind(NFTABLES, kind), sequence, family, |_| {});
            writer.as_slice().to_vec()
        },
        |all: &mut Vec<T>, message: Message<'_>| {
            all.extend(read(message.attributes(nfnetlink::HEADER)));
            Ok(())
        },
    )
}

/// Removes the jumps, then all rules of our chains, then the chains.
fn commit(
    socket: &mut Socket,
    family: u8,
    generation: u32,
    chains: &[(Table, String)],
    jumps: &[Jump],
) -> Result<Vec<netlink::KernelError>, Error> {
    let (ours, others): (Vec<&Jump>, Vec<&Jump>) =
        jumps.iter().partition(|jump| is_our_jump(jump.table, &jump.from, &jump.to));
    let held: HashSet<(Table, &str)> =
        others.into_iter().map(|jump| (jump.table, jump.to.as_str())).collect();
    let count = u32::try_from(ours.len() + 2 * chains.len() + 2).unwrap_or(u32::MAX);
    let mut sequence = socket.sequences(count);
    let mut batch = Writer::new();
    nfnetlink::batch_begin(&mut batch, NFTABLES, sequence, Some(generation));
    let mut last = 0;
    let mut add = |kind: u8, fill: &dyn Fn(&mut Writer)| {
        sequence = sequence.wrapping_add(1);
        last = batch.len();
        batch.message(nfnetlink::kind(NFTABLES, kind), flags::REQUEST, sequence, |w| {
            nfnetlink::header(w, family, 0);
            fill(w);
        });
    };
    for jump in ours {
        add(message::DEL_RULE, &|w| {
            w.string(rule::TABLE, jump.table.name());
            w.string(rule::CHAIN, &jump.from);
            w.be64(rule::HANDLE, jump.handle);
        });
    }
    for (table, name) in chains {
        add(message::DEL_RULE, &|w| {
            w.string(rule::TABLE, table.name());
            w.string(rule::CHAIN, name);
        });
    }
    for (table, name) in chains.iter().filter(|(table, name)| !held.contains(&(*table, name))) {
        add(message::DEL_CHAIN, &|w| {
            w.string(chain::TABLE, table.name());
            w.string(chain::NAME, name);
        });
    }
    batch.add_flags(last, flags::ACK);
    nfnetlink::batch_end(&mut batch, NFTABLES, sequence.wrapping_add(1));
    if batch.overflowed() {
        return Err(Error::TooLong);
    }
    socket.batch(batch.as_slice(), sequence)
}
