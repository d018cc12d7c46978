//! Traffic that rules redirect: those of the nftables or the iptables backend, in a table or chains
//! of their own. Linux has them; on other systems no node can run these capture modes.

#[cfg(target_os = "linux")]
mod answers;
#[cfg(target_os = "linux")]
mod leftovers;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod none;
#[cfg(target_os = "linux")]
mod pause;
#[cfg(target_os = "linux")]
mod sockets;
#[cfg(target_os = "linux")]
mod table;

#[cfg(target_os = "linux")]
pub(crate) use self::linux::Redirects;
#[cfg(not(target_os = "linux"))]
pub(crate) use self::none::Redirects;
#[cfg(all(test, target_os = "linux"))]
pub(crate) use self::sockets::Redirect;

/// The backend whose rules redirect traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    Nftables,
    Iptables,
}
