//! Changes made by other programs: the changes of a comparison that nothing else explains.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use switchyard_core::{
    model::{IpFamily, ServiceName},
    proxier::{Drift, ProxierError},
    state::State,
};
use switchyard_kernel::ipvs::{RealServer, Selector, VirtualServer};

use super::{
    IpvsProxier, SyncError,
    commands::{Action, Commands, Named, Step},
    failed, failed_to,
    incremental::Difference,
};
use crate::{
    config::DEVICE,
    layout::{
        addresses,
        servers::{self, Server},
    },
};

/// The changes that a comparison finds to do although no other program has changed anything.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    pub(crate) difference: Difference,
    /// Addresses that came to other devices or went from them.
    pub(crate) moved: BTreeSet<IpAddr>,
    /// The real servers that were draining.
    pub(crate) draining: HashSet<(Selector, SocketAddr)>,
    /// The virtual servers whose scheduler is to be changed.
    pub(crate) waiting: BTreeSet<Selector>,
    /// The virtual servers and addresses about which the kernel refused something.
    pub(crate) refused: (BTreeSet<Selector>, BTreeSet<IpAddr>),
    /// Those that are named already.
    pub(crate) named: (BTreeSet<Selector>, BTreeSet<IpAddr>),
}

impl Expected {
    /// Adds what a comparison found besides.
    pub(crate) fn add_drift(
        &mut self,
        drift: &mut Drift,
        commands: [&Commands; 2],
        addresses: [&[IpAddr]; 3],
    ) {
        for step in commands.into_iter().flat_map(Commands::steps) {
            if !self.explains(step) && self.named.0.insert(step.selector) {
                let server = Named(&step.selector);
                drift
                    .found(|| format!("the virtual server {server} was missing, altered or added"));
            }
        }
        for ip in addresses.into_iter().flatten() {
            if !self.explains_address(*ip) && self.named.1.insert(*ip) {
                drift.found(|| format!("the address {ip} of kube-ipvs0 was missing or added"));
            }
        }
    }

    fn explains(&self, step: &Step) -> bool {
        let Step { selector, action } = step;
        let drains = |address: &SocketAddr| self.draining.contains(&(*selector, *address));
        self.difference.servers.contains_key(selector)
            || self.refused.0.contains(selector)
            || match action {
                Action::DeleteReal(address)
                | Action::DrainReal(address)
                | Action::EditReal(address, _) => drains(address),
                Action::EditServer(_) => self.waiting.contains(selector),
                Action::DeleteServer => self.draining.iter().any(|(of, _)| of == selector),
                _ => false,
            }
    }

    fn explains_address(&self, ip: IpAddr) -> bool {
        self.moved.contains(&ip)
            || self.difference.addresses.contains(&ip)
            || self.refused.1.contains(&ip)
    }
}

impl IpvsProxier {
    /// Finds what the kernel lacks of a Service, or has of it that it should not: virtual servers,
    /// real servers, addresses, and rules. What was refused, and connections that drain, are no
    /// difference.
    pub(super) fn find_drift(
        &mut self,
        state: &State,
        service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        let Some(mut drift) = self.rules.compare(service)? else { return Ok(None) };
        self.add_servers_drift(state, service, &mut drift).map_err(failed)?;
        Ok(Some(drift))
    }

    fn add_servers_drift(
        &mut self,
        state: &State,
        service: &ServiceName,
        drift: &mut Drift,
    ) -> Result<(), SyncError> {
        let bound = self.kernel.addresses()?;
        let held = self.kernel.virtual_servers().map_err(failed_to("list the virtual servers"))?;
        let held: HashMap<Selector, VirtualServer> =
            held.into_iter().map(|server| (server.selector, server)).collect();
        let context = self.basis.context(&state.node);
        let mut wanted: BTreeMap<Selector, Server> = BTreeMap::new();
        let ports = state.service_ports.values();
        for port in ports.filter(|port| *self.programmed.get(port.id.family)) {
            servers::of_port(port, &context, |at, server| drop(wanted.insert(at, server)));
            if port.id.name.service == *service {
                let missing = addresses::of_port(port, &self.held.elsewhere)
                    .filter(|ip| !bound.contains(ip) && !self.held.refused.1.contains(ip));
                missing.for_each(|ip| {
                    drift.found(|| format!("the address {ip} of {DEVICE} was missing"))
                });
            }
        }
        let refused = &self.held.refused;
        // A sync looks at the families that are programmed alone.
        let is_added =
            |ip: &&IpAddr| *self.programmed.get(IpFamily::of(ip)) && !refused.1.contains(*ip);
        for ip in bound.difference(&self.bound.lock()).filter(is_added) {
            drift.found(|| format!("the address {ip} of {DEVICE} was added"));
        }
        let is_strange = |at: &&Selector| {
            servers::is_of(at, &self.programmed)
                && !wanted.contains_key(*at)
                && !refused.0.contains(*at)
                && !self.draining.has(at)
                && !servers::is_excluded(at, &self.config.excluded)
        };
        for at in held.keys().filter(is_strange) {
            drift.found(|| format!("the virtual server {} was added", Named(at)));
        }
        wanted.retain(|_, server| server.port.id.name.service == *service);
        for (selector, server) in wanted {
            if self.held.refused.0.contains(&selector) {
                continue;
            }
            let is_same = match held.get(&selector) {
                // Without endpoints, rules answer.
                None => server.pool.is_none(),
                Some(held) => {
                    // The scheduler may be one that does the same, or wait to be changed.
                    let is_persistent = |of: &VirtualServer| of.flags & VirtualServer::PERSISTENT;
                    let should = server.definition(selector);
                    let keeps_clients = held.timeout == should.timeout
                        && is_persistent(held) == is_persistent(&should);
                    let reals = self.kernel.real_servers(&selector);
                    let reals = reals.map_err(failed_to("list the real servers of IPVS"))?;
                    let mut weights = server.weights();
                    let is_right = |real: RealServer| match weights.remove(&real.address) {
                        Some(weight) => real.weight == weight && real.is_masquerading,
                        // It drains.
                        None => real.weight == 0,
                    };
                    let all = reals.into_iter().all(is_right);
                    let refused = self.held.refused_reals.get(&selector);
                    keeps_clients
                        && all
                        && weights.keys().all(|real| refused.is_some_and(|of| of.contains(real)))
                }
            };
            if !is_same {
                let name = Named(&selector);
                drift.found(|| format!("the virtual server {name} was missing or altered"));
            }
        }
        Ok(())
    }
}
