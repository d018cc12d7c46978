//! Changes made by other programs: the changes of a comparison that nothing else explains.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
};

use switchyard_core::proxier::Drift;
use switchyard_kernel::ipvs::Selector;

use super::{
    commands::{Action, Commands, Named, Step},
    incremental::Difference,
};

/// The changes that a comparison finds to do although no other program has changed anything.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// The transition to sync.
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
