//! Removal of chains of both flavours, without any of the programs.
//!
//! An image that has changed to another mode may lack the programs, and rules that stay would go on
//! translating to endpoints that are gone. So the kernel is asked directly ([`nft`], [`legacy`]),
//! which takes CAP_NET_ADMIN and nothing else.

mod entries;
mod legacy;
mod nft;

#[cfg(feature = "testing")]
pub(crate) use self::entries::without;

use std::io;

use switchyard_model::{IpFamily, PerFamily};

use crate::xtables::{Flavour, OwnedChains, Table};

/// The number of times that removal is repeated if another program changes rules at the same time.
const ATTEMPTS: usize = 10;

/// Why rules could not be removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeftoverError {
    /// nf_tables refused.
    #[error("cannot remove rules of iptables-nft")]
    Nft(#[from] crate::netlink::Error),
    /// x_tables refused.
    #[error("cannot {action} the table {table} of iptables-legacy")]
    Legacy {
        /// `read` or `replace`.
        action: &'static str,
        /// The table.
        table: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The kernel's table has an unknown form.
    #[error("the table {table} of iptables-legacy has an unknown form")]
    Malformed {
        /// The table.
        table: &'static str,
    },
    /// Another program holds the xtables lock.
    #[error("another program holds the xtables lock")]
    Locked,
    /// Other programs changed rules all the time.
    #[error("gave up after {ATTEMPTS} attempts: the rules kept changing")]
    Busy,
}

/// Removes the owned chains, the jumps to them, and all rules in them, of both flavours and both
/// families. A chain that rules of other programs lead to is emptied only.
/// Returns whether there was any.
///
/// Blocks for at most five seconds while another program holds the xtables lock.
///
/// # Errors
///
/// The first error, after everything else was removed.
pub fn remove(owned: &OwnedChains) -> Result<bool, LeftoverError> {
    remove_of(&Flavour::ALL, PerFamily { v4: true, v6: true }, owned)
}

/// Removes the owned chains of these flavours and families, as [`remove`] does all.
pub(crate) fn remove_of(
    flavours: &[Flavour],
    families: PerFamily<bool>,
    owned: &OwnedChains,
) -> Result<bool, LeftoverError> {
    // Taken only if there is something to remove.
    let mut lock = legacy::Lock::default();
    let mut result = Ok(false);
    for family in IpFamily::ALL.into_iter().filter(|family| *families.get(*family)) {
        for flavour in flavours {
            let removed = match flavour {
                Flavour::Nft => nft::remove(family, owned),
                Flavour::Legacy => legacy::remove(family, owned, &mut lock),
            };
            result = both(result, removed);
        }
    }
    result
}

/// Whether a chain of iptables-legacy in this table has a name that begins like this, which is at
/// least eight bytes that nothing else in a table has. Changes nothing.
///
/// # Errors
///
/// If the kernel refuses to show a table.
pub fn has_legacy_chains(table: Table, start: &str) -> Result<bool, LeftoverError> {
    IpFamily::ALL
        .into_iter()
        .try_fold(false, |found, family| Ok(found || legacy::has(family, table, start)?))
}

/// Returns the tables of iptables-legacy in this network namespace that have rules, of a kind that
/// this crate knows, or may have some. None if the process may not know. Changes nothing.
pub fn legacy_tables() -> Vec<(IpFamily, String)> {
    IpFamily::ALL
        .into_iter()
        .flat_map(|family| legacy::used(family).into_iter().map(move |name| (family, name)))
        .collect()
}

/// Whether there was any in one of both, or the first error.
fn both(
    one: Result<bool, LeftoverError>,
    other: Result<bool, LeftoverError>,
) -> Result<bool, LeftoverError> {
    one.and_then(|one| other.map(|other| one || other))
}
