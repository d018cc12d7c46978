//! The numbers of the kernel's protocol (`linux/ip_vs.h`).

/// `IPVS_GENL_NAME`
pub(crate) const FAMILY_NAME: &str = "IPVS";
/// `IPVS_GENL_VERSION`
pub(crate) const VERSION: u8 = 1;

/// `IPVS_CMD_DEL_SERVICE`
pub(crate) const DELETE_SERVICE: u8 = 3;
/// `IPVS_CMD_GET_SERVICE`
pub(crate) const GET_SERVICE: u8 = 4;

/// The attribute of a command that describes a virtual server (`IPVS_CMD_ATTR_SERVICE`).
pub(crate) const SERVICE: u16 = 1;

/// Attributes of a virtual server (`IPVS_SVC_ATTR_*`). Numbers have the machine's byte order unless
/// stated.
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
}
