//! A probe of the kernel: has it what IPVS needs as a proxy for Services?

use std::{fmt::Display, path::Path, process::Command};

use switchyard_core::{
    model::{IpFamily, PerFamily},
    proxier::{Mode, ProxierError},
};
use switchyard_netlink::Error;
use switchyard_netlink::ipset::{IpSets, SetType};
use switchyard_netlink::route::has_link_type;

use crate::packet_filter::PacketFilter;

/// Finds out whether the node can run the backend, and returns the families and the packet filter, which
/// `choose` chooses. Creates nothing, but the kernel may load modules.
///
/// # Errors
/// [`ProxierError::Unusable`] names the kernel modules that are missing: those without which kube-proxy's ipvs
/// mode does not start either.
pub(crate) fn probe(
    families: PerFamily<bool>,
    choose: impl FnOnce() -> PacketFilter,
) -> Result<(PerFamily<bool>, PacketFilter), ProxierError> {
    // First, so that nothing is loaded on a node that has no IPVS.
    if !has_ipvs() {
        return Err(missing(["ip_vs"]));
    }
    let filter = choose();
    let families = filter.families(families);
    let mut modules = Vec::new();
    if let PacketFilter::Iptables(_) = filter {
        modules.extend(missing_sets(families).map_err(failed("the IP sets"))?);
    }
    match has_link_type("dummy") {
        Ok(true) => {}
        Ok(false) => modules.push("dummy".to_owned()),
        Err(error) => return Err(failed("the types of interfaces")(error)),
    }
    match modules.is_empty() {
        true => Ok((families, filter)),
        false => Err(missing(modules)),
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

/// Returns the modules of IP sets that the kernel lacks in these families.
fn missing_sets(families: PerFamily<bool>) -> Result<Vec<String>, Error> {
    let mut sets = IpSets::open()?;
    if !sets.is_available()? {
        return Ok(vec!["ip_set".to_owned()]);
    }
    let mut missing = Vec::new();
    for kind in SetType::ALL {
        let mut is_there = true;
        for family in IpFamily::ALL.into_iter().filter(|family| *families.get(*family)) {
            is_there &= sets.has_type(kind, family == IpFamily::V6)?;
        }
        if !is_there {
            missing.push(kind.module());
        }
    }
    Ok(missing)
}

/// The error of a kernel without these modules, which are at least one.
pub(crate) fn missing<M: Display>(modules: impl IntoIterator<Item = M>) -> ProxierError {
    let modules: Vec<String> = modules.into_iter().map(|module| module.to_string()).collect();
    let what = match &modules[..] {
        [one] => format!("the kernel module {one} is missing"),
        several => format!("the kernel modules {} are missing", several.join(", ")),
    };
    ProxierError::lacking(Mode::IPVS, what)
}

/// The error of a kernel that does not answer.
fn failed(about: &'static str) -> impl Fn(Error) -> ProxierError {
    move |source| ProxierError::unusable(Mode::IPVS, Unanswered { about, source })
}

/// A question that the kernel does not answer.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask the kernel about {about}")]
struct Unanswered {
    about: &'static str,
    source: Error,
}

#[cfg(test)]
mod tests {
    use switchyard_core::error::ErrorChain;

    use super::*;

    #[test]
    fn modules_that_are_missing_are_named() {
        let text = ErrorChain(&missing(["ip_vs"])).to_string();
        assert_eq!(text, "ipvs cannot be used on this node: the kernel module ip_vs is missing");
        let text = ErrorChain(&missing(["ip_set_hash_ip", "dummy"])).to_string();
        assert!(text.ends_with(": the kernel modules ip_set_hash_ip, dummy are missing"), "{text}");
    }
}
