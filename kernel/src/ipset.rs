//! IP sets: lists of addresses, ports and networks that rules of iptables match.
//!
//! [`IpSets`] speaks the kernel's protocol (`linux/netfilter/ipset/ip_set.h`), so the program
//! `ipset` is not needed to find and to destroy the sets that kube-proxy's ipvs mode leaves. Sets
//! belong to a network namespace. All calls block, for as long as the kernel takes to answer.

use crate::netlink::{
    Error, Socket, Writer, flags,
    nfnetlink::{self, subsystem::IPSET},
};

/// The longest name of a set, in bytes (`IPSET_MAXNAMELEN` without the NUL).
pub const LONGEST_NAME: usize = 31;

/// The version of the protocol. Kernels with version 7 (since 4.20) accept 6, and older ones accept
/// nothing else.
const PROTOCOL: u8 = 6;

// `enum ipset_cmd`
const DESTROY: u8 = 3;
const LIST: u8 = 7;

// `IPSET_ATTR_*`: one byte, text, and 32 bits.
const ATTR_PROTOCOL: u16 = 1;
const ATTR_SET_NAME: u16 = 2;
const ATTR_FLAGS: u16 = 6;

/// A flag of [`LIST`]: only names (`IPSET_FLAG_LIST_SETNAME`).
const LIST_NAMES_ONLY: u32 = 2;

/// The set is referred to (`IPSET_ERR_BUSY`).
const BUSY: i32 = 4100;

/// The answer of nfnetlink for a subsystem that the kernel does not have.
const NO_SUBSYSTEM: i32 = libc::EINVAL;

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
        let list = |request: &mut Writer, sequence| *request = list_names(sequence);
        let names = self.socket.dump(list, |names: &mut Vec<String>, message| {
            let name = message.attributes(nfnetlink::HEADER).text(ATTR_SET_NAME);
            names.extend(name.map(str::to_owned));
            Ok(())
        });
        match names {
            Err(error) if error.errno() == Some(NO_SUBSYSTEM) => Ok(Vec::new()),
            names => names,
        }
    }

    /// Destroys a set with its entries. Returns whether the set existed.
    ///
    /// # Errors
    /// [`DestroyError::InUse`] if a rule or a set of sets refers to the set.
    pub fn destroy(&mut self, name: &str) -> Result<bool, DestroyError> {
        let sequence = self.socket.sequences(1);
        let request = destroy(name, sequence);
        if request.overflowed() {
            return Err(DestroyError::Netlink(Error::TooLong));
        }
        match self.socket.request(request.as_slice(), sequence, |_| Ok(())) {
            Ok(()) => Ok(true),
            Err(error) => match error.errno() {
                Some(libc::ENOENT | NO_SUBSYSTEM) => Ok(false),
                Some(BUSY) => Err(DestroyError::InUse),
                _ => Err(DestroyError::Netlink(error)),
            },
        }
    }
}

/// Returns a request for the names of all sets.
fn list_names(sequence: u32) -> Writer {
    request(LIST, flags::DUMP, sequence, |w| w.be32(ATTR_FLAGS, LIST_NAMES_ONLY))
}

/// Returns a request to destroy a set. Exclusive: a set that does not exist is an error (the
/// opposite of `ipset -exist`).
fn destroy(name: &str, sequence: u32) -> Writer {
    request(DESTROY, flags::ACK | flags::EXCLUSIVE, sequence, |w| w.string(ATTR_SET_NAME, name))
}

/// Returns a request, with the version of the protocol first.
fn request(command: u8, flags: u16, sequence: u32, attributes: impl FnOnce(&mut Writer)) -> Writer {
    let mut writer = Writer::new();
    writer.message(nfnetlink::kind(IPSET, command), flags, sequence, |w| {
        nfnetlink::header(w, libc::AF_INET as u8, 0);
        w.u8(ATTR_PROTOCOL, PROTOCOL);
        attributes(w);
    });
    writer
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
        assert_eq!(list_names(9).as_slice(), expected);
        #[rustfmt::skip]
        let expected = [
            36, 0, 0, 0, 3, 6, 5, 2, 9, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0,
            5, 0, 1, 0, 6, 0, 0, 0,
            8, 0, 2, 0, b'K', b'-', b'A', 0,
        ];
        assert_eq!(destroy("K-A", 9).as_slice(), expected);
    }
}
