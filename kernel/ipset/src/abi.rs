//! The numbers of the kernel's protocol (`linux/netfilter/ipset/ip_set.h`).

/// The version of the protocol. Kernels with version 7 (since 4.20) accept 6, and older ones accept
/// nothing else.
pub(crate) const PROTOCOL: u8 = 6;

/// A flag of [`command::LIST`]: only names (`IPSET_FLAG_LIST_SETNAME`).
pub(crate) const LIST_NAMES_ONLY: u32 = 2;

/// Commands (`enum ipset_cmd`).
pub(crate) mod command {
    pub(crate) const DESTROY: u8 = 3;
    pub(crate) const LIST: u8 = 7;
}

/// Attributes of a command (`IPSET_ATTR_*`).
pub(crate) mod attribute {
    /// One byte.
    pub(crate) const PROTOCOL: u16 = 1;
    /// Text.
    pub(crate) const SET_NAME: u16 = 2;
    /// 32 bits, most significant byte first.
    pub(crate) const FLAGS: u16 = 6;
}

/// Error numbers.
pub(crate) mod error {
    /// The set is referred to (`IPSET_ERR_BUSY`).
    pub(crate) const BUSY: i32 = 4100;
    /// The answer of nfnetlink for a subsystem that the kernel does not have.
    pub(crate) const NO_SUBSYSTEM: i32 = libc::EINVAL;
}
