//! Capabilities of this kernel and this user, which a case may need.

use std::{io, path::Path, process::Command};

use crate::{
    error::{Result, RigError},
    netns::NetNs,
};

/// Checks that namespaces can be made and configured here; the error names what is missing.
pub fn can_build_namespaces() -> Result<()> {
    NetNs::new().map(drop)
}

/// Whether the kernel has SCTP sockets. The kernel may load the module `sctp` to answer, as it does
/// for any user's socket. The module stays, and changes no other test: the answer is the same
/// before and after.
pub fn has_sctp() -> bool {
    // SAFETY: plain system calls on a descriptor that is closed at once.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP);
        if fd < 0 {
            return io::Error::last_os_error().raw_os_error() != Some(libc::EPROTONOSUPPORT);
        }
        libc::close(fd);
    }
    true
}

/// Whether the kernel has IPVS now.
pub fn has_ipvs() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}

/// Whether the kernel has IPVS, if need be after loading its module.
pub fn load_ipvs() -> bool {
    has_ipvs() || {
        // The output of modprobe is of no use: the file shows whether it worked.
        let _ = Command::new("modprobe").args(["-q", "ip_vs"]).output();
        has_ipvs()
    }
}

/// Whether the kernel has flowtables, which take flows past the rules.
///
/// # Errors
///
/// If this cannot be tried.
pub fn has_flowtables() -> Result<bool> {
    let flowtable =
        "add table inet t\nadd flowtable inet t f { hook ingress priority 0; devices = { lo }; }\n";
    match NetNs::new()?.nft(flowtable) {
        Ok(()) => Ok(true),
        // The answer of the kernel, as opposed to nft's own.
        Err(RigError::Failed { stderr, .. }) if stderr.contains("Could not process rule") => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
