//! A sync of everything: reads what the kernel holds, whichever program put it there, and changes
//! what differs. Each family is synced by itself, and each step of it is done, whatever the kernel
//! refused before.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
    sync::Arc,
};

use switchyard_core::{
    model::{IpFamily, PerFamily, ServicePortId},
    proxier::SyncReport,
    state::State,
    transition::Transition,
};
use switchyard_kernel::{
    ipvs::{Refusal, Selector, VirtualServer},
    netlink::Error,
};

use super::{
    IpvsProxier, SyncError,
    addresses::Addresses,
    commands::{Action, Commands, Step},
    drift::Expected,
    failed_to,
    incremental::Difference,
    refused::Refused,
    servers::ServerChanges,
};
use crate::{
    layout::{
        Context, addresses,
        servers::{self, Server, is_excluded, is_of},
    },
    scheduler::Scheduler,
};

/// The inputs of a family's sync.
struct Pass<'a> {
    family: IpFamily,
    state: &'a State,
    seen: &'a Addresses,
    servers: &'a [VirtualServer],
    /// Whether the rules of every Service port are there.
    is_ruled: bool,
}

impl IpvsProxier {
    /// Makes the kernel hold a state in these families, and returns what it refused. `was_sure` is
    /// whether the kernel is known to hold what was synced before. What is new of a Service port
    /// without its rules is left out.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub(super) fn sync_full(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        was_sure: bool,
        seen: &Addresses,
        report: &mut SyncReport,
    ) -> Result<Refused, SyncError> {
        self.checkup.end();
        self.set_kernel(report)?;
        report.added += usize::from(seen.is_made);
        let was_sure = !self.try_schedulers(change.after())? && was_sure;
        let mut claimed = BTreeSet::new();
        for port in change.after().service_ports.values() {
            servers::claimed(port, &change.after().node, &self.basis.never_bound, |selector| {
                claimed.insert(selector);
            });
        }
        self.basis.claimed = claimed;
        // A change of the node's settings may change anything.
        let is_explained = was_sure && change.before().is_some() && !change.node_changed();
        let mut expected = is_explained.then(|| Expected {
            moved: seen.elsewhere.symmetric_difference(&self.held.elsewhere).copied().collect(),
            draining: self.draining.all(),
            waiting: self.schedulers.waiting(families).collect(),
            refused: mem::take(&mut self.held.refused),
            ..Expected::default()
        });
        self.held.elsewhere = Arc::clone(&seen.elsewhere);
        let mut refused = self.compare(change, families, seen, &mut expected, report)?;
        if refused.is_stale {
            // Another program has changed something in the meantime.
            self.try_schedulers(change.after())?;
            let seen = self.addresses(false)?;
            self.held.elsewhere = Arc::clone(&seen.elsewhere);
            refused = self.compare(change, families, &seen, &mut expected, report)?;
        }
        refused.is_compared = true;
        Ok(refused)
    }

    pub(super) fn try_schedulers(&mut self, state: &State) -> Result<bool, SyncError> {
        let asked = state.service_ports.values();
        let asked = asked.map(|port| Scheduler::choose(self.basis.scheduler, port));
        // That of weights is known before the first ones come, which would have all compared.
        let scheduler = self.basis.scheduler;
        let asked = asked.chain([scheduler, scheduler.weighted()]).collect();
        let tried = self.basis.tried.try_all(asked, &mut *self.kernel);
        tried.map_err(failed_to("try a scheduler of IPVS"))
    }

    /// Compares everything once.
    fn compare(
        &mut self,
        change: &Transition<'_>,
        families: &PerFamily<bool>,
        seen: &Addresses,
        expected: &mut Option<Expected>,
        report: &mut SyncReport,
    ) -> Result<Refused, SyncError> {
        let state = change.after();
        let servers =
            self.kernel.virtual_servers().map_err(failed_to("list the virtual servers of IPVS"))?;
        let is_ruled = state.service_ports.keys().all(|id| self.rules.holds(id));
        let context = self.basis.context(&state.node);
        if let (Some(expected), Some(before)) = (&mut *expected, change.before()) {
            expected.difference = Difference::new(before, change, &context, families);
        }
        let programmed = IpFamily::ALL.into_iter().filter(|family| *families.get(*family));
        let wanted: Vec<_> = programmed
            .map(|family| (family, Wanted::new(state, &context, family, &seen.elsewhere)))
            .collect();
        let mut refused = Refused::default();
        // What a family that is left out has on the device stays: only a change of that is news.
        let mut bound = self.bound.lock();
        bound.retain(|ip| *families.get(IpFamily::of(ip)));
        bound.extend(seen.bound.iter().filter(|ip| !*families.get(IpFamily::of(ip))));
        drop(bound);
        for (family, wanted) in wanted {
            let expected = expected.as_mut().filter(|_| *self.programmed.get(family));
            // Before they are bound, so that the monitor knows whose they are.
            let mut bound = self.bound.lock();
            bound.retain(|ip| IpFamily::of(ip) != family);
            bound.extend(&wanted.bound);
            drop(bound);
            let pass = Pass { family, state, seen, servers: &servers, is_ruled };
            if let Err(error) = self.sync_family(&pass, &wanted, expected, report, &mut refused) {
                refused.family(family, error);
            }
        }
        Ok(refused)
    }

    /// Makes the kernel hold what is wanted of a family.
    ///
    /// # Errors
    /// If the family cannot be synced any further.
    fn sync_family(
        &mut self,
        pass: &Pass<'_>,
        wanted: &Wanted,
        expected: Option<&mut Expected>,
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> Result<(), SyncError> {
        let &Pass { family, state, seen, servers, is_ruled } = pass;
        let held = held_servers(servers, family);
        let (serve, retire) = self.compare_servers(&held, wanted, is_ruled, refused)?;
        let is_bound = |ip: &&IpAddr| IpFamily::of(ip) == family;
        let mut bind: Vec<IpAddr> = wanted.bound.difference(&seen.bound).copied().collect();
        let unbind: Vec<IpAddr> =
            seen.bound.difference(&wanted.bound).filter(is_bound).copied().collect();
        if let Some(expected) = expected {
            let gone: Vec<IpAddr> = seen.unbound.iter().filter(is_bound).copied().collect();
            expected.add_drift(&mut report.drift, [&serve, &retire], [&bind, &unbind, &gone]);
        }
        let unserved = self.commit_servers(&serve, wanted, report, refused)?;
        // Nothing must answer at an address that has no virtual server.
        bind.retain(|ip| !unserved.contains(ip));
        if !is_ruled {
            let new = bind.iter().copied().collect();
            let owners = addresses::owners(&state.service_ports, &new, &seen.elsewhere);
            let ruled = owners.filter(|(_, id)| self.rules.holds(id));
            bind = ruled.map(|(ip, _)| ip).collect::<BTreeSet<_>>().into_iter().collect();
        }
        if family == IpFamily::V6 && !self.is_deprecated {
            // kube-proxy's addresses of IPv6 can become the source of masqueraded packets. Once is
            // enough: for each address, the kernel looks at all.
            let known: Vec<IpAddr> = wanted.bound.intersection(&seen.bound).copied().collect();
            let errors = self.kernel.change_addresses(&known, &[])?;
            self.is_deprecated = errors.is_empty();
            errors.into_iter().for_each(|error| refused.leftover(&error.into()));
        }
        let errors = self.change_addresses(report, &bind, &unbind)?;
        refused.refused_addresses(errors, &wanted.bound, state, &seen.elsewhere);
        self.commit_servers(&retire, wanted, report, refused)?;
        Ok(())
    }

    /// Returns the commands that make the virtual servers of a family what they should be: what
    /// comes, and what goes.
    fn compare_servers(
        &mut self,
        held: &HashMap<Selector, &VirtualServer>,
        wanted: &Wanted,
        is_ruled: bool,
        refused: &mut Refused,
    ) -> Result<(Commands, Commands), SyncError> {
        let mut changes = ServerChanges::new(&mut self.draining, &mut self.schedulers, &self.order);
        for (selector, server) in &wanted.servers {
            let Some(held) = held.get(selector) else {
                changes.draining.forget(selector);
                if is_ruled || self.rules.holds(&server.port.id) {
                    changes.add(*selector, server);
                }
                continue;
            };
            let reals = self.kernel.real_servers(selector);
            match (reals, "list the real servers of IPVS") {
                (Ok(reals), _) => changes.compare(held, &reals, server),
                // The virtual server stays as it is until the next comparison.
                (Err(error @ Error::Kernel(_)), action) => {
                    refused.unread(*selector, &SyncError::Ipvs(action, error));
                }
                (Err(error), action) => return Err(SyncError::Ipvs(action, error)),
            }
        }
        delete_unwanted(&mut changes, held, &wanted.servers, &self.config.excluded);
        Ok((changes.serve, changes.retire))
    }

    /// Sends commands to IPVS, and returns the addresses of the virtual servers that could not be
    /// added, or have no real server.
    pub(super) fn commit_servers(
        &mut self,
        commands: &Commands,
        wanted: &Wanted,
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> Result<BTreeSet<IpAddr>, SyncError> {
        let mut unserved = BTreeSet::new();
        let mut unserving: BTreeMap<Selector, usize> = BTreeMap::new();
        for (step, refusal) in self.commit(report, commands)? {
            let (selector, server) = (step.selector, wanted.servers.get(&step.selector));
            match &step.action {
                Action::AddServer(_) => drop(unserved.insert(selector)),
                // The refusal is that of the virtual server.
                Action::AddReal(..) if unserved.contains(&selector) => continue,
                Action::AddReal(..) if !step.is_stale(&refusal) => {
                    let count = unserving.entry(selector).or_default();
                    *count += 1;
                    if server.is_some_and(|server| server.weights().len() == *count) {
                        unserved.insert(selector);
                        refused.all_endpoints(server.map(|s| &s.port.id), step, refusal);
                        continue;
                    }
                }
                _ => {}
            }
            self.note_refusal(server.map(|server| &server.port.id), step, refusal, refused);
        }
        let ip = |selector| match selector {
            Selector::Address { ip, .. } => Some(ip),
            Selector::Mark { .. } => None,
        };
        Ok(unserved.into_iter().filter_map(ip).collect())
    }

    /// Notes that IPVS refused a command about a virtual server of a Service port. A scheduler that
    /// the kernel has no longer is lost, and everything to be compared again.
    pub(super) fn note_refusal(
        &mut self,
        owner: Option<&ServicePortId>,
        step: Step,
        refusal: Refusal,
        refused: &mut Refused,
    ) {
        let missing = step.missing_scheduler(&refusal).and_then(|name| name.parse().ok());
        if missing.is_some_and(|scheduler| self.basis.tried.lose(scheduler)) {
            refused.is_stale = true;
        } else {
            refused.command(owner, step, refusal);
        }
    }
}

/// Everything that the kernel should hold of a family.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) servers: BTreeMap<Selector, Server>,
    /// The addresses of `kube-ipvs0`.
    pub(crate) bound: BTreeSet<IpAddr>,
}

impl Wanted {
    /// Returns what is wanted for `state` in a family. `elsewhere` has the addresses of all devices
    /// but `kube-ipvs0`.
    pub(crate) fn new(
        state: &State,
        context: &Context<'_>,
        family: IpFamily,
        elsewhere: &BTreeSet<IpAddr>,
    ) -> Self {
        let mut wanted = Self::default();
        for port in state.service_ports.values().filter(|port| port.id.family == family) {
            servers::of_port(port, context, |selector, server| {
                wanted.servers.insert(selector, server);
            });
            wanted.bound.extend(addresses::of_port(port, elsewhere));
        }
        wanted
    }
}

/// The virtual servers of a family that the kernel has and that this backend may change: those of
/// an address.
pub(super) fn held_servers(
    all: &[VirtualServer],
    family: IpFamily,
) -> HashMap<Selector, &VirtualServer> {
    let families = PerFamily::from_fn(|other| other == family);
    let ours = all.iter().filter(|server| is_of(&server.selector, &families));
    ours.map(|server| (server.selector, server)).collect()
}

/// Plans the end of virtual servers that no Service port has.
fn delete_unwanted(
    changes: &mut ServerChanges<'_>,
    held: &HashMap<Selector, &VirtualServer>,
    wanted: &BTreeMap<Selector, Server>,
    excluded: &[ipnet::IpNet],
) {
    for selector in held.keys().filter(|selector| !wanted.contains_key(selector)) {
        if !is_excluded(selector, excluded) {
            changes.delete(*selector);
        }
    }
}
