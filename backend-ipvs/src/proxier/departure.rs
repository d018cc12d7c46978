//! Removal of what goes with Service ports, before their rules: these refuse clients, and what is
//! no port of a Service, as long as the node takes packets to an address.

use std::net::IpAddr;

use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, PerFamily},
    proxier::SyncReport,
    transition::Transition,
};

use switchyard_kernel::ipvs::Selector;

use super::{
    IpvsProxier, SyncError,
    addresses::Addresses,
    commands::{Action, Commands},
    incremental::Difference,
};
use crate::layout::addresses;

impl IpvsProxier {
    /// Takes away the addresses that no Service port has any more: all of the device that are not
    /// wanted, unless they are known; and then the virtual servers of frontends that are gone with
    /// their addresses. Where an address stays, rules refuse its other ports before the virtual
    /// server goes. Returns what else is to be done, if that is known; after a failure, it is not.
    pub(super) fn take_away(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        is_known: bool,
        seen: &mut Addresses,
        report: &mut SyncReport,
    ) -> Option<Difference> {
        let context = self.basis.context(&change.after().node);
        let difference = change.before().map(|b| Difference::new(b, change, &context, families));
        let mut difference = difference.unwrap_or_default();
        let unbind = if is_known {
            let (bind, unbind) = self.plan_addresses(change, &difference.addresses);
            difference.bind = bind;
            unbind
        } else {
            self.unwanted(change, families, seen)
        };
        match self.take_away_now(&mut difference, &unbind, seen, report) {
            Ok(is_done) => (is_known && is_done).then_some(difference),
            Err(error) => {
                tracing::warn!(err = %ErrorChain(&error), "Change rejected; resyncing");
                None
            }
        }
    }

    /// Returns the addresses of the device that are not wanted.
    fn unwanted(
        &self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        seen: &Addresses,
    ) -> Vec<IpAddr> {
        let mut unwanted = seen.bound.clone();
        unwanted.retain(|ip| *families.get(IpFamily::of(ip)));
        let ports = change.after().service_ports.values();
        for ip in ports.flat_map(|port| addresses::of_port(port, &seen.elsewhere)) {
            unwanted.remove(&ip);
        }
        self.bound.lock().retain(|ip| !unwanted.contains(ip));
        unwanted.into_iter().collect()
    }

    /// Returns whether nothing was refused.
    fn take_away_now(
        &mut self,
        difference: &mut Difference,
        unbind: &[IpAddr],
        seen: &mut Addresses,
        report: &mut SyncReport,
    ) -> Result<bool, SyncError> {
        let refused = self.change_addresses(report, &[], unbind)?;
        if refused.is_empty() {
            seen.unbound = unbind.to_vec();
            for ip in unbind {
                seen.bound.remove(ip);
            }
        }
        let mut commands = Commands::default();
        let bound = self.bound.lock();
        let is_bound = |selector: &Selector| match selector {
            Selector::Address { ip, .. } => bound.contains(ip),
            Selector::Mark { .. } => true,
        };
        difference.servers.retain(|selector, sides| {
            // A node port may have the virtual server then.
            let is_claimed = self.basis.claimed.contains(selector);
            let (Some(before), None, false) =
                (&sides.0, &sides.1, is_claimed || is_bound(selector))
            else {
                return true;
            };
            if before.pool.is_some() || self.draining.has(selector) {
                self.draining.forget(selector);
                self.schedulers.forget(selector);
                commands.push(*selector, Action::DeleteServer);
            }
            false
        });
        drop(bound);
        Ok(self.commit(report, &commands)?.is_empty() && refused.is_empty())
    }
}
