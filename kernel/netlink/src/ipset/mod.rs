//! IP sets: lists of addresses, ports and networks that rules of iptables match.
//!
//! [`IpSets`] speaks the kernel's protocol (`linux/netfilter/ipset/ip_set.h`) by netlink, so the
//! program `ipset` is not needed, and the sets are those that the program would make. Sets belong
//! to a network namespace.
//!
//! - [`IpSets::create`], [`IpSets::swap`], [`IpSets::flush`] and [`IpSets::destroy`] change sets.
//! - [`IpSets::commit`] sends a [`SetBatch`] of changes of entries, many in one datagram.
//! - [`IpSets::is_available`] and [`IpSets::has_type`]: what the kernel has.
//! - [`IpSets::names`], [`IpSets::describe`] and [`IpSets::entries`] return what there is.
//!
//! All calls block, for as long as the kernel takes to answer.

mod abi;
mod batch;
mod entry;
mod refusal;
mod set;
mod support;

use crate::{
    Error, KernelError, Message, Socket, Writer, flags,
    nfnetlink::{self, subsystem::IPSET},
};

use self::abi::{attribute, command, error};

pub use self::{
    batch::{SetBatch, SetRefusal},
    entry::Entry,
    set::{SetSpec, SetType},
};

/// The longest name of a set, in bytes (`IPSET_MAXNAMELEN` without the NUL).
pub const LONGEST_NAME: usize = 31;

/// A connection to the kernel's IP sets, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct IpSets {
    socket: Socket,
}

/// Why a set could not be destroyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// A rule or another set uses the set. Rules of iptables-nft that were deleted let go of their
    /// sets a moment later.
    #[error("the set is in use")]
    InUse,
    /// The kernel refused for another reason, or cannot be reached.
    #[error("the kernel cannot destroy the set")]
    Netlink(#[source] Error),
}

impl IpSets {
    /// Opens a connection. Works on kernels without IP sets, too, where there are none.
    ///
    /// # Errors
    /// If no socket can be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(libc::NETLINK_NETFILTER)? })
    }

    /// Returns the names of all sets, in no order; none if the kernel has no IP sets.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer. Without CAP_NET_ADMIN, the kernel refuses.
    pub fn names(&mut self) -> Result<Vec<String>, Error> {
        let names = self.socket.dump(list_names, |names: &mut Vec<String>, message| {
            let name = message.attributes(nfnetlink::HEADER).find_kind(attribute::SET_NAME);
            names.extend(name.and_then(|name| name.str()).map(str::to_owned));
            Ok(())
        });
        match names {
            Err(Error::Kernel(error)) if error.errno == error::NO_SUBSYSTEM => Ok(Vec::new()),
            names => names,
        }
    }

    /// Creates a set without entries, if there is no such set. A set of the same name, type,
    /// family, size and options stays with its entries, whoever created it (like
    /// `ipset create -exist`).
    ///
    /// # Errors
    /// If the kernel refuses or does not answer. `EEXIST`: another set has the name, of another
    /// type, family or size, or with options such as a timeout.
    pub fn create(&mut self, spec: &SetSpec) -> Result<(), Error> {
        let create = |sets: &mut Self, flags| {
            sets.request(command::CREATE, flags, |w| spec.write(w)).map_err(refusal::explained)
        };
        match create(self, flags::EXCLUSIVE) {
            // The kernel compares everything but families.
            Err(error) if error.errno() == Some(libc::EEXIST) => {
                match self.read_header(&spec.name)? {
                    Some(Some(found)) if found.is_v6 != spec.is_v6 => Err(error),
                    _ => create(self, 0),
                }
            }
            result => result,
        }
    }

    /// Returns type, family and size of a set; `None` if there is no such set.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer. [`Error::Malformed`] if the set has a type that
    /// [`SetType`] lacks.
    pub fn describe(&mut self, name: &str) -> Result<Option<SetSpec>, Error> {
        match self.read_header(name)? {
            None => Ok(None),
            Some(Some(spec)) => Ok(Some(spec)),
            Some(None) => Err(OTHER_TYPE),
        }
    }

    /// Returns the entries of a set, in no order; `None` if there is no such set. Exceptions from
    /// networks, which the program `ipset` adds with `nomatch`, are left out.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer. [`Error::Malformed`] if the set has a type that
    /// [`SetType`] lacks.
    pub fn entries(&mut self, name: &str) -> Result<Option<Vec<Entry>>, Error> {
        let (mut known, mut unknown) = (Vec::new(), false);
        let mut kind = None;
        let exists = self.list(name, None, |message| {
            let attributes = message.attributes(nfnetlink::HEADER);
            // Only the first message describes the set.
            if kind.is_none() {
                kind = SetType::of(attributes);
            }
            let Some(kind) = kind else {
                unknown = true;
                return Ok(());
            };
            let Some(entries) = attributes.find_kind(attribute::ENTRIES) else { return Ok(()) };
            for entry in entries.nested() {
                if !Entry::is_exception(entry.nested()) {
                    let entry = Entry::read(kind, entry.nested());
                    known.push(entry.ok_or(Error::Malformed("an entry of a set"))?);
                }
            }
            Ok(())
        })?;
        match (exists, unknown) {
            (false, _) => Ok(None),
            (true, false) => Ok(Some(known)),
            (true, true) => Err(OTHER_TYPE),
        }
    }

    /// Sends changes of entries, and returns those that the kernel refused, in the order of the
    /// batch. The kernel carries out all others, also those that follow a refused one.
    ///
    /// # Errors
    /// If the kernel cannot be reached or does not answer. Any part of the batch may have been
    /// carried out then.
    pub fn commit(&mut self, batch: &SetBatch) -> Result<Vec<SetRefusal>, Error> {
        let refused = self.socket.pipeline(batch.requests(), None)?;
        let refusal =
            |(index, error): (usize, KernelError)| SetRefusal { index, errno: error.errno };
        Ok(refused.into_iter().map(refusal).collect())
    }

    /// Exchanges the entries of two sets of the same type and family. Rules that use a set see the
    /// entries of the other one from one packet to the next.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer. `ENOENT`: there is no set `a`. 4101
    /// (`IPSET_ERR_EXIST_SETNAME2`): there is no set `b`. 4102 (`IPSET_ERR_TYPE_MISMATCH`): the
    /// types or the families differ.
    pub fn swap(&mut self, a: &str, b: &str) -> Result<(), Error> {
        let swapped = self.request(command::SWAP, 0, |w| {
            w.string(attribute::SET_NAME, a);
            w.string(attribute::SECOND_SET_NAME, b);
        });
        swapped.map_err(refusal::explained)
    }

    /// Deletes all entries of a set. Returns whether the set exists.
    ///
    /// # Errors
    /// If the kernel refuses or does not answer.
    pub fn flush(&mut self, name: &str) -> Result<bool, Error> {
        match self.request(command::FLUSH, 0, |w| w.string(attribute::SET_NAME, name)) {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(refusal::explained(error)),
        }
    }

    /// Destroys a set with its entries. Returns whether the set existed.
    ///
    /// # Errors
    /// [`DestroyError::InUse`] if a rule or a set of sets refers to the set.
    pub fn destroy(&mut self, name: &str) -> Result<bool, DestroyError> {
        // Exclusive: a set that does not exist is an error (the opposite of `ipset -exist`).
        let destroyed = self.request(command::DESTROY, flags::EXCLUSIVE, |w| {
            w.string(attribute::SET_NAME, name);
        });
        match destroyed {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) if error.errno() == Some(error::BUSY) => Err(DestroyError::InUse),
            Err(error) => Err(DestroyError::Netlink(refusal::explained(error))),
        }
    }

    /// Sends a command, and waits until it was carried out.
    fn request(
        &mut self,
        command: u8,
        flags: u16,
        fill: impl FnOnce(&mut Writer),
    ) -> Result<(), Error> {
        let sequence = self.socket.sequences(1);
        let request = request(command, flags | flags::ACK, sequence, fill);
        if request.overflowed() {
            return Err(Error::TooLong);
        }
        self.socket.request(request.as_slice(), sequence, |_| Ok(()))
    }

    /// Reads the description of a set: `None` if there is no such set, `Some(None)` if the type is
    /// unknown.
    fn read_header(&mut self, name: &str) -> Result<Option<Option<SetSpec>>, Error> {
        let mut spec = None;
        let exists = self.list(name, Some(abi::LIST_HEADER_ONLY), |message| {
            spec = SetSpec::read(message.attributes(nfnetlink::HEADER));
            Ok(())
        })?;
        Ok(exists.then_some(spec))
    }

    /// Hands the messages that list a set to `each`. Returns whether the set exists.
    fn list(
        &mut self,
        name: &str,
        list_flags: Option<u32>,
        each: impl FnMut(Message<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let sequence = self.socket.sequences(1);
        let request = request(command::LIST, flags::DUMP, sequence, |w| {
            w.string(attribute::SET_NAME, name);
            if let Some(flags) = list_flags {
                w.be32(attribute::FLAGS, flags);
            }
        });
        if request.overflowed() {
            return Err(Error::TooLong);
        }
        match self.socket.request(request.as_slice(), sequence, each) {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A set of a type that [`SetType`] lacks.
const OTHER_TYPE: Error = Error::Malformed("a set of another type");

/// Whether the kernel has no such set, or no sets at all.
fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Kernel(error)
        if matches!(error.errno, libc::ENOENT | error::NO_SUBSYSTEM))
}

/// Returns a request for the names of all sets.
fn list_names(sequence: u32) -> Vec<u8> {
    let request = request(command::LIST, flags::DUMP, sequence, |w| {
        w.be32(attribute::FLAGS, abi::LIST_NAMES_ONLY);
    });
    request.as_slice().to_vec()
}

/// Returns a request.
fn request(command: u8, flags: u16, sequence: u32, attributes: impl FnOnce(&mut Writer)) -> Writer {
    let mut writer = Writer::new();
    writer.message(nfnetlink::kind(IPSET, command), flags, sequence, |w| fill(w, attributes));
    writer
}

/// Appends what a message contains, with the version of the protocol first.
fn fill(writer: &mut Writer, attributes: impl FnOnce(&mut Writer)) {
    nfnetlink::header(writer, libc::AF_INET as u8, 0);
    writer.u8(attribute::PROTOCOL, abi::PROTOCOL);
    attributes(writer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_the_kernels_header() {
        if cfg!(target_endian = "big") {
            return;
        }
        #[rustfmt::skip]
        let expected = [
            36, 0, 0, 0, 7, 6, 1, 3, 9, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0,
            5, 0, 1, 0, 6, 0, 0, 0,
            8, 0, 6, 0, 0, 0, 0, 2,
        ];
        assert_eq!(list_names(9), expected);
        #[rustfmt::skip]
        let expected = [
            36, 0, 0, 0, 3, 6, 5, 2, 9, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0,
            5, 0, 1, 0, 6, 0, 0, 0,
            8, 0, 2, 0, b'K', b'-', b'A', 0,
        ];
        let flags = flags::ACK | flags::EXCLUSIVE;
        let destroy = request(command::DESTROY, flags, 9, |w| w.string(attribute::SET_NAME, "K-A"));
        assert_eq!(destroy.as_slice(), expected);
    }
}
