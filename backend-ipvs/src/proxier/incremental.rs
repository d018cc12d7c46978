//! The changes of a transition, which a sync of changes alone trusts to be all that differs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
    sync::Arc,
};

use switchyard_core::{
    model::PerFamily,
    proxier::SyncReport,
    state::ResolvedServicePort,
    transition::{Before, Transition},
};
use switchyard_kernel::ipvs::{Refusal, Selector};

use super::{
    IpvsProxier, SyncError,
    commands::{Action, Step},
    refused::Refused,
    servers::ServerChanges,
};
use crate::layout::{
    Context,
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
        let was = Context { node: before.node(), ..context.clone() };
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
    /// Makes the kernel hold what else has changed, trusting that nothing else differs. Returns the
    /// endpoints that are refused, each of which costs itself.
    ///
    /// # Errors
    /// If the kernel refuses anything else.
    pub(super) fn sync_difference(
        &mut self,
        difference: Difference,
        report: &mut SyncReport,
    ) -> Result<Refused, SyncError> {
        let mut changes = ServerChanges::new(&mut self.draining, &mut self.schedulers, &self.order);
        let mut is_known = BTreeSet::new();
        for (selector, sides) in &difference.servers {
            // Each is tried again, and noted if it is refused again.
            let reals = self.held.refused_reals.get_mut(selector).map(mem::take);
            if reals.is_some() || !self.held.refused.0.contains(selector) {
                is_known.insert(*selector);
            }
            let reals = reals.unwrap_or_default();
            match sides {
                (None, Some(after)) => changes.add(*selector, after),
                (Some(before), Some(after)) => changes.change(*selector, before, after, &reals),
                (Some(before), None) => {
                    if before.pool.is_some() || changes.draining.has(selector) {
                        changes.delete(*selector);
                    }
                    self.held.refused.0.remove(selector);
                    self.held.refused_reals.remove(selector);
                }
                (None, None) => {}
            }
        }
        let ServerChanges { serve, retire, .. } = changes;
        let refused = self.commit(report, &serve)?;
        let refused = refused_endpoints(&difference, &is_known, refused)?;
        if let Some(error) =
            self.change_addresses(report, &difference.bind, &[])?.into_iter().next()
        {
            return Err(error.into());
        }
        self.commit_all(report, &retire)?;
        Ok(refused)
    }
}

/// Returns what is refused, if that is endpoints of virtual servers that have others, and about
/// which nothing else was refused.
fn refused_endpoints(
    difference: &Difference,
    is_known: &BTreeSet<Selector>,
    all: Vec<(Step, Refusal)>,
) -> Result<Refused, SyncError> {
    let count = all.len();
    let (mut refused, mut left) = (Refused::default(), HashMap::new());
    for (step, refusal) in all {
        let server = difference.servers.get(&step.selector).and_then(|sides| sides.1.as_ref());
        let is_endpoint = matches!(step.action, Action::AddReal(..))
            && !step.is_stale(&refusal)
            && is_known.contains(&step.selector);
        let Some(server) = server.filter(|_| is_endpoint) else {
            return Err(SyncError::Refused { step, refusal, count });
        };
        let left = left.entry(step.selector).or_insert_with(|| server.weights().len());
        *left -= 1;
        if *left == 0 {
            return Err(SyncError::Refused { step, refusal, count });
        }
        refused.command(Some(&server.port.id), step, refusal);
    }
    Ok(refused)
}
