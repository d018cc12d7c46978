//! The most real servers of a Service: each of its addresses has a virtual server with all of its
//! endpoints, and two objects can ask for so many that the kernel's memory does not suffice.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use switchyard_core::{
    error::ErrorChain,
    model::{PerFamily, ServiceName, ServicePortId},
    proxier::{DegradedPort, ProxierError, RefusedParts},
    state::ResolvedServicePort,
    transition::Transition,
};

use super::{IpvsProxier, SyncError, failed};
use crate::layout::{Context, servers};

/// The most real servers of a Service in a family, which take the kernel seconds, and some hundred
/// megabytes.
pub(super) const MOST: usize = 500_000;
/// The real servers of a Service port up to which they do not count: those of as many ports as core
/// lets a Service have take no more than those that do.
const FEW: usize = 25;

/// The Service ports whose real servers count, by their Service, with the numbers of these.
pub(super) type Large = HashMap<ServiceName, BTreeMap<ServicePortId, usize>>;

impl IpvsProxier {
    /// Looks for Services that have too many real servers: among those that have changed, or among
    /// all if the node has.
    ///
    /// # Errors
    /// The Service ports beyond the limit are to be left out, the last by their ids.
    pub(super) fn check_size(&mut self, change: &Transition<'_>) -> Result<(), ProxierError> {
        let is_all = change.before().is_none() || change.is_resync() || change.node_changed();
        if is_all {
            self.large.clear();
        }
        let context = self.basis.context(&change.after().node);
        let mut grown = HashSet::new();
        let mut note = |id: &ServicePortId, port: Option<&Arc<ResolvedServicePort>>| {
            let service = &id.name.service;
            let count = port.map_or(0, |port| count(port, &context));
            if count > FEW {
                self.large.entry(service.clone()).or_default().insert(id.clone(), count);
                grown.insert(service.clone());
            } else if let Some(ports) = self.large.get_mut(service) {
                ports.remove(id);
                if ports.is_empty() {
                    self.large.remove(service);
                }
            }
        };
        if is_all {
            change.after().service_ports.iter().for_each(|(id, port)| note(id, Some(port)));
        } else {
            change.ports().for_each(|port| note(port.id, port.after));
        }
        let mut ports = Vec::new();
        for of_service in grown.iter().filter_map(|service| self.large.get(service)) {
            let mut left = PerFamily::from_fn(|_| self.most_reals);
            for (id, count) in of_service {
                let left = left.get_mut(id.family);
                match left.checked_sub(*count) {
                    Some(rest) => *left = rest,
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
fn count(port: &Arc<ResolvedServicePort>, context: &Context<'_>) -> usize {
    let mut count = 0;
    servers::of_port(port, context, |_, server| {
        count += server.pool.map_or(0, |kind| port.pool(kind).len());
    });
    count
}
