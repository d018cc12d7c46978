//! For tests: readers of the kernel's tables, and a model of them.

#![allow(clippy::expect_used, reason = "what tests are made of fails by panics")]

mod model;
mod walk;

use switchyard_model::IpFamily;

use crate::{
    netlink::Error,
    xtables::{
        OwnedChains, Table,
        leftovers::without,
        legacy_table::{Contents, LegacyTable},
        nft_tables,
    },
};

pub use self::{
    model::{Ended, Machine, SharedMachine, Tables},
    walk::fates,
};

/// Removes chains from a table of iptables-legacy, as [`legacy_table`] returns it. Returns the
/// entries that stay; `None` if the table has an unknown form.
pub fn without_chains(family: IpFamily, table: &[u8], owned: &OwnedChains) -> Option<Vec<u8>> {
    let (numbers, bytes) = table.split_at_checked(NUMBERS * 4)?;
    let mut numbers = numbers.chunks_exact(4).map(|n| u32::from_ne_bytes([n[0], n[1], n[2], n[3]]));
    let mut next = || numbers.next().unwrap_or_default();
    let old = Contents {
        valid_hooks: next(),
        hook_entry: [(); 5].map(|()| next()),
        underflow: [(); 5].map(|()| next()),
        entries: next(),
        bytes: bytes.to_vec(),
    };
    let (new, kept) = without(&old, Table::Nat, family, owned)?;
    assert_eq!(new.entries as usize, kept.len(), "entries that stay");
    assert!(new.bytes.len() <= old.bytes.len(), "a table does not grow");
    Some(new.bytes)
}

/// The numbers before the entries.
const NUMBERS: usize = 12;

/// Returns the table `nat` of iptables-legacy: where its built-in chains are, and its entries.
///
/// # Errors
/// If the kernel does not show the table.
pub fn legacy_table(family: IpFamily) -> std::io::Result<Vec<u8>> {
    let read = LegacyTable::open(family, Table::Nat)?.read()?;
    let numbers = [read.valid_hooks].into_iter().chain(read.hook_entry).chain(read.underflow);
    let mut bytes: Vec<u8> = numbers.chain([read.entries]).flat_map(u32::to_ne_bytes).collect();
    bytes.extend(read.bytes);
    Ok(bytes)
}

/// Returns the number of chains and of jumps in tables of iptables-nft.
///
/// # Errors
/// If the kernel refuses or does not answer.
pub fn count_nft_tables(family: IpFamily) -> Result<usize, Error> {
    let mut socket = nft_tables::open()?;
    let chains = nft_tables::chains(&mut socket, family, |_, _| true)?;
    let jumps = nft_tables::rules(&mut socket, family, None, |_, _, _, to| to.map(drop))?;
    Ok(chains.len() + jumps.len())
}
