//! The most real servers of a Service: each of its addresses has a virtual server with all of its
//! endpoints, and two objects can ask for so many that the kernel's memory does not suffice.

use std::collections::{HashMap, HashSet};

use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, ServiceName, ServicePortId},
    proxier::{DegradedPort, ProxierError, RefusedParts},
    state::ResolvedServicePort,
    transition::Transition,
};

use super::{IpvsProxier, SyncError, failed};
use crate::layout::{Context, servers};

/// The most real servers of a Service in a family, which take the kernel seconds, and some hundred
/// megabytes.
pub(super) const MOST: usize = 500_000;
/// The real servers up to which no change of a Service port makes a Service too large: core limits
/// the ports, addresses and endpoints of a Service.
const FEW: usize = 100;

impl IpvsProxier {
    /// Looks for Services that have too many real servers: among those that have changed, or among
    /// all if the node has.
    ///
    /// # Errors
    /// The Service ports beyond the limit are to be left out, the last by their ids.
    pub(super) fn check_size(&self, change: &Transition<'_>) -> Result<(), ProxierError> {
        let context = self.basis.context(&change.after().node);
        let is_all = change.before().is_none() || change.is_resync() || change.node_changed();
        let grown = change.ports().filter_map(|port| port.after);
        let grown = grown.filter(|port| count(port, &context) > FEW);
        let grown: HashSet<&ServiceName> = grown.map(|port| &port.id.name.service).collect();
        if !is_all && grown.is_empty() {
            return Ok(());
        }
        let mut services: HashMap<(&ServiceName, IpFamily), Vec<(&ServicePortId, usize)>> =
            HashMap::new();
        for (id, port) in &change.after().service_ports {
            if is_all || grown.contains(&id.name.service) {
                let of = services.entry((&id.name.service, id.family)).or_default();
                of.push((id, count(port, &context)));
            }
        }
        let mut ports = Vec::new();
        for mut of_service in services.into_values() {
            let mut left = self.most_reals;
            of_service.sort_unstable_by_key(|(id, _)| *id);
            for (id, count) in of_service {
                match left.checked_sub(count) {
                    Some(rest) => left = rest,
                    None => ports.push(id),
                }
            }
        }
        if ports.is_empty() {
            return Ok(());
        }
        let error = SyncError::TooMany(self.most_reals);
        let reason = ErrorChain(&error).to_string();
        let degraded =
            |id: &ServicePortId| DegradedPort { port: id.clone(), reason: reason.clone() };
        let ports = ports.into_iter().map(degraded).collect();
        Err(failed(error).of_parts(RefusedParts { ports, ..RefusedParts::default() }))
    }
}

/// The real servers of a Service port, at all of its addresses.
fn count(port: &std::sync::Arc<ResolvedServicePort>, context: &Context<'_>) -> usize {
    let mut count = 0;
    servers::of_port(port, context, |_, server| {
        count += server.pool.map_or(0, |kind| port.pool(kind).len());
    });
    count
}
