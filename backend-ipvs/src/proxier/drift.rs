//! Changes made by other programs: the changes of a comparison that nothing else explains.

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
/// The changes that a comparison finds to do although no other program has changed anything.
#[derive(Debug)]
pub(crate) struct Expected {
    /// The transition to sync.
    pub(crate) difference: Difference,
    /// Addresses that came to other devices or went from them.
    pub(crate) moved: BTreeSet<IpAddr>,
    /// The real servers that were draining.
    pub(crate) draining: HashSet<(Selector, SocketAddr)>,
    /// The virtual servers whose scheduler is to be changed.
    pub(crate) waiting: BTreeSet<Selector>,
}

impl Expected {
    /// Adds what a comparison found besides.
    pub(crate) fn add_drift(
        &self,
        drift: &mut Drift,
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
                | Action::EditReal(address, _) => drains(address),
                Action::EditServer(_) => self.waiting.contains(selector),
                Action::DeleteServer => self.draining.iter().any(|(of, _)| of == selector),
                _ => false,
            }
    }

    fn explains_address(&self, ip: IpAddr) -> bool {
        self.moved.contains(&ip) || self.difference.addresses.contains(&ip)
    }
}
