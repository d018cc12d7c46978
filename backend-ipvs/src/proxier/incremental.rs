//! The changes of a transition, which a sync of changes alone trusts to be all that differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use switchyard_core::{
    model::PerFamily,
    state::ResolvedServicePort,
    transition::{Before, Transition},
};
use switchyard_netlink::ipvs::Selector;

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
