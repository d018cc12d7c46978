//! Bridges whose packets do not pass the rules of Services.
//!
//! Where pods of the node are ports of one bridge, the answer of an endpoint to a pod of the same
//! bridge goes straight to the pod, with the endpoint's address, unless the module br_netfilter
//! shows bridged packets to netfilter (kubernetes/kubernetes#21613).

use std::{fs, io, path::Path};

use switchyard_core::{config::NodeConfig, error::ErrorChain, proxier::Profile};
use switchyard_kernel::route::bridges_of_veths;

/// Warns of each bridge of pods whose packets pass no rules, if the backend and the configuration
/// depend on that.
pub fn check(profile: &Profile, node: &NodeConfig) {
    // Answers to an address of the node pass the node in any case.
    if !profile.translates_flows || node.masquerade_all {
        return;
    }
    let bridges = bypassing_bridges().unwrap_or_else(|error| {
        tracing::debug!(err = %ErrorChain(&error), "Failed to list bridges");
        Vec::new()
    });
    for (bridge, remedy) in bridges {
        tracing::warn!(
            bridge,
            remedy,
            "Bridged packets bypass the rules: pods on one bridge may not reach each other through Services"
        );
    }
}

/// Returns the bridges of pods, in the calling thread's network namespace, whose packets pass no
/// rules of IPv4, each with the command that changes this.
///
/// # Errors
/// If the kernel does not list its interfaces.
pub fn bypassing_bridges() -> Result<Vec<(String, &'static str)>, switchyard_kernel::netlink::Error>
{
    let Some(missing) = missing(Path::new("/proc/sys")) else { return Ok(Vec::new()) };
    let bridges = bridges_of_veths()?.into_iter();
    let bypass = bridges.filter(|b| missing == Missing::Module || !b.calls_iptables);
    Ok(bypass.map(|bridge| (bridge.name, missing.remedy())).collect())
}

/// Why bridged packets pass no rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// The module br_netfilter is not loaded.
    Module,
    /// The module is loaded, and its setting is off.
    Setting,
}

impl Missing {
    fn remedy(self) -> &'static str {
        match self {
            Self::Module => "modprobe br_netfilter",
            Self::Setting => "sysctl -w net.bridge.bridge-nf-call-iptables=1",
        }
    }
}

/// Returns why bridged packets pass no rules, if that is the case unless a bridge has a setting of
/// its own.
fn missing(proc_sys: &Path) -> Option<Missing> {
    match fs::read_to_string(proc_sys.join("net/bridge/bridge-nf-call-iptables")) {
        Ok(text) => (text.trim() == "0").then_some(Missing::Setting),
        Err(error) => (error.kind() == io::ErrorKind::NotFound).then_some(Missing::Module),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_is_what_is_missing() {
        let directory = tempfile::TempDir::new().unwrap();
        let missing = || missing(directory.path());
        assert_eq!(missing().unwrap().remedy(), "modprobe br_netfilter");
        let bridge = directory.path().join("net/bridge");
        fs::create_dir_all(&bridge).unwrap();
        fs::write(bridge.join("bridge-nf-call-iptables"), "0\n").unwrap();
        let remedy = missing().unwrap().remedy();
        assert_eq!(remedy, "sysctl -w net.bridge.bridge-nf-call-iptables=1");
        fs::write(bridge.join("bridge-nf-call-iptables"), "1\n").unwrap();
        assert_eq!(missing(), None);
    }
}
