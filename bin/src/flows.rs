//! The removal of stale conntrack entries, where that is possible.

use std::{fs, sync::Arc};

use conntrack::Reconciler;

use crate::{config::settings::Mode, metrics::Metrics};

/// The number of `CAP_NET_ADMIN` in a set of capabilities.
const CAP_NET_ADMIN: u32 = 12;

/// Starts to remove stale entries after syncs. Without the privilege, or the kernel's part of it,
/// the proxy goes on: new flows are right anyway.
pub fn start(mode: Mode, metrics: Arc<Metrics>) -> Option<Reconciler> {
    if mode == Mode::Userspace {
        // The proxy itself answers there, so that all flows would look stale.
        return None;
    }
    if let Some(false) = may_administer_networks() {
        tracing::warn!("Stale UDP flows will not be ended: CAP_NET_ADMIN is missing");
        return None;
    }
    let report = move |report| metrics.flows_reconciled(report);
    Reconciler::start(report)
        .inspect_err(|error| {
            tracing::warn!(err = crate::error_chain(error), "Stale UDP flows will not be ended");
        })
        .ok()
}

/// Whether this process has `CAP_NET_ADMIN`, if that can be found out.
fn may_administer_networks() -> Option<bool> {
    effective(&fs::read_to_string("/proc/self/status").ok()?)
        .map(|capabilities| capabilities & (1 << CAP_NET_ADMIN) != 0)
}

/// The effective capabilities in `/proc/<pid>/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
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
        assert!(start(Mode::Userspace, Arc::new(Metrics::for_tests())).is_none());
    }
}
