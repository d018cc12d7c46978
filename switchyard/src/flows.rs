//! The start of the removal of stale conntrack entries, where this process may remove them.

use std::fs;

use switchyard_core::{error::ErrorChain, proxier::Profile};
use switchyard_kernel::conntrack::{Reconciler, Report};
use tokio::sync::watch;

/// The bit of `CAP_NET_ADMIN` in a set of capabilities.
const CAP_NET_ADMIN: u32 = 12;

/// Starts the thread that removes stale entries after syncs, and sends a report of each attempt.
/// Returns the thread, and a sender that is closed when the thread has ended; `None`, after a
/// warning, if the privilege or the kernel's support is missing: the proxy runs without it, since
/// new flows need no removal.
pub(crate) fn start(
    profile: &Profile,
    mut report: impl FnMut(Report) + Send + 'static,
) -> Option<(Reconciler, watch::Sender<()>)> {
    if !profile.translates_flows {
        // The proxy itself is the destination of all flows, so that all would look stale.
        return None;
    }
    if let Some(false) = may_administer_networks() {
        tracing::warn!(
            "conntrack unavailable: stale UDP flows will not be removed without CAP_NET_ADMIN"
        );
        return None;
    }
    let (running, of_thread) = watch::channel(());
    let reconciler = Reconciler::start(move |result| {
        // The thread drops the receiver with this function.
        let _ = &of_thread;
        report(result);
    });
    reconciler
        .inspect_err(|error| {
            tracing::warn!(err = %ErrorChain(error), "conntrack unavailable: stale UDP flows will not be removed");
        })
        .ok()
        .map(|reconciler| (reconciler, running))
}

/// Returns whether this process has `CAP_NET_ADMIN`, or `None` if `/proc` does not have the answer.
fn may_administer_networks() -> Option<bool> {
    effective(&fs::read_to_string("/proc/self/status").ok()?)
        .map(|capabilities| capabilities & (1 << CAP_NET_ADMIN) != 0)
}

/// Parses the effective capabilities in `/proc/<pid>/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use switchyard_core::proxier::Mode;

    use super::*;

    #[test]
    fn capabilities_are_read() {
        let status = "Name:\tx\nCapPrm:\t0000000000000001\nCapEff:\t0000000000001000\n";
        assert_eq!(effective(status), Some(1 << CAP_NET_ADMIN));
        assert_eq!(effective("Name:\tx\n"), None);
        assert!(may_administer_networks().is_some());
    }

    #[test]
    fn userspace_has_no_flows_to_end() {
        let profile = Profile { translates_flows: false, ..Profile::new(Mode::USERSPACE) };
        assert!(start(&profile, |_| ()).is_none());
    }
}
