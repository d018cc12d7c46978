//! A sync of everything: reads what the kernel holds, whichever program put it there, and changes what
//! differs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use switchyard_core::{
    model::IpFamily,
    state::{ResolvedServicePort, State},
};
use switchyard_ipvs_netlink::{Selector, VirtualServer};

use super::{counted::Counted, servers::ServerChanges};
use crate::{
    filter::FamilyEntry,
    layout::{
        Context,
        entries::{self, Need},
        exceptions::Exceptions,
        servers::{self, Server},
    },
    sets::Set,
};
use switchyard_core::model::PerFamily;
use switchyard_ipset::Entry;

/// Everything that the kernel should hold.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) servers: BTreeMap<Selector, Server>,
    pub(crate) needs: Counted<Need>,
    /// The addresses of `kube-ipvs0`.
    pub(crate) bound: BTreeSet<IpAddr>,
    pub(crate) entries: HashSet<FamilyEntry>,
    pub(crate) exceptions: PerFamily<Exceptions>,
}

impl Wanted {
    /// Returns what is wanted for `state` in these families. `elsewhere` has the addresses of all devices
    /// but `kube-ipvs0`.
    pub(crate) fn new(
        state: &State,
        context: &Context<'_>,
        families: &PerFamily<bool>,
        elsewhere: &BTreeSet<IpAddr>,
    ) -> Self {
        let mut servers = BTreeMap::new();
        let mut needs = Counted::default();
        for port in state.service_ports.values().filter(|port| *families.get(port.id.family)) {
            servers::of_port(port, context, |selector, server| {
                servers.insert(selector, server);
            });
            entries::of_port(port, context, |need| needs.add(need));
        }
        for check in state.health_checks.values() {
            for family in IpFamily::ALL.into_iter().filter(|family| *families.get(*family)) {
                entries::of_health_check(check, family)
                    .into_iter()
                    .for_each(|need| needs.add(need));
            }
        }
        let mut bound = BTreeSet::new();
        let mut wanted_entries = HashSet::new();
        for need in needs.iter() {
            match need {
                Need::Entry(family, set, entry) => {
                    wanted_entries.insert((family, set, entry));
                }
                Need::Address { ip, may_be_elsewhere } => {
                    if !(may_be_elsewhere && elsewhere.contains(&ip)) {
                        bound.insert(ip);
                    }
                }
            }
        }
        wanted_entries.extend(bound.iter().map(|ip| bound_entry(*ip)));
        let exceptions =
            PerFamily::from_fn(|family| Exceptions::of_ports(ports_of(state, family), elsewhere));
        Self { servers, needs, bound, entries: wanted_entries, exceptions }
    }
}

/// Returns the Service ports of a family.
pub(crate) fn ports_of(
    state: &State,
    family: IpFamily,
) -> impl Iterator<Item = &ResolvedServicePort> {
    state.service_ports.values().map(|port| &**port).filter(move |port| port.id.family == family)
}

/// Returns the entry of an address that is on `kube-ipvs0`.
pub(crate) fn bound_entry(ip: IpAddr) -> FamilyEntry {
    (IpFamily::of(&ip), Set::Bound, Entry::Ip(ip))
}

/// The virtual servers that the kernel has and that this backend may change: those of an address.
pub(crate) fn held_servers(
    all: Vec<VirtualServer>,
    families: &PerFamily<bool>,
) -> HashMap<Selector, VirtualServer> {
    let is_ours = |server: &VirtualServer| match server.selector {
        Selector::Address { ip, .. } => *families.get(IpFamily::of(&ip)),
        Selector::Mark { .. } => false,
    };
    all.into_iter().filter(is_ours).map(|server| (server.selector, server)).collect()
}

/// Plans the end of virtual servers that nobody wants.
pub(crate) fn delete_unwanted(
    changes: &mut ServerChanges<'_>,
    held: &HashMap<Selector, VirtualServer>,
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
