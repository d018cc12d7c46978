//! The backends that the features select, with their defaults, for the families that the kernel has
//! in the network namespace of the calling thread. Their crates have the settings.

#[cfg(any(
    feature = "nftables",
    feature = "iptables",
    feature = "ipvs",
    feature = "userspace"
))]
use switchyard_kernel::families;

#[cfg(feature = "iptables")]
pub use switchyard_iptables::{IptablesBackend, IptablesConfig};
#[cfg(feature = "ipvs")]
pub use switchyard_ipvs::{IpvsBackend, IpvsConfig};
#[cfg(feature = "nftables")]
pub use switchyard_nft::{NftBackend, NftConfig};
#[cfg(feature = "userspace")]
pub use switchyard_userspace::{UserspaceBackend, UserspaceConfig};

/// Returns the nftables backend, for the families of the calling thread's network namespace.
#[cfg(feature = "nftables")]
pub fn nftables() -> NftBackend {
    let mut config = NftConfig::default();
    config.families = families();
    NftBackend::new(config)
}

/// Returns the iptables backend, for the families of the calling thread's network namespace.
#[cfg(feature = "iptables")]
pub fn iptables() -> IptablesBackend {
    let mut config = IptablesConfig::default();
    config.families = families();
    IptablesBackend::new(config)
}

/// Returns the ipvs backend, for the families of the calling thread's network namespace.
#[cfg(feature = "ipvs")]
pub fn ipvs() -> IpvsBackend {
    let mut config = IpvsConfig::default();
    config.families = families();
    IpvsBackend::new(config)
}

/// Returns the userspace backend, which proxies connections itself, for the families of the calling
/// thread's network namespace.
#[cfg(feature = "userspace")]
pub fn userspace() -> UserspaceBackend {
    let mut config = UserspaceConfig::default();
    config.families = families();
    UserspaceBackend::new(config)
}
