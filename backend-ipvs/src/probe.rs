//! A probe of the kernel: has it what IPVS needs as a proxy for Services?

use std::{path::Path, process::Command};

use switchyard_core::proxier::{Mode, ProxierError};
use switchyard_netlink::Error;
use switchyard_netlink::route::has_link_type;

/// Finds out whether the kernel has what IPVS needs. Creates nothing, but the kernel may load
/// modules.
///
/// # Errors
/// [`ProxierError::Unusable`] names the kernel module that is missing, without which kube-proxy's
/// ipvs mode does not start either.
pub(crate) fn probe() -> Result<(), ProxierError> {
    // First, so that nothing is loaded on a node that has no IPVS.
    if !has_ipvs() {
        return Err(missing("ip_vs"));
    }
    match has_link_type("dummy") {
        Ok(true) => Ok(()),
        Ok(false) => Err(missing("dummy")),
        Err(source) => Err(ProxierError::unusable(Mode::IPVS, NoLinkTypes(source))),
    }
}

/// Whether the kernel has IPVS, if need be after loading its module.
pub(crate) fn has_ipvs() -> bool {
    is_loaded() || {
        // The output of modprobe is of no use: the file shows whether it worked.
        let _ = Command::new("modprobe").args(["-q", "ip_vs"]).output();
        is_loaded()
    }
}

/// Whether the kernel has IPVS now.
pub(crate) fn is_loaded() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}

/// The error of a kernel without this module.
pub(crate) fn missing(module: &str) -> ProxierError {
    ProxierError::lacking(Mode::IPVS, format!("the kernel module {module} is missing"))
}

/// The kernel does not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask the kernel about the types of interfaces")]
struct NoLinkTypes(#[source] Error);
