//! Node ports on `[::1]`, for a program whose backend is another one.

use std::{
    collections::HashMap,
    net::{Ipv6Addr, SocketAddr},
    sync::Arc,
};

use switchyard_core::{
    model::{IpFamily, Protocol, ServicePortId},
    proxier::DegradedPort,
    state::{Action, FrontendAddress, ResolvedServicePort},
};

use crate::{
    forwarder::{Forwarder, ForwarderConfig, ForwarderError, Listener},
    sockets::Sockets,
};

/// The sockets at `[::1]` and the node ports of Service ports of IPv6. A kernel that translates the
/// destination `::1` drops the answer, so that a forwarder takes the place of rules. SCTP has no
/// sockets.
///
/// The value follows Service ports as they are synced, whether it is switched on or not.
pub struct LoopbackNodePorts {
    /// The file descriptors that the sockets and their connections may have.
    descriptors: usize,
    ports: HashMap<ServicePortId, Arc<ResolvedServicePort>>,
    forwarder: Option<Forwarder>,
    sockets: Sockets,
}

impl LoopbackNodePorts {
    /// Returns a value that is switched off, for sockets and connections that have no more than
    /// this number of file descriptors.
    pub fn new(descriptors: usize) -> Self {
        let (ports, forwarder, sockets) = (HashMap::new(), None, Sockets::default());
        Self { descriptors, ports, forwarder, sockets }
    }

    /// Whether a Service port has a place here.
    pub fn concerns(port: &ResolvedServicePort) -> bool {
        port.id.family == IpFamily::V6
            && port.id.name.protocol != Protocol::Sctp
            && port.frontends.iter().any(|frontend| frontend.at == FrontendAddress::NodePort)
    }

    /// Opens the sockets of all Service ports, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If the forwarder cannot be started.
    pub fn switch_on(&mut self) -> Result<(), ForwarderError> {
        if self.forwarder.is_none() {
            let descriptors = Some(self.descriptors);
            let config =
                ForwarderConfig { threads: Some(1), descriptors, ..ForwarderConfig::default() };
            self.forwarder = Some(Forwarder::start(config)?);
            let all = self.ports.iter().map(|(id, port)| (id.clone(), Some(Arc::clone(port))));
            self.change(all.collect());
        }
        Ok(())
    }

    /// Closes all sockets, and ends their connections.
    pub fn switch_off(&mut self) {
        self.forwarder = None;
        self.sockets = Sockets::default();
    }

    /// Takes in Service ports as they are now; `None`, or one that has no place here, is gone.
    /// Opens, changes and closes their sockets.
    pub fn change(&mut self, ports: Vec<(ServicePortId, Option<Arc<ResolvedServicePort>>)>) {
        let mut listeners = Vec::new();
        let mut gone = Vec::new();
        for (id, port) in ports {
            let port = port.filter(|port| Self::concerns(port));
            listeners.push((id.clone(), port.as_deref().map(of_port).unwrap_or_default()));
            match port {
                Some(port) => {
                    if let Some(forwarder) = &self.forwarder {
                        forwarder.serve(&port);
                    }
                    self.ports.insert(id, port);
                }
                None => {
                    self.ports.remove(&id);
                    gone.push(id);
                }
            }
        }
        if let Some(forwarder) = &self.forwarder {
            self.sockets.change(forwarder, listeners);
            forwarder.remove(&gone.iter().collect());
        }
    }

    /// Tries again to open what could not be opened.
    pub fn retry(&mut self) {
        if let Some(forwarder) = &self.forwarder {
            self.sockets.retry(forwarder);
        }
    }

    /// The number of sockets that are open.
    pub fn open(&self) -> usize {
        self.sockets.open_listeners()
    }

    /// The number of attempts to open a socket that have failed since it was switched on.
    pub fn failures(&self) -> u64 {
        self.sockets.failures()
    }

    /// The Service ports whose sockets cannot be opened, or have panicked since the last call, and
    /// why.
    pub fn failed(&self) -> impl Iterator<Item = DegradedPort> + '_ {
        let panicked = self.forwarder.iter().flat_map(|forwarder| forwarder.panicked().take());
        self.sockets.failed().chain(panicked)
    }
}

/// The listeners of a Service port. Where there is no endpoint, nothing listens, so that clients
/// are refused.
fn of_port(port: &ResolvedServicePort) -> Vec<Listener> {
    let served = port.frontends.iter().filter(|frontend| {
        frontend.at == FrontendAddress::NodePort
            && matches!(frontend.action, Action::Pool { .. } | Action::ExternalLocal)
    });
    let listener = |frontend: &switchyard_core::state::Frontend| Listener {
        port: port.id.clone(),
        address: SocketAddr::from((Ipv6Addr::LOCALHOST, frontend.port)),
        action: frontend.action,
        allowed_sources: frontend.allowed_sources.clone(),
    };
    served.map(listener).collect()
}

#[cfg(test)]
mod tests {
    use switchyard_core::testing::port_id;

    use super::*;

    #[test]
    fn a_listener_that_panics_is_reported_once() {
        let mut ports = LoopbackNodePorts::new(100);
        ports.switch_on().unwrap();
        let id = ServicePortId { family: IpFamily::V6, ..port_id("web", Protocol::Tcp) };
        ports.forwarder.as_ref().unwrap().panicked().add(id.clone());
        assert_eq!(ports.failed().map(|failed| failed.port).collect::<Vec<_>>(), [id]);
        assert_eq!(ports.failed().count(), 0);
    }
}
