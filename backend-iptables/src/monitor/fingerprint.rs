//! Something cheap to ask the kernel for that differs when rules have changed.
//!
//! Of legacy tables that is their size, number of entries and where the built-in chains begin and
//! end (`IPT_SO_GET_INFO`); of nftables the number of its generation, which each commit increases.

use std::hash::{DefaultHasher, Hash, Hasher};

use netlink::{Socket, nftables};
use proxy_core::model::IpFamily;

use crate::{
    layout::Table,
    leftovers::Kernel,
    tool::{Flavour, Programs},
};

/// The same as long as nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// Asks the kernel; `None` if it does not say.
    pub(crate) fn read(programs: &Programs) -> Option<Self> {
        match programs.flavour {
            Flavour::Legacy => legacy(programs.family),
            Flavour::Nft => generation().map(|generation| Self(generation.into())),
        }
    }
}

fn legacy(family: IpFamily) -> Option<Fingerprint> {
    let mut hasher = DefaultHasher::new();
    // One socket for all: this is asked at every change, and three times a second.
    let mut kernel = Kernel::open(family, Table::Nat).ok()?;
    for table in Table::ALL {
        kernel = kernel.at(table);
        kernel.info().ok()?.hash(&mut hasher);
    }
    Some(Fingerprint(hasher.finish()))
}

fn generation() -> Option<u32> {
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).ok()?;
    nftables::generation(&mut socket).ok()?
}
