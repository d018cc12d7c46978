//! The listeners of Service ports at addresses that a capture mode chooses.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
};

use switchyard_core::{
    error::ErrorChain,
    model::{Protocol, ServicePortId},
    proxier::DegradedPort,
};

use crate::forwarder::{Forwarder, Listener};

/// The place of a socket.
type Place = (Protocol, SocketAddr);

/// The listeners of all Service ports, each at an address that belongs to one Service port.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    wanted: HashMap<ServicePortId, Vec<Listener>>,
    open: HashMap<Place, ServicePortId>,
    /// Service ports with listeners that could not be opened, and why.
    failed: BTreeMap<ServicePortId, String>,
    failures: u64,
}

/// The changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) opened: usize,
    pub(crate) closed: usize,
}

impl Sockets {
    /// Opens, changes and closes the listeners of these Service ports. An address that goes from
    /// one Service port to another keeps its socket.
    pub(crate) fn change(
        &mut self,
        forwarder: &Forwarder,
        ports: impl IntoIterator<Item = (ServicePortId, Vec<Listener>)>,
    ) -> Changed {
        let mut changed = Changed::default();
        let mut released: HashSet<Place> = HashSet::new();
        let mut listeners = Vec::new();
        for (id, wanted) in ports {
            self.failed.remove(&id);
            let before = self.wanted.remove(&id).unwrap_or_default();
            let places = before.iter().map(place);
            released.extend(places.filter(|place| self.open.get(place) == Some(&id)));
            listeners.extend(wanted.iter().cloned());
            if !wanted.is_empty() {
                self.wanted.insert(id, wanted);
            }
        }
        for listener in &listeners {
            released.remove(&place(listener));
        }
        // First what goes: a descriptor that is free may be needed.
        self.open.retain(|place, _| !released.contains(place));
        changed.closed = forwarder.close(released);
        for listener in listeners {
            changed.opened += usize::from(self.open(forwarder, &listener));
        }
        changed
    }

    /// Tries again to open what could not be opened.
    pub(crate) fn retry(&mut self, forwarder: &Forwarder) -> Changed {
        let failed: Vec<ServicePortId> = self.failed.keys().cloned().collect();
        let again =
            failed.into_iter().filter_map(|id| Some((id.clone(), self.wanted.get(&id)?.clone())));
        let again: Vec<_> = again.collect();
        self.change(forwarder, again)
    }

    /// Returns whether a socket was opened.
    fn open(&mut self, forwarder: &Forwarder, listener: &Listener) -> bool {
        match forwarder.listen(listener) {
            Ok(_) => self.open.insert(place(listener), listener.port.clone()).is_none(),
            Err(error) => {
                self.failures += 1;
                self.failed
                    .entry(listener.port.clone())
                    .or_insert_with(|| ErrorChain(&error).to_string());
                false
            }
        }
    }

    /// The Service ports that are not served at every address, and why.
    pub(crate) fn failed(&self) -> impl Iterator<Item = DegradedPort> + '_ {
        self.failed
            .iter()
            .map(|(port, reason)| DegradedPort { port: port.clone(), reason: reason.clone() })
    }

    /// The number of attempts to open a listener that have failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// The number of listeners that are open.
    pub(crate) fn open_listeners(&self) -> usize {
        self.open.len()
    }

    /// The Service ports that have listeners.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &ServicePortId> {
        self.wanted.keys()
    }
}

fn place(listener: &Listener) -> Place {
    (listener.port.name.protocol, listener.address)
}
