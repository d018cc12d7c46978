//! A number that is cheap to read and differs when rules have changed.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io,
};

use switchyard_model::IpFamily;

use crate::{
    nftables,
    xtables::{Flavour, Programs, Table, legacy_table::LegacyTable, nft_tables},
};

/// A number that stays the same as long as no rules change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub(super) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// For each of a family's tables ([`Table::ALL`]), a hash of the size, the number of entries,
    /// and the offsets of the built-in chains (`IPT_SO_GET_INFO`).
    Legacy([u64; Table::ALL.len()]),
    /// The generation of nf_tables, which each commit increases, of any table of either family.
    Generation(u32),
}

impl Fingerprint {
    /// Asks the kernel for the fingerprint of a family's tables; `None` if the kernel cannot be
    /// asked.
    pub fn read(programs: &Programs) -> Option<Self> {
        #[cfg(feature = "testing")]
        if let Some(machine) = programs.machine() {
            return Some(Self(Kind::Generation(machine.generation())));
        }
        Some(Self(match programs.flavour() {
            Flavour::Legacy => Kind::Legacy(hashes(programs.family()).ok()?),
            Flavour::Nft => {
                Kind::Generation(nftables::generation(&mut nft_tables::open().ok()?).ok()??)
            }
        }))
    }

    /// Whether a change of one family's tables changes the fingerprint of the other as well.
    pub(super) fn is_common(self) -> bool {
        matches!(self.0, Kind::Generation(_))
    }
}

fn hashes(family: IpFamily) -> io::Result<[u64; Table::ALL.len()]> {
    let mut hashes = [0; Table::ALL.len()];
    // One socket for all tables: they are read at every change, and several times a second.
    let mut kernel = LegacyTable::open(family, Table::Nat)?;
    for (table, hash) in Table::ALL.into_iter().zip(&mut hashes) {
        kernel = kernel.with_table(table);
        let mut hasher = DefaultHasher::new();
        kernel.info()?.hash(&mut hasher);
        *hash = hasher.finish();
    }
    Ok(hashes)
}
