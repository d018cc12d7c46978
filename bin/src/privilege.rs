//! The one capability that this program needs, and the programs that it starts need as well.
//!
//! A user other than root has CAP_NET_ADMIN because the file of the program grants it. What such a
//! user starts has nothing again, unless the capability is in the ambient set: without it, iptables
//! could not even tell whether kube-proxy has left rules behind.

use rustix::{
    io,
    process::geteuid,
    thread::{CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities},
};

/// Lets programs that are started from now on have CAP_NET_ADMIN if this one has it. That goes for
/// the calling thread and the threads that it makes later.
pub fn pass_on() {
    if let Err(error) = try_pass_on() {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, "Programs that are called cannot have CAP_NET_ADMIN");
    }
}

fn try_pass_on() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    // Whatever root starts has root's capabilities.
    if geteuid().is_root() || !sets.permitted.contains(CapabilitySet::NET_ADMIN) {
        return Ok(());
    }
    sets.inheritable |= CapabilitySet::NET_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::NET_ADMIN, true)
}
