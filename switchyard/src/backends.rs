//! The backends that the features select, with their defaults. Their crates have the settings.

#[cfg(feature = "iptables")]
pub use switchyard_iptables::{IptablesBackend, IptablesConfig};
#[cfg(feature = "ipvs")]
pub use switchyard_ipvs::{IpvsBackend, IpvsConfig};
#[cfg(feature = "nftables")]
pub use switchyard_nft::{NftBackend, NftConfig};
#[cfg(feature = "userspace")]
pub use switchyard_userspace::{UserspaceBackend, UserspaceConfig};

/// Returns the nftables backend.
#[cfg(feature = "nftables")]
pub fn nftables() -> NftBackend {
    NftBackend::default()
}

/// Returns the iptables backend.
#[cfg(feature = "iptables")]
pub fn iptables() -> IptablesBackend {
    IptablesBackend::default()
}

/// Returns the ipvs backend.
#[cfg(feature = "ipvs")]
pub fn ipvs() -> IpvsBackend {
    IpvsBackend::default()
}

/// Returns the userspace backend, which proxies connections itself.
#[cfg(feature = "userspace")]
pub fn userspace() -> UserspaceBackend {
    UserspaceBackend::default()
}
