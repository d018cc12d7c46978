//! The numbers of the kernel's protocol (`linux/ip_vs.h`). Numbers in attributes have the machine's
//! byte order unless stated.

/// `IPVS_GENL_NAME`
pub(crate) const FAMILY_NAME: &str = "IPVS";
/// `IPVS_GENL_VERSION`
pub(crate) const VERSION: u8 = 1;

/// Commands (`IPVS_CMD_*`).
pub(crate) mod command {
    pub(crate) const NEW_SERVICE: u8 = 1;
    pub(crate) const SET_SERVICE: u8 = 2;
    pub(crate) const DELETE_SERVICE: u8 = 3;
    pub(crate) const GET_SERVICE: u8 = 4;
    pub(crate) const NEW_DESTINATION: u8 = 5;
    pub(crate) const SET_DESTINATION: u8 = 6;
    pub(crate) const DELETE_DESTINATION: u8 = 7;
    pub(crate) const GET_DESTINATION: u8 = 8;
    pub(crate) const SET_CONFIG: u8 = 12;
    pub(crate) const GET_CONFIG: u8 = 13;
}

/// Attributes of a command (`IPVS_CMD_ATTR_*`).
pub(crate) mod attribute {
    /// Describes a virtual server.
    pub(crate) const SERVICE: u16 = 1;
    /// Describes a real server.
    pub(crate) const DESTINATION: u16 = 2;
    /// 32 bits: seconds.
    pub(crate) const TIMEOUT_TCP: u16 = 4;
    /// 32 bits: seconds.
    pub(crate) const TIMEOUT_TCP_FIN: u16 = 5;
    /// 32 bits: seconds.
    pub(crate) const TIMEOUT_UDP: u16 = 6;
}

/// Attributes of a virtual server (`IPVS_SVC_ATTR_*`).
pub(crate) mod service {
    /// 16 bits: `AF_INET` or `AF_INET6`.
    pub(crate) const ADDRESS_FAMILY: u16 = 1;
    /// 16 bits: an IP protocol.
    pub(crate) const PROTOCOL: u16 = 2;
    /// `union nf_inet_addr`: 16 bytes, of which IPv4 uses the first four.
    pub(crate) const ADDRESS: u16 = 3;
    /// 16 bits, most significant byte first.
    pub(crate) const PORT: u16 = 4;
    /// 32 bits.
    pub(crate) const MARK: u16 = 5;
    /// Text: the name of a scheduler, or [`NO_SCHEDULER`].
    pub(crate) const SCHEDULER: u16 = 6;
    /// `struct ip_vs_flags`: 32 bits of flags, and 32 bits that select those which are set.
    pub(crate) const FLAGS: u16 = 7;
    /// 32 bits: seconds.
    pub(crate) const TIMEOUT: u16 = 8;
    /// 32 bits. IPv4: a mask, most significant byte first. IPv6: the length of a prefix.
    pub(crate) const NETMASK: u16 = 9;

    /// The kernel's name for the scheduler of a virtual server that has none.
    pub(crate) const NO_SCHEDULER: &str = "none";
    /// The kernel's own flag: the virtual server is in its tables (`IP_VS_SVC_F_HASHED`).
    pub(crate) const HASHED: u32 = 2;
}

/// Attributes of a real server (`IPVS_DEST_ATTR_*`).
pub(crate) mod destination {
    /// `union nf_inet_addr`: 16 bytes, of which IPv4 uses the first four.
    pub(crate) const ADDRESS: u16 = 1;
    /// 16 bits, most significant byte first.
    pub(crate) const PORT: u16 = 2;
    /// 32 bits: `IP_VS_CONN_F_*`.
    pub(crate) const FORWARDING: u16 = 3;
    /// 32 bits, with a sign that must not be negative.
    pub(crate) const WEIGHT: u16 = 4;
    /// 32 bits: the number of connections from which on the real server gets no more; 0 for none.
    pub(crate) const UPPER_THRESHOLD: u16 = 5;
    /// 32 bits: the number below which the real server gets connections again.
    pub(crate) const LOWER_THRESHOLD: u16 = 6;
    /// 32 bits.
    pub(crate) const ACTIVE: u16 = 7;
    /// 32 bits.
    pub(crate) const INACTIVE: u16 = 8;
    /// 16 bits: `AF_INET` or `AF_INET6`. Kernels before 3.18 have no such attribute.
    pub(crate) const ADDRESS_FAMILY: u16 = 11;

    /// The bits of [`FORWARDING`] that are the method (`IP_VS_CONN_F_FWD_MASK`).
    pub(crate) const METHOD: u32 = 7;
    /// The method that translates addresses (`IP_VS_CONN_F_MASQ`).
    pub(crate) const MASQUERADE: u32 = 0;
}
