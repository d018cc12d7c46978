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

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        process,
        sync::Arc,
    };

    use proptest::{collection::vec, option, prelude::*};
    use switchyard_core::{
        config::NodeConfig,
        state::{Action, ResolvedServicePort},
        testing::{NODE, proptest_config, resolve_afresh, service, until},
    };

    use super::*;
    use crate::forwarder::ForwarderConfig;

    const PLACES: usize = 4;
    const PORTS: usize = 3;

    /// An address that no other process has.
    fn address(place: usize) -> SocketAddr {
        let [_, _, high, low] = process::id().to_be_bytes();
        SocketAddr::from(([127, high | 1, low, place as u8 + 1], 30_080))
    }

    fn ports() -> Vec<Arc<ResolvedServicePort>> {
        let made = (0..PORTS).map(|n| {
            service(&format!("s{n}"), &format!("10.96.0.{n}")).port("http", "TCP", 80).object()
        });
        let state = resolve_afresh(NodeConfig::new(NODE), made.collect());
        state.service_ports.values().cloned().collect()
    }

    proptest! {
        #![proptest_config(proptest_config(64))]

        /// Each step says which Service port has a place, and where another program would listen.
        #[test]
        fn what_is_wanted_is_open_and_what_another_program_has_is_named(
            steps in vec(vec((option::of(0..PORTS), any::<bool>()), PLACES), 1..8),
        ) {
            let config = ForwarderConfig { threads: Some(1), ..ForwarderConfig::default() };
            let forwarder = Forwarder::start(config).expect("a forwarder");
            let (ports, mut sockets) = (ports(), Sockets::default());
            ports.iter().for_each(|port| forwarder.serve(port));
            let mut others: [Option<TcpListener>; PLACES] = Default::default();
            let mut open = HashSet::new();
            for step in steps {
                for (place, (_, is_taken)) in step.iter().enumerate() {
                    let taken = is_taken.then(|| others[place].take());
                    let taken = taken.map(|known| known.or_else(|| TcpListener::bind(address(place)).ok()));
                    others[place] = taken.flatten();
                }
                let wanted = |number: usize| {
                    let own = step.iter().enumerate().filter(|(_, (owner, _))| *owner == Some(number));
                    let listener = |(place, _)| Listener {
                        port: ports[number].id.clone(),
                        address: address(place),
                        action: Action::Drop,
                        allowed_sources: None,
                    };
                    own.map(listener).collect::<Vec<_>>()
                };
                let changed = sockets.change(
                    &forwarder,
                    (0..PORTS).map(|number| (ports[number].id.clone(), wanted(number))),
                );
                let owned = (0..PLACES).filter_map(|place| Some((place, step[place].0?)));
                let (free, taken): (Vec<_>, Vec<_>) =
                    owned.partition(|(place, _)| others[*place].is_none());
                let free: HashSet<usize> = free.into_iter().map(|(place, _)| place).collect();
                let opened = free.difference(&open).count();
                let closed = open.difference(&free).count();
                prop_assert_eq!(changed.closed, closed);
                // A program that another test starts has the sockets of this one for a moment.
                let mut has_opened = changed.opened;
                until("what is free is open", || {
                    has_opened += sockets.retry(&forwarder).opened;
                    sockets.open_listeners() == free.len()
                });
                prop_assert_eq!(has_opened, opened);
                let failed: HashSet<_> = sockets.failed().map(|failed| failed.port).collect();
                prop_assert_eq!(failed, taken.iter().map(|(_, owner)| ports[*owner].id.clone()).collect());
                for (place, other) in others.iter().enumerate() {
                    let listens = free.contains(&place) || other.is_some();
                    let connects = || TcpStream::connect(address(place)).is_ok();
                    until("it listens, or not", || connects() == listens);
                }
                open = free;
                let opened = taken.iter().filter(|(place, _)| others[*place].take().is_some()).count();
                let mut has_opened = 0;
                until("what has become free is open", || {
                    has_opened += sockets.retry(&forwarder).opened;
                    has_opened == opened
                });
                open.extend(taken.iter().map(|(place, _)| *place));
            }
        }
    }
}
