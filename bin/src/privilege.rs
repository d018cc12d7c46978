//! CAP_NET_ADMIN, the capability that this program and the programs that it runs need.
//!
//! A user other than root gets the capability from the file of the program. A program that such a
//! user runs inherits it only if it is in the ambient set; without it, iptables could not even
//! list the rules that kube-proxy left behind.

use rustix::{
    io,
    process::geteuid,
    thread::{CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities},
};
use switchyard_core::error::ErrorChain;

/// Passes CAP_NET_ADMIN on to all programs that are run later, if this program has the capability.
/// Concerns the calling thread and the threads that it starts later.
pub fn pass_on() {
    if let Err(error) = try_pass_on() {
        tracing::warn!(err = %ErrorChain(&error), "Failed to pass CAP_NET_ADMIN on to other programs");
    }
}

fn try_pass_on() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    // Programs that root runs have root's capabilities.
    if geteuid().is_root() || !sets.permitted.contains(CapabilitySet::NET_ADMIN) {
        return Ok(());
    }
    sets.inheritable |= CapabilitySet::NET_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::NET_ADMIN, true)
}
