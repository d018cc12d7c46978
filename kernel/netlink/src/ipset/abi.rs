//! The numbers of the kernel's protocol (`linux/netfilter/ipset/ip_set.h`). Numbers in attributes
//! have the most significant byte first.

/// The version of the protocol. Kernels with version 7 (since 4.20) accept 6, and older ones accept
/// nothing else.
pub(crate) const PROTOCOL: u8 = 6;

/// A flag of [`command::LIST`]: only names (`IPSET_FLAG_LIST_SETNAME`).
pub(crate) const LIST_NAMES_ONLY: u32 = 2;
/// A flag of [`command::LIST`]: no entries (`IPSET_FLAG_LIST_HEADER`).
pub(crate) const LIST_HEADER_ONLY: u32 = 4;

/// The flag of attributes of 16 bits and more below [`attribute::DATA`]: the most significant byte
/// is the first (`NLA_F_NET_BYTEORDER`). The kernel refuses those without the flag.
pub(crate) const NETWORK_ORDER: u16 = 0x4000;

/// The flag of an entry that is an exception (`IPSET_FLAG_NOMATCH`).
pub(crate) const NO_MATCH: u32 = 4;

/// Commands (`enum ipset_cmd`).
pub(crate) mod command {
    pub(crate) const PROTOCOL: u8 = 1;
    pub(crate) const CREATE: u8 = 2;
    pub(crate) const DESTROY: u8 = 3;
    pub(crate) const FLUSH: u8 = 4;
    pub(crate) const SWAP: u8 = 6;
    pub(crate) const LIST: u8 = 7;
    pub(crate) const ADD: u8 = 9;
    pub(crate) const DELETE: u8 = 10;
    pub(crate) const TYPE: u8 = 13;
}

/// Attributes of a command (`IPSET_ATTR_*`).
pub(crate) mod attribute {
    /// One byte.
    pub(crate) const PROTOCOL: u16 = 1;
    /// Text.
    pub(crate) const SET_NAME: u16 = 2;
    /// Text.
    pub(crate) const TYPE_NAME: u16 = 3;
    /// Text, in place of [`TYPE_NAME`].
    pub(crate) const SECOND_SET_NAME: u16 = 3;
    /// One byte.
    pub(crate) const REVISION: u16 = 4;
    /// One byte: `NFPROTO_*`.
    pub(crate) const FAMILY: u16 = 5;
    /// 32 bits.
    pub(crate) const FLAGS: u16 = 6;
    /// Nested attributes of a set or of an entry.
    pub(crate) const DATA: u16 = 7;
    /// Entries: nested, each in a [`DATA`].
    pub(crate) const ENTRIES: u16 = 8;
    /// One byte (`IPSET_ATTR_REVISION_MIN`).
    pub(crate) const LEAST_REVISION: u16 = 10;
}

/// Attributes of a set or of an entry (`IPSET_ATTR_*`).
pub(crate) mod data {
    /// An address: nested.
    pub(crate) const IP: u16 = 1;
    /// 16 bits: a port, or the first one.
    pub(crate) const PORT: u16 = 4;
    /// 16 bits.
    pub(crate) const LAST_PORT: u16 = 5;
    /// One byte.
    pub(crate) const PROTOCOL: u16 = 7;
    /// 32 bits.
    pub(crate) const FLAGS: u16 = 8;
    /// 32 bits.
    pub(crate) const HASH_SIZE: u16 = 18;
    /// 32 bits.
    pub(crate) const MAX_ELEMENTS: u16 = 19;
    /// An address: nested.
    pub(crate) const SECOND_IP: u16 = 20;
    /// One byte.
    pub(crate) const SECOND_PREFIX: u16 = 21;

    /// Below an address: four bytes.
    pub(crate) const IPV4: u16 = 1;
    /// Below an address: 16 bytes.
    pub(crate) const IPV6: u16 = 2;
}

/// Error numbers.
pub(crate) mod error {
    /// `IPSET_ERR_PROTOCOL`
    pub(crate) const PROTOCOL: i32 = 4097;
    /// `IPSET_ERR_FIND_TYPE`
    pub(crate) const NO_TYPE: i32 = 4098;
    /// `IPSET_ERR_MAX_SETS`
    pub(crate) const TOO_MANY_SETS: i32 = 4099;
    /// The set is referred to (`IPSET_ERR_BUSY`).
    pub(crate) const BUSY: i32 = 4100;
    /// `IPSET_ERR_EXIST_SETNAME2`
    pub(crate) const NO_SECOND_SET: i32 = 4101;
    /// `IPSET_ERR_TYPE_MISMATCH`
    pub(crate) const OTHER_TYPE: i32 = 4102;
    /// `IPSET_ERR_INVALID_CIDR`
    pub(crate) const PREFIX: i32 = 4104;
    /// `IPSET_ERR_HASH_FULL`
    pub(crate) const FULL: i32 = 4352;
    /// The answer of nfnetlink for a subsystem that the kernel does not have.
    pub(crate) const NO_SUBSYSTEM: i32 = libc::EINVAL;
}
