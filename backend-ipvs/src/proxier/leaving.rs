//! Endpoints that left Service ports: rules know them until virtual servers do not have them.

use std::{collections::HashSet, mem};

use switchyard_core::{
    model::{IpFamily, PerFamily},
    proxier::SyncReport,
    state::State,
    transition::Transition,
};
use switchyard_kernel::{
    ipvs::{RealServer, Selector},
    netlink::Error,
};

use super::{IpvsProxier, addresses::Addresses, refused::Refused};
use crate::{
    layout::servers::{self, is_of},
    rules::Leaving,
};

impl IpvsProxier {
    /// Has the rules know the endpoints that IPVS may choose although their Service ports do not
    /// have them, in families that the last sync did not program: when the process has started, and
    /// when a family was left out. What cannot be read is left out: the sync reads it again, and
    /// reports that.
    pub(super) fn find_leaving(&mut self, state: &State, families: &PerFamily<bool>) {
        let new = PerFamily::from_fn(|f| *families.get(f) && !*self.programmed.get(f));
        if new == PerFamily::default() {
            return;
        }
        let Ok(held) = self.kernel.read_virtual_servers() else { return };
        let held = held.into_iter().map(|server| server.selector);
        let held: HashSet<Selector> = held.filter(|selector| is_of(selector, &new)).collect();
        let context = self.basis.context(&state.node);
        let mut found = Vec::new();
        for port in state.service_ports.values() {
            servers::of_port(port, &context, |selector, server| {
                if held.contains(&selector) {
                    found.push((selector, server.port));
                }
            });
        }
        let mut leaving = Leaving::new();
        for (selector, port) in found {
            let reals = match self.kernel.real_servers(&selector) {
                Ok(reals) => reals,
                Err(Error::Kernel(_)) => continue,
                // Each further one would take as long.
                Err(_) => break,
            };
            let is_leaving = |real: &RealServer| real.weight > 0 && !port.serves(real.address);
            let gone = reals.into_iter().filter(is_leaving).map(|real| real.address);
            leaving.entry(port.id.clone()).or_default().extend(gone);
        }
        self.rules.expect(leaving);
    }

    /// Has the rules leave to IPVS what it delivers now, once packets come to all addresses of a
    /// family, and forget endpoints that it chooses no
    /// longer. Those of before serve as well, so that a refusal costs nothing but another attempt.
    /// Returns whether there was none.
    pub(super) async fn settle(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        seen: &Addresses,
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> bool {
        let is_routed = |family| family == IpFamily::V4 || self.unrouted.is_empty();
        let delivered =
            PerFamily::from_fn(|f| *self.delivered.get(f) || *families.get(f) && is_routed(f));
        let is_news = mem::replace(&mut self.delivered, delivered) != delivered;
        let delivery = seen.delivery(delivered, &self.basis.never_bound);
        let settled = self.rules.settle(change, is_news, delivery, report).await;
        if let Err(error) = &settled {
            report.refused.extend_from_slice(error.refused());
            refused.unsettled(error);
        }
        settled.is_ok()
    }
}
