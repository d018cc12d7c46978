//! A comparison in parts, as IPVS does not announce what other programs change.
//!
//! The addresses and the virtual servers are two lists. If one shows a difference, everything is
//! compared at once. The real servers, which the kernel lists for one virtual server at a time, are
//! compared a part in each sync. So changes wait for a list or a part only.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    net::IpAddr,
};

use switchyard_core::{
    model::{IpFamily, PerFamily, ServicePortId},
    proxier::SyncReport,
    state::State,
    transition::Transition,
};
use switchyard_kernel::{ipvs::Selector, netlink::Error};

use super::{
    IpvsProxier, SyncError,
    addresses::Addresses,
    drift::Expected,
    failed_to,
    full::{Wanted, held_servers},
    refused::Refused,
    servers::ServerChanges,
};
use crate::layout::{
    addresses,
    servers::{self, is_excluded},
};

/// The number of virtual servers whose real servers a sync compares.
const PART: usize = 256;

/// The rest of a comparison.
#[derive(Debug)]
pub(super) struct Checkup {
    /// Whether the virtual servers are still to be listed.
    is_listing: bool,
    /// The Service ports whose real servers are still to be compared.
    left: Vec<ServicePortId>,
    pub(super) part: usize,
}

impl Default for Checkup {
    fn default() -> Self {
        Self { is_listing: false, left: Vec::new(), part: PART }
    }
}

impl Checkup {
    pub(super) fn is_over(&self) -> bool {
        !self.is_listing && self.left.is_empty()
    }

    /// Ends the comparison, as everything is compared at once.
    pub(super) fn end(&mut self) {
        self.is_listing = false;
        self.left.clear();
    }
}

impl IpvsProxier {
    /// Begins a comparison, if it is time for one, and goes on with the one that was begun, where
    /// the kernel should hold `change.after()`. Returns whether everything is to be compared at
    /// once.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub(super) fn check_up(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> Result<bool, SyncError> {
        let state = change.after();
        if change.is_checkup() && self.checkup.is_over() {
            self.set_kernel(report)?;
            if self.try_schedulers(state)? {
                return Ok(true);
            }
            let seen = self.addresses(false)?;
            if self.do_addresses_differ(state, families, &seen) {
                return Ok(true);
            }
            self.checkup.is_listing = true;
            if state.service_ports.len() > self.checkup.part {
                return Ok(false);
            }
        }
        if mem::take(&mut self.checkup.is_listing) {
            if self.do_servers_differ(state, families)? {
                return Ok(true);
            }
            let ports = state.service_ports.keys().filter(|id| *families.get(id.family));
            self.checkup.left = ports.cloned().collect();
            if self.checkup.left.len() > self.checkup.part {
                return Ok(false);
            }
        }
        self.compare_part(state, families, report, refused)
    }

    fn do_addresses_differ(
        &self,
        state: &State,
        families: &PerFamily<bool>,
        seen: &Addresses,
    ) -> bool {
        let of_families = |ips: &BTreeSet<IpAddr>| -> Vec<IpAddr> {
            ips.iter().copied().filter(|ip| *families.get(IpFamily::of(ip))).collect()
        };
        let mut external = state.service_ports.values().flat_map(|p| addresses::external(p));
        let then = &self.held.elsewhere;
        seen.is_made
            || of_families(&seen.bound) != of_families(&self.bound.lock())
            || external.any(|ip| seen.elsewhere.contains(&ip) != then.contains(&ip))
    }

    fn do_servers_differ(
        &mut self,
        state: &State,
        families: &PerFamily<bool>,
    ) -> Result<bool, SyncError> {
        let found = self.kernel.read_virtual_servers();
        let found = found.map_err(failed_to("list the virtual servers of IPVS"))?;
        let mut held = HashMap::new();
        for family in IpFamily::ALL.into_iter().filter(|family| *families.get(*family)) {
            held.extend(held_servers(&found, family));
        }
        let ours = held.keys().filter(|at| !is_excluded(at, &self.config.excluded));
        let mut unwanted: HashSet<Selector> = ours.copied().collect();
        let context = self.basis.context(&state.node);
        let (schedulers, draining) = (&mut self.schedulers, &self.draining);
        let mut differ = false;
        for port in state.service_ports.values().filter(|port| *families.get(port.id.family)) {
            servers::of_port(port, &context, |selector, server| {
                let is_wanted = server.pool.is_some() || draining.has(&selector);
                differ |= match held.get(&selector) {
                    Some(found) => {
                        let wanted = server.definition(selector);
                        let held = found.scheduler.clone();
                        !is_wanted || **found != schedulers.settle(held, &server, wanted)
                    }
                    None => server.pool.is_some(),
                };
                unwanted.remove(&selector);
            });
        }
        Ok(differ || !unwanted.is_empty())
    }

    fn compare_part(
        &mut self,
        state: &State,
        families: &PerFamily<bool>,
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> Result<bool, SyncError> {
        let context = self.basis.context(&state.node);
        let mut wanted = Wanted::default();
        while wanted.servers.len() < self.checkup.part
            && let Some(id) = self.checkup.left.pop()
        {
            let port = state.service_ports.get(&id).filter(|_| *families.get(id.family));
            if let Some(port) = port {
                servers::of_port(port, &context, |selector, server| {
                    if server.pool.is_some() || self.draining.has(&selector) {
                        wanted.servers.insert(selector, server);
                    }
                });
            }
        }
        if wanted.servers.is_empty() {
            return Ok(false);
        }
        let mut expected = Expected {
            draining: self.draining.all(),
            refused: self.held.refused.clone(),
            ..Expected::default()
        };
        let mut changes = ServerChanges::new(&mut self.draining, &mut self.schedulers, &self.order);
        for (selector, server) in &wanted.servers {
            match (self.kernel.real_servers(selector), "list the real servers of IPVS") {
                // The virtual server may be gone.
                (Ok(reals), _) if reals.is_empty() && server.pool.is_some() => return Ok(true),
                (Ok(reals), _) => changes.compare_reals(*selector, &reals, server),
                (Err(error @ Error::Kernel(_)), action) => {
                    refused.unread(*selector, &SyncError::Ipvs(action, error));
                }
                (Err(error), action) => return Err(SyncError::Ipvs(action, error)),
            }
        }
        let ServerChanges { serve, retire, .. } = changes;
        expected.add_drift(&mut report.drift, [&serve, &retire], [&[]; 3]);
        // What is still refused is found again.
        for (selector, server) in &wanted.servers {
            self.held.refused.0.remove(selector);
            self.held.refused_reals.remove(selector);
            self.degraded.endpoints.remove(&server.port.id);
        }
        self.commit_servers(&serve, &wanted, report, refused)?;
        self.commit_servers(&retire, &wanted, report, refused)?;
        Ok(false)
    }
}
