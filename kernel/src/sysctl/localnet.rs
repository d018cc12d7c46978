//! The kernel's setting that node ports on IPv4's loopback addresses need.

use std::{fs, path::Path};

use super::{SysctlError, set_sysctl};

/// The file of the setting, for all interfaces of this network namespace.
const ROUTE_LOCALNET: &str = "/proc/sys/net/ipv4/conf/all/route_localnet";

/// The value that switches the setting on.
const ON: &str = "1";

/// Whether the kernel routes packets with loopback addresses, as far as can be known.
pub fn routes_localnet() -> bool {
    fs::read_to_string(ROUTE_LOCALNET).is_ok_and(|text| text.trim() != "0")
}

/// Finds out whether [`route_localnet`] can succeed: the setting is made already, or can be
/// written. Changes nothing: what is written is the present value.
///
/// # Errors
/// The same as those of [`route_localnet`].
pub fn can_route_localnet() -> Result<(), SysctlError> {
    let path = Path::new(ROUTE_LOCALNET);
    let write_back = || match fs::read_to_string(path)? {
        text if text.trim() == ON => Ok(()),
        text => fs::write(path, text.trim()),
    };
    write_back().map_err(|source| SysctlError { path: path.to_owned(), value: ON, source })
}

/// Has the kernel route packets with loopback addresses through any interface: translated packets
/// that leave the node from 127.0.0.1, and the answers to them. Writes nothing if the kernel does
/// so already, and logs a change. Whoever calls this must keep packets of other hosts from loopback
/// addresses, as the kernel does otherwise.
///
/// # Errors
/// If the setting cannot be written, as without privileges or in a container with a read-only
/// `/proc/sys`.
pub fn route_localnet() -> Result<(), SysctlError> {
    set_sysctl(Path::new(ROUTE_LOCALNET), ON)
}
