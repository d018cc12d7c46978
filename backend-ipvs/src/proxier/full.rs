//! A sync of everything: reads what the kernel holds, whichever program put it there, and changes
//! what differs. Each family is synced by itself, and each step of it is done, whatever the kernel
//! refused before.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    time::Instant,
};

use switchyard_core::{
    model::{IpFamily, PerFamily},
    proxier::SyncReport,
    state::State,
    transition::Transition,
};
use switchyard_netlink::Error;
use switchyard_netlink::ipvs::{Selector, VirtualServer};

use super::{
    Held, IpvsProxier, SyncError,
    commands::{Action, Commands},
    drift::Expected,
    failed_to,
    incremental::Difference,
    refused::Refused,
    servers::ServerChanges,
};
use crate::layout::{
    Context, addresses,
    servers::{self, Server, is_of},
};

/// The contents of the kernel when a sync begins, in both families.
struct Seen {
    /// The addresses of `kube-ipvs0`.
    bound: BTreeSet<IpAddr>,
    /// The addresses that are not to be bound although Services have them.
    elsewhere: BTreeSet<IpAddr>,
    servers: Vec<VirtualServer>,
}

/// The inputs of a family's sync.
struct Pass<'a> {
    family: IpFamily,
    state: &'a State,
    seen: &'a Seen,
    /// The changes since the last sync; `None` if that is not known.
    expected: Option<&'a Expected>,
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
        report: &mut SyncReport,
    ) -> Result<Refused, SyncError> {
        let state = change.after();
        self.set_kernel(report)?;
        let was_sure = !self.try_schedulers(state)? && was_sure;
        let elsewhere = self.elsewhere()?;
        report.added += usize::from(self.kernel.ensure_device()?);
        let servers =
            self.kernel.virtual_servers().map_err(failed_to("list the virtual servers of IPVS"))?;
        let seen = Seen { bound: self.kernel.addresses()?, elsewhere, servers };
        let missing = self.missing();
        let is_ruled = state.service_ports.keys().all(|id| self.rules.holds(id));
        let mut claimed = BTreeSet::new();
        for port in state.service_ports.values() {
            servers::claimed(port, &state.node, |selector| {
                claimed.insert(selector);
            });
        }
        let (scheduler, never_bound) = (self.scheduler, self.config.never_bound.clone());
        let (missing, claimed_by, never_bound) = (&missing, &claimed, &never_bound);
        let node = &state.node;
        let context = Context { node, scheduler, missing, claimed: claimed_by, never_bound };
        // A change of the node's settings may change anything.
        let known = change.before().filter(|_| was_sure && !change.node_changed());
        let expected = known.map(|before| Expected {
            difference: Difference::new(before, change, &context, families),
            moved: seen.elsewhere.symmetric_difference(&self.held.elsewhere).copied().collect(),
            draining: self.draining.all(),
            waiting: self.schedulers.waiting().collect(),
        });
        let mut refused = Refused::default();
        for family in IpFamily::ALL.into_iter().filter(|family| *families.get(*family)) {
            let wanted = Wanted::new(state, &context, family, &seen.elsewhere);
            let expected = expected.as_ref().filter(|_| *self.programmed.get(family));
            // Before they are bound, so that the monitor knows whose they are.
            let mut bound = self.bound.lock();
            bound.retain(|ip| IpFamily::of(ip) != family);
            bound.extend(&wanted.bound);
            drop(bound);
            let pass = Pass { family, state, seen: &seen, expected, is_ruled };
            if let Err(error) = self.sync_family(&pass, &wanted, report, &mut refused) {
                refused.family(family, error);
            }
        }
        self.held = Held { elsewhere: seen.elsewhere, claimed };
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
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> Result<(), SyncError> {
        let &Pass { family, state, seen, expected, is_ruled } = pass;
        let held = held_servers(&seen.servers, family);
        let (serve, retire) = self.compare_servers(&held, wanted, is_ruled, refused)?;
        let is_bound = |ip: &&IpAddr| IpFamily::of(ip) == family;
        let mut bind: Vec<IpAddr> = wanted.bound.difference(&seen.bound).copied().collect();
        let unbind: Vec<IpAddr> =
            seen.bound.difference(&wanted.bound).filter(is_bound).copied().collect();
        if let Some(expected) = expected {
            expected.add_drift(&mut report.drift, [&serve, &retire], [&bind, &unbind]);
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
        refused.addresses(errors, &wanted.bound, state, &seen.elsewhere);
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
        let mut changes =
            ServerChanges::new(&mut self.draining, &mut self.schedulers, Instant::now());
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
                    refused.leftover(&SyncError::Ipvs(action, error));
                }
                (Err(error), action) => return Err(SyncError::Ipvs(action, error)),
            }
        }
        delete_unwanted(&mut changes, held, &wanted.servers, &self.config.excluded);
        Ok((changes.serve, changes.retire))
    }

    /// Sends commands to IPVS, and returns the addresses of the virtual servers that could not be
    /// added.
    fn commit_servers(
        &mut self,
        commands: &Commands,
        wanted: &Wanted,
        report: &mut SyncReport,
        refused: &mut Refused,
    ) -> Result<BTreeSet<IpAddr>, SyncError> {
        let mut unserved = BTreeSet::new();
        for (step, refusal) in self.commit(report, commands)? {
            if let (Action::AddServer(_), Selector::Address { ip, .. }) =
                (&step.action, step.selector)
            {
                unserved.insert(ip);
            }
            let owner = wanted.servers.get(&step.selector).map(|server| &server.port.id);
            refused.command(owner, step, refusal);
        }
        Ok(unserved)
    }
}

/// Everything that the kernel should hold of a family.
#[derive(Debug)]
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
        let mut wanted = Self { servers: BTreeMap::new(), bound: BTreeSet::new() };
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
fn held_servers(all: &[VirtualServer], family: IpFamily) -> HashMap<Selector, &VirtualServer> {
    let families = PerFamily::from_fn(|other| other == family);
    let ours = all.iter().filter(|server| is_of(&server.selector, &families));
    ours.map(|server| (server.selector, server)).collect()
}

/// Plans the end of virtual servers that nobody wants.
fn delete_unwanted(
    changes: &mut ServerChanges<'_>,
    held: &HashMap<Selector, &VirtualServer>,
    wanted: &BTreeMap<Selector, Server>,
    excluded: &[ipnet::IpNet],
) {
    for selector in held.keys().filter(|selector| !wanted.contains_key(selector)) {
        let is_excluded = match selector {
            Selector::Address { ip, .. } => excluded.iter().any(|net| net.contains(ip)),
            Selector::Mark { .. } => true,
        };
        if !is_excluded {
            changes.delete(*selector);
        }
    }
}
