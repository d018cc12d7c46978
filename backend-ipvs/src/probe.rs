//! A probe of the kernel: has it what IPVS needs as a proxy for Services?

use std::{net::IpAddr, path::Path, process::Command, time::Duration};

use switchyard_core::proxier::{Mode, ProxierError};
use switchyard_kernel::{
    ipvs::{Batch, Ipvs, Refusal, Selector, VirtualServer},
    netlink::Error,
    program,
    route::has_link_type,
};

use crate::scheduler::Scheduler;

/// The longest time that modprobe may run at the start, which goes on without then.
const LOADING: Duration = Duration::from_secs(30);
/// The same in a sync, which holds up all Services. What the kernel has begun to load goes on.
pub(crate) const LOADING_IN_SYNC: Duration = Duration::from_secs(2);

/// Finds out whether the kernel has what IPVS needs. Nothing stays but modules that the kernel may
/// load.
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
        Ok(true) => {}
        Ok(false) => return Err(missing("dummy")),
        Err(source) => return Err(ProxierError::unusable(Mode::IPVS, NoLinkTypes(source))),
    }
    match Ipvs::open().and_then(|ipvs| ipvs.map_or(Ok(false), has_any_scheduler)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(missing("ip_vs_rr")),
        Err(source) => Err(ProxierError::unusable(Mode::IPVS, NoSchedulers(source))),
    }
}

/// Whether the kernel has one of the schedulers that take the place of any other.
fn has_any_scheduler(mut ipvs: Ipvs) -> Result<bool, Error> {
    for scheduler in Scheduler::ANY {
        if has_scheduler(&mut ipvs, scheduler, LOADING)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the kernel has a scheduler, if need be after loading its module: tried with a virtual
/// server at an address that no host has (RFC 5737), which is removed at once. `loading` is the
/// longest time that the loading may take.
pub(crate) fn has_scheduler(
    ipvs: &mut Ipvs,
    scheduler: Scheduler,
    loading: Duration,
) -> Result<bool, Error> {
    let selector = Selector::Address {
        protocol: libc::IPPROTO_TCP as u16,
        ip: IpAddr::from([198, 51, 100, 0]),
        port: 20_000,
    };
    // Not by the kernel, which would hold a lock of IPVS while it loads the module: if a network
    // namespace ends just then, that waits for the lock, and the modules of lblc and lblcr wait for
    // the namespace (seen with 6.1).
    load(&scheduler.module(), loading);
    let scheduler = scheduler.as_str().to_owned();
    let server = VirtualServer { selector, scheduler, flags: 0, timeout: 0, netmask: u32::MAX };
    let mut batch = Batch::default();
    // One may be left of a process that was killed.
    batch.delete_server(&selector);
    batch.add_server(&server);
    batch.delete_server(&selector);
    let refused = ipvs.commit(&batch)?;
    let is_missing = |refusal: &Refusal| refusal.index == 1 && refusal.errno == libc::ENOENT;
    Ok(!refused.iter().any(is_missing))
}

/// Whether the kernel has IPVS, if need be after loading its module.
pub(crate) fn has_ipvs() -> bool {
    is_loaded() || {
        load("ip_vs", LOADING);
        is_loaded()
    }
}

/// Loads a module of the kernel, if the node has the module and the program for that.
fn load(module: &str, limit: Duration) {
    // The result is of no use: what follows shows whether it worked.
    let _ = program::run(Command::new("modprobe").args(["-q", module]), &[], limit);
}

/// Whether the kernel has IPVS now.
pub(crate) fn is_loaded() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}

/// The error of a kernel without this module.
pub(crate) fn missing(module: &str) -> ProxierError {
    ProxierError::lacking(Mode::IPVS, format!("the kernel module {module} is missing"))
}

#[derive(Debug, thiserror::Error)]
#[error("cannot ask the kernel about the types of interfaces")]
struct NoLinkTypes(#[source] Error);

#[derive(Debug, thiserror::Error)]
#[error("cannot ask IPVS about its schedulers")]
struct NoSchedulers(#[source] Error);
