//! Addresses of the device, and of the node.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use switchyard_core::{model::PerFamily, proxier::SyncReport, transition::Transition};
use switchyard_kernel::route::DeviceError;

use super::{IpvsProxier, SyncError, refused::Refused};
use crate::{layout::addresses, rules::Delivery};

/// The addresses of the node when a sync begins, in both families.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// The addresses of `kube-ipvs0`.
    pub(super) bound: BTreeSet<IpAddr>,
    /// Those that were there and that no Service port has.
    pub(super) unbound: Vec<IpAddr>,
    /// The addresses that are not to be bound although Services have them.
    pub(super) elsewhere: Arc<BTreeSet<IpAddr>>,
    /// Those of the device to which packets may not come yet.
    pub(super) late: BTreeSet<IpAddr>,
    /// Whether the device was made.
    pub(super) is_made: bool,
}

impl Addresses {
    /// The inputs of the rules where IPVS delivers everything of these families.
    pub(super) fn delivery<'a>(
        &'a self,
        families: PerFamily<bool>,
        never_bound: &'a BTreeSet<IpAddr>,
    ) -> Delivery<'a> {
        let Self { bound, late, elsewhere, .. } = self;
        Delivery { families, bound, late, elsewhere, never_bound }
    }
}

/// The longest that a sync waits for routes.
const PATIENCE: Duration = Duration::from_secs(2);

/// Addresses of IPv6 that the device has, and whose packets the kernel may still send elsewhere: it
/// makes the route of an address after it has added the address.
#[derive(Debug, Default)]
pub(super) struct Unrouted {
    /// Those that were added since routes were last waited for.
    added: Vec<IpAddr>,
    /// Those whose routes did not come in time.
    late: BTreeSet<IpAddr>,
}

impl Unrouted {
    /// Follows a change of the device's addresses, of which the kernel refused some.
    fn follow(&mut self, bind: &[IpAddr], unbind: &[IpAddr], refused: &[DeviceError]) {
        let address = |error: &DeviceError| match error {
            DeviceError::Address { address, .. } => Some(*address),
            _ => None,
        };
        let refused: BTreeSet<IpAddr> = refused.iter().filter_map(address).collect();
        let gone: BTreeSet<IpAddr> = unbind.iter().copied().collect();
        self.added.retain(|ip| !gone.contains(ip));
        self.added.extend(bind.iter().filter(|ip| ip.is_ipv6() && !refused.contains(*ip)));
        for ip in bind.iter().chain(unbind) {
            self.late.remove(ip);
        }
    }

    /// Whether packets come to all addresses.
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.late.is_empty()
    }
}

impl IpvsProxier {
    /// Waits for the routes of addresses that were added, and, where everything was compared, looks
    /// at those that did not come in time before. What does not come is a leftover.
    pub(super) fn await_routes(&mut self, refused: &mut Refused) -> Result<(), SyncError> {
        let Unrouted { added, late } = &mut self.unrouted;
        if refused.is_compared && !late.is_empty() {
            let ips: Vec<IpAddr> = late.iter().copied().collect();
            *late = self.kernel.await_local(&ips, Duration::ZERO)?.into_iter().collect();
        }
        if !added.is_empty() {
            // Where routes do not come, no further sync is held up for them.
            let patience = if late.is_empty() { PATIENCE } else { Duration::ZERO };
            late.extend(self.kernel.await_local(added, patience)?);
            added.clear();
        }
        if let Some(first) = late.first() {
            refused.unrouted(&SyncError::Unrouted { first: *first, count: late.len() });
        }
        Ok(())
    }

    /// Takes in the addresses that are never bound. Returns whether they are news.
    pub(super) fn learns_never_bound(&mut self) -> bool {
        let known = self.config.never_bound.lock();
        let is_news = *known != self.basis.never_bound;
        if is_news {
            self.basis.never_bound.clone_from(&known);
        }
        is_news
    }

    /// Whether an address that a changed Service port names came to another device of the node, or
    /// left it, which concerns all Service ports with the address.
    pub(super) fn have_addresses_moved(
        &mut self,
        change: &Transition<'_>,
    ) -> Result<bool, SyncError> {
        let after = change.ports().filter_map(|port| port.after);
        let external: BTreeSet<IpAddr> = after.flat_map(|p| addresses::external(p)).collect();
        if external.is_empty() {
            return Ok(false);
        }
        let (now, then) = (self.elsewhere()?, &*self.held.elsewhere);
        Ok(external.iter().any(|ip| now.contains(ip) != then.contains(ip)))
    }

    /// Returns the addresses that are not to be bound although Services have them.
    fn elsewhere(&mut self) -> Result<BTreeSet<IpAddr>, DeviceError> {
        let mut elsewhere = self.kernel.other_addresses()?;
        elsewhere.extend(&self.basis.never_bound);
        Ok(elsewhere)
    }

    /// Returns the addresses of the device, unless they are known, and those that are not to be
    /// bound.
    pub(super) fn addresses(&mut self, is_known: bool) -> Result<Addresses, SyncError> {
        if is_known {
            let elsewhere = Arc::clone(&self.held.elsewhere);
            return Ok(Addresses { elsewhere, ..Addresses::default() });
        }
        let mut late = self.unrouted.late.clone();
        late.extend(&self.unrouted.added);
        let is_made = self.kernel.ensure_device()?;
        let bound = self.kernel.addresses()?;
        let elsewhere = Arc::new(self.elsewhere()?);
        Ok(Addresses { is_made, bound, late, elsewhere, ..Addresses::default() })
    }

    /// Returns which of these addresses to bind and which to unbind.
    pub(super) fn plan_addresses(
        &mut self,
        change: &Transition<'_>,
        touched: &BTreeSet<IpAddr>,
    ) -> (Vec<IpAddr>, Vec<IpAddr>) {
        let (elsewhere, mut bound) = (&self.held.elsewhere, self.bound.lock());
        let of = |port| addresses::of_port(port, elsewhere).filter(|ip| touched.contains(ip));
        let changed = change.ports().filter_map(|port| port.after);
        let mut wanted: BTreeSet<IpAddr> = changed.flat_map(|port| of(port)).collect();
        if touched.iter().any(|ip| bound.contains(ip) && !wanted.contains(ip)) {
            // Another Service port may have it.
            wanted.extend(change.after().service_ports.values().flat_map(|port| of(port)));
        }
        let (mut bind, mut unbind) = (Vec::new(), Vec::new());
        for &ip in touched {
            match wanted.contains(&ip) {
                true if bound.insert(ip) => bind.push(ip),
                false if bound.remove(&ip) => unbind.push(ip),
                _ => {}
            }
        }
        (bind, unbind)
    }

    /// Changes the addresses of the device, and returns those that the kernel refused.
    pub(super) fn change_addresses(
        &mut self,
        report: &mut SyncReport,
        bind: &[IpAddr],
        unbind: &[IpAddr],
    ) -> Result<Vec<DeviceError>, DeviceError> {
        if bind.is_empty() && unbind.is_empty() {
            return Ok(Vec::new());
        }
        let start = Instant::now();
        let refused = self.kernel.change_addresses(bind, unbind)?;
        self.unrouted.follow(bind, unbind, &refused);
        report.commit += start.elapsed();
        report.added += bind.len();
        report.removed += unbind.len();
        report.messages += bind.len() + unbind.len();
        Ok(refused)
    }
}
