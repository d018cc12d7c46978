//! The kernel's setting that node ports on IPv4's loopback addresses need.

use std::path::Path;

use crate::{SysctlError, set_sysctl};

/// The file of the setting, for all interfaces of this network namespace.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// Has the kernel route packets with loopback addresses through any interface: translated packets
/// that leave the node from 127.0.0.1, and the answers to them. Writes nothing if the kernel does so
/// already, and logs a change. Whoever calls this must keep packets of other hosts from loopback
/// addresses, as the kernel does otherwise.
///
/// # Errors
/// If the setting cannot be written, as without privileges or in a container with a read-only
/// `/proc/sys`.
pub fn route_localnet() -> Result<(), SysctlError> {
    set_sysctl(Path::new(ROUTE_LOCALNET), "1")
}
