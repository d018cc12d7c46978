//! The changes of a transition, which a sync of changes alone trusts to be all that differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use switchyard_core::{
    model::PerFamily,
    proxier::SyncReport,
    state::ResolvedServicePort,
    transition::{Before, Transition},
};
use switchyard_netlink::ipvs::Selector;

use super::{IpvsProxier, SyncError, servers::ServerChanges};
use crate::layout::{
    Context, addresses,
    servers::{self, Server},
};

/// A virtual server as it was and as it should be.
pub(crate) type BeforeAndAfter = (Option<Server>, Option<Server>);

/// Old and new objects of the changed Service ports.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Virtual servers as they were and as they should be.
    pub(crate) servers: BTreeMap<Selector, BeforeAndAfter>,
    /// The addresses of frontends.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Those of them that come, where that is known.
    pub(crate) bind: Vec<IpAddr>,
}

impl Difference {
    /// Compares what changes.
    pub(crate) fn new(
        before: Before<'_>,
        change: &Transition<'_>,
        context: &Context<'_>,
        families: &PerFamily<bool>,
    ) -> Self {
        let was = Context { node: before.node(), ..*context };
        let mut difference = Self::default();
        for port in change.ports().filter(|port| *families.get(port.id.family)) {
            if let Some(port) = port.before {
                difference.add(port, &was, |sides| &mut sides.0);
            }
            if let Some(port) = port.after {
                difference.add(port, context, |sides| &mut sides.1);
            }
        }
        difference
    }

    fn add(
        &mut self,
        port: &Arc<ResolvedServicePort>,
        context: &Context<'_>,
        side: fn(&mut BeforeAndAfter) -> &mut Option<Server>,
    ) {
        servers::of_port(port, context, |selector, server| {
            *side(self.servers.entry(selector).or_default()) = Some(server);
        });
        self.addresses.extend(port.frontends.iter().filter_map(|frontend| frontend.at.ip()));
    }
}

impl IpvsProxier {
    /// Makes the kernel hold what else has changed, trusting that nothing else differs.
    ///
    /// # Errors
    /// If the kernel refuses anything.
    pub(super) fn sync_difference(
        &mut self,
        difference: Difference,
        report: &mut SyncReport,
    ) -> Result<(), SyncError> {
        let mut changes =
            ServerChanges::new(&mut self.draining, &mut self.schedulers, Instant::now());
        for (selector, sides) in &difference.servers {
            match sides {
                (None, Some(after)) => changes.add(*selector, after),
                (Some(before), Some(after)) => changes.change(*selector, before, after),
                (Some(before), None) => {
                    if before.pool.is_some() || changes.draining.has(selector) {
                        changes.delete(*selector);
                    }
                }
                (None, None) => {}
            }
        }
        let ServerChanges { serve, retire, .. } = changes;
        self.commit_all(report, &serve)?;
        if let Some(error) =
            self.change_addresses(report, &difference.bind, &[])?.into_iter().next()
        {
            return Err(error.into());
        }
        self.commit_all(report, &retire)
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
}
