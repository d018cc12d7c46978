//! What the kernel refuses in a sync, and whom that concerns: the Service port that needs what is refused, or all
//! of a family. What belongs to nobody, as what is to be deleted, is tried again later.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
    net::IpAddr,
};

use switchyard_core::{
    error::Chain,
    model::{IpFamily, PerFamily, ServicePortId},
    proxier::{RefusedParts, Skipped},
    state::State,
};
use switchyard_ipset::Entry;
use switchyard_ipvs_netlink::{Refusal, Selector};
use switchyard_netlink::KernelError;

use super::{
    SyncError,
    commands::{Action, Step},
    full::ports_of,
};
use crate::{
    filter::{FamilyEntry, FilterError, RuleInputs, rules},
    layout::{
        Context,
        entries::{self, Need},
        exceptions::{self, Exceptions},
    },
    scheduler::Scheduler,
    sets::Set,
};

/// What was refused in a sync of which everything else was done.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    ports: BTreeMap<ServicePortId, String>,
    families: PerFamily<Option<String>>,
    /// What could not be deleted, and what belongs to no Service port.
    pub(crate) leftovers: BTreeSet<String>,
    /// Schedulers that the kernel turned out not to have.
    pub(crate) missing: Vec<Scheduler>,
    /// The first error that concerns a Service port or a family.
    first: Option<SyncError>,
}

/// Entries and addresses that were refused, with the reasons.
pub(crate) type RefusedNeeds = HashMap<Need, SyncError>;

impl Refused {
    /// Whether everything was done.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.leftovers.is_empty() && self.missing.is_empty()
    }

    /// Notes that a Service port is refused.
    pub(crate) fn port(&mut self, id: &ServicePortId, error: SyncError) {
        self.ports.entry(id.clone()).or_insert_with(|| Chain(&error).to_string());
        self.first.get_or_insert(error);
    }

    /// Notes that all of a family is refused.
    pub(crate) fn family(&mut self, family: IpFamily, error: SyncError) {
        self.families.get_mut(family).get_or_insert_with(|| Chain(&error).to_string());
        self.first.get_or_insert(error);
    }

    /// Notes that something was refused that belongs to nobody.
    pub(crate) fn leftover(&mut self, error: &SyncError) {
        self.leftovers.insert(Chain(error).to_string());
    }

    /// Notes that IPVS refused a command about a virtual server of a Service port. `known` has the schedulers that
    /// are known to be missing.
    pub(crate) fn command(
        &mut self,
        owner: Option<&ServicePortId>,
        step: Step,
        refusal: Refusal,
        known: &[Scheduler],
    ) {
        let error = match step.missing_scheduler(&refusal) {
            Some(scheduler)
                if scheduler != Scheduler::RoundRobin && !known.contains(&scheduler) =>
            {
                if !self.missing.contains(&scheduler) {
                    self.missing.push(scheduler);
                }
                return;
            }
            Some(scheduler) => SyncError::NoScheduler(scheduler),
            None => SyncError::Refused { step, refusal, count: 1 },
        };
        match (step.selector, owner) {
            _ if step.takes_away() => self.leftover(&error),
            (Selector::Address { ip, .. }, _)
                if matches!(step.action, Action::AddServer(_)) && lacks_ipv6(ip, refusal.errno) =>
            {
                self.family(IpFamily::V6, error);
            }
            (_, Some(owner)) => self.port(owner, error),
            (_, None) => self.leftover(&error),
        }
    }

    /// Notes that an address could not be added to the device.
    pub(crate) fn address(
        &mut self,
        needs: &mut RefusedNeeds,
        ip: IpAddr,
        cause: &KernelError,
        error: SyncError,
    ) {
        if lacks_ipv6(ip, cause.errno) {
            return self.family(IpFamily::V6, error);
        }
        needs.insert(address(ip), error);
    }

    /// Notes whom entries and addresses concern.
    pub(crate) fn needs(
        &mut self,
        needs: RefusedNeeds,
        state: &State,
        context: &Context<'_>,
        family: IpFamily,
    ) {
        let owners = owners(&needs, state, context, family);
        for (need, id) in &owners {
            let Some(error) = needs.get(need) else { continue };
            self.ports.entry(id.clone()).or_insert_with(|| Chain(error).to_string());
        }
        for (need, error) in needs {
            match owners.iter().any(|(of, _)| *of == need) {
                true => _ = self.first.get_or_insert(error),
                false => self.leftover(&error),
            }
        }
    }

    /// Notes that a family's sets and rules could not be changed: whom that concerns.
    pub(crate) fn filter(
        &mut self,
        error: FilterError,
        state: &State,
        context: &Context<'_>,
        inputs: &RuleInputs<'_>,
        local: &BTreeSet<IpAddr>,
    ) {
        let family = inputs.family;
        let mut ids: Vec<ServicePortId> = Vec::new();
        if let Some(line) = error.refused_line() {
            let needs = |exceptions: &Exceptions| {
                let inputs = RuleInputs { exceptions, ..*inputs };
                rules::of_services(&inputs).iter().any(|rule| line.contains(rule))
            };
            let ports = ports_of(state, family).filter(|port| exceptions::has_any(port));
            let concerned =
                ports.filter(|port| needs(&Exceptions::of_ports(iter::once(*port), local)));
            ids.extend(concerned.map(|port| port.id.clone()));
        }
        let entries = error.refused_entries();
        let needs: HashMap<Need, ()> = entries.iter().map(|entry| (need(*entry), ())).collect();
        ids.extend(owners(&needs, state, context, family).into_iter().map(|(_, id)| id));
        let reason = Chain(&error).to_string();
        match ids.is_empty() {
            true => drop(self.families.get_mut(family).get_or_insert(reason)),
            false => {
                ids.into_iter().for_each(|id| _ = self.ports.entry(id).or_insert(reason.clone()))
            }
        }
        self.first.get_or_insert(error.into());
    }

    /// Returns the first error, and whom all of them concern, unless that is nobody. If it is all of these
    /// families, something else is wrong, and no part is named.
    pub(crate) fn into_error(
        self,
        families: &PerFamily<bool>,
    ) -> Option<(SyncError, RefusedParts)> {
        let first = self.first?;
        let is_whole = |family: &IpFamily| self.families.get(*family).is_some();
        let mut programmed = IpFamily::ALL.into_iter().filter(|family| *families.get(*family));
        if programmed.all(|family| is_whole(&family)) {
            return Some((first, RefusedParts::default()));
        }
        let named = self.ports.into_iter().filter(|(id, _)| !is_whole(&id.family));
        let ports = named.map(|(port, reason)| Skipped { port, reason }).collect();
        Some((first, RefusedParts { ports, families: self.families }))
    }
}

/// Whether the kernel refuses the address, or a virtual server there, as it would any other of IPv6: IPv6 is
/// missing or switched off, in IPVS or on the device.
fn lacks_ipv6(ip: IpAddr, errno: i32) -> bool {
    ip.is_ipv6() && [libc::EAFNOSUPPORT, libc::EOPNOTSUPP, libc::EACCES].contains(&errno)
}

/// Returns the need that an entry is for. An entry of [`Set::Bound`] is there with its address.
pub(crate) fn need((family, set, entry): FamilyEntry) -> Need {
    match (set, entry) {
        (Set::Bound, Entry::Ip(ip)) => address(ip),
        _ => Need::Entry(family, set, entry),
    }
}

/// Returns the need of an address, whichever kind of frontend it is for.
fn address(ip: IpAddr) -> Need {
    Need::Address { ip, may_be_elsewhere: false }
}

/// Returns the Service ports of a family with each of these needs that they have.
fn owners<T>(
    needs: &HashMap<Need, T>,
    state: &State,
    context: &Context<'_>,
    family: IpFamily,
) -> BTreeSet<(Need, ServicePortId)> {
    let mut owners = BTreeSet::new();
    if needs.is_empty() {
        return owners;
    }
    for port in ports_of(state, family) {
        entries::of_port(port, context, |need| {
            let need = match need {
                Need::Address { ip, .. } => address(ip),
                entry @ Need::Entry(..) => entry,
            };
            if needs.contains_key(&need) {
                owners.insert((need, port.id.clone()));
            }
        });
    }
    owners
}
