//! Many changes of entries at once.

use std::fmt;

use crate::{
    Pipeline,
    nfnetlink::{self, subsystem::IPSET},
};

use crate::ipset::{
    Entry,
    abi::{attribute, command},
    fill, refusal,
};

/// Changes of entries, in the order in which the kernel carries them out.
///
/// Sets have no transactions: the kernel carries out each change on its own, and goes on after one
/// that it refuses. (A whole set changes at once by [`IpSets::swap`](crate::ipset::IpSets::swap).)
#[derive(Clone, Default)]
pub struct SetBatch {
    requests: Pipeline,
}

/// A change of a [`SetBatch`] that the kernel refused. The kernel's numbers:
///
/// | `errno` | Means |
/// |---|---|
/// | `ENOENT` | There is no set of this name |
/// | 4097 | `IPSET_ERR_PROTOCOL`: the entry is none of such a set: of another type, or of another family |
/// | 4104 | `IPSET_ERR_INVALID_CIDR`: a network of all addresses ([`Entry::IpPortNet`]) |
/// | 4352 | `IPSET_ERR_HASH_FULL`: the set has as many entries as it can have |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SetRefusal {
    /// The index of the change: the first that was added to the batch has 0.
    pub index: usize,
    /// The error number, positive.
    pub errno: i32,
}

impl SetBatch {
    /// Adds an entry to a set, if the set does not have the entry (like `ipset add -exist`).
    pub fn add(&mut self, set: &str, entry: Entry) {
        self.change(command::ADD, set, entry);
    }

    /// Deletes an entry of a set, if the set has the entry (like `ipset del -exist`).
    pub fn delete(&mut self, set: &str, entry: Entry) {
        self.change(command::DELETE, set, entry);
    }

    /// The number of changes.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The length of what is sent to the kernel, in bytes.
    pub fn bytes(&self) -> usize {
        self.requests.bytes()
    }

    pub(crate) fn requests(&self) -> &Pipeline {
        &self.requests
    }

    fn change(&mut self, command: u8, set: &str, entry: Entry) {
        // Not exclusive, so that what is there or gone already is no error.
        self.requests.request(nfnetlink::kind(IPSET, command), 0, |w| {
            fill(w, |w| {
                w.string(attribute::SET_NAME, set);
                w.nest(attribute::DATA, |w| entry.write(w));
            });
        });
    }
}

impl fmt::Debug for SetBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetBatch").field("len", &self.len()).field("bytes", &self.bytes()).finish()
    }
}

impl fmt::Display for SetRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&refusal::text(self.errno))
    }
}

impl std::error::Error for SetRefusal {}
