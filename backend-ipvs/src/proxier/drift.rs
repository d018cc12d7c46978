//! What other programs have changed: the changes of a comparison that nothing else explains.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use switchyard_core::proxier::Drift;
use switchyard_netlink::ipvs::Selector;

use super::{
    commands::{Action, Commands, Named, Step},
    incremental::Difference,
};
use crate::{
    filter::{Compared, FamilyEntry},
    layout::entries::Need,
    sets::Set,
};

/// The changes that a comparison finds to do although no other program has changed anything.
#[derive(Debug)]
pub(crate) struct Expected {
    /// What is to be synced.
    pub(crate) difference: Difference,
    /// Addresses that came to other devices or went from them.
    pub(crate) moved: BTreeSet<IpAddr>,
    /// The real servers that were draining.
    pub(crate) draining: HashSet<(Selector, SocketAddr)>,
}

impl Expected {
    /// Adds what a comparison found besides.
    pub(crate) fn add_drift(
        &self,
        drift: &mut Drift,
        compared: &Compared,
        commands: [&Commands; 2],
        addresses: [&[IpAddr]; 2],
    ) {
        let mut described = BTreeSet::new();
        for step in commands.into_iter().flat_map(Commands::steps) {
            if !self.explains(step) && described.insert(step.selector) {
                let server = Named(&step.selector);
                drift
                    .found(|| format!("the virtual server {server} was missing, altered or added"));
            }
        }
        for (family, set, entry) in compared.missing.iter().chain(&compared.stale) {
            if !self.explains_entry(&(*family, *set, *entry)) {
                let name = set.name(*family);
                drift.found(|| {
                    format!("an entry of the ipset {name} was missing or added: {entry}")
                });
            }
        }
        for (family, object) in &compared.chains {
            if !self.difference.exceptions.get(*family) {
                drift.found(|| format!("the {family} {object} was missing or altered"));
            }
        }
        for ip in addresses.into_iter().flatten() {
            if !self.explains_address(*ip) {
                drift.found(|| format!("the address {ip} of kube-ipvs0 was missing or added"));
            }
        }
    }

    fn explains(&self, step: &Step) -> bool {
        let Step { selector, action } = step;
        let drains = |address: &SocketAddr| self.draining.contains(&(*selector, *address));
        self.difference.servers.contains_key(selector)
            || match action {
                Action::DeleteReal(address)
                | Action::DrainReal(address)
                | Action::EditReal(address) => drains(address),
                Action::DeleteServer => self.draining.iter().any(|(of, _)| of == selector),
                _ => false,
            }
    }

    fn explains_entry(&self, (family, set, entry): &FamilyEntry) -> bool {
        if *set == Set::Bound
            && let switchyard_netlink::ipset::Entry::Ip(ip) = entry
        {
            return self.explains_address(*ip);
        }
        self.difference.needs.contains_key(&Need::Entry(*family, *set, *entry))
    }

    fn explains_address(&self, ip: IpAddr) -> bool {
        let may_be = [true, false];
        self.moved.contains(&ip)
            || may_be.into_iter().any(|may_be_elsewhere| {
                let need = Need::Address { ip, may_be_elsewhere };
                self.difference.needs.contains_key(&need)
            })
    }
}
