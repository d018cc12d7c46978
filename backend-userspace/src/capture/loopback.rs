//! Loopback: clients on this machine reach Services at loopback addresses, which a table lists.
//! This needs no privileges.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use serde::Serialize;
use switchyard_core::{
    error::ErrorChain,
    model::{IpFamily, PerFamily, ServicePortId},
    proxier::{DegradedPort, Profile, ProxierError, SyncReport},
    state::{Action, FrontendAddress, ResolvedServicePort},
    transition::Transition,
};

use crate::forwarder::{Forwarder, ListenError, Listener};

use super::{Capture, RETRY, ports::Ports};

/// Where a Service port can be reached on this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reachable {
    /// Namespace and name of the Service, separated by a slash.
    pub service: String,
    /// The name of the port; empty if the port has none.
    pub port: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: &'static str,
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
    /// The cluster IP, with the Service's port.
    pub cluster_ip: SocketAddr,
    /// The address to use instead.
    pub address: SocketAddr,
    /// The address of the node port, if the Service port has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_port: Option<SocketAddr>,
    /// The number of endpoints that connections are spread over. Without endpoints, connections are
    /// refused.
    pub endpoints: usize,
}

/// A function that is called with all rows.
type Show = dyn Fn(&[Reachable]) + Send + Sync;

/// The receiver of the table: called with all rows, sorted, when a row has changed.
#[derive(Clone)]
pub struct ShowTable(Arc<Show>);

impl ShowTable {
    /// Makes a receiver of a function, which the thread that syncs calls.
    pub fn new(show: impl Fn(&[Reachable]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(show))
    }
}

impl fmt::Debug for ShowTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShowTable")
    }
}

/// A Service port with its addresses.
struct Entry {
    row: Reachable,
    /// The addresses that are open.
    open: Vec<SocketAddr>,
    /// Why an address could not be opened.
    failed: Option<String>,
}

/// See the [module's documentation](self).
pub(crate) struct Loopback {
    families: PerFamily<bool>,
    entries: BTreeMap<ServicePortId, Entry>,
    /// The addresses that Service ports have, open or not.
    ports: Ports,
    show: Option<ShowTable>,
    shown: Option<Vec<Reachable>>,
}

impl Loopback {
    pub(crate) fn new(families: PerFamily<bool>, show: Option<ShowTable>) -> Self {
        Self { families, entries: BTreeMap::new(), ports: Ports::default(), show, shown: None }
    }

    /// Opens, changes or closes the addresses of a Service port. Returns how many were opened and
    /// closed.
    fn set_port(
        &mut self,
        id: &ServicePortId,
        port: Option<&ResolvedServicePort>,
        forwarder: &Forwarder,
    ) -> (usize, usize) {
        let protocol = id.name.protocol;
        let before = self.entries.remove(id);
        let known = before.as_ref().map(|entry| entry.row.address);
        let served = port.filter(|_| *self.families.get(id.family));
        let entry = served.and_then(|port| self.open_port(port, known, forwarder));
        let before = before.map_or_else(Vec::new, |entry| entry.open);
        let after = entry.as_ref().map_or(&[][..], |entry| &entry.open);
        let opened = after.iter().filter(|address| !before.contains(address)).count();
        let gone = before.iter().filter(|address| !after.contains(address));
        let closed = forwarder.close(gone.map(|address| (protocol, *address)));
        let address = entry.as_ref().map(|entry| entry.row.address);
        if let Some(known) = known.filter(|_| known != address) {
            self.ports.free(protocol, known);
        }
        if let Some(entry) = entry {
            self.ports.take(protocol, entry.row.address);
            self.entries.insert(id.clone(), entry);
        }
        (opened, closed)
    }

    /// Opens the addresses of a Service port, or changes those that are open.
    fn open_port(
        &mut self,
        port: &ResolvedServicePort,
        known: Option<SocketAddr>,
        forwarder: &Forwarder,
    ) -> Option<Entry> {
        let find = |is_it: fn(FrontendAddress) -> bool| port.frontends.iter().find(|f| is_it(f.at));
        let main = find(|at| matches!(at, FrontendAddress::ClusterIp(_)))?;
        let cluster_ip = SocketAddr::new(main.at.ip()?, main.port);
        let (mut open, mut failed) = (Vec::new(), None);
        let mut listen = |address, action| {
            // Without endpoints, connections are refused since nothing listens.
            if !matches!(action, Action::Pool { .. } | Action::ExternalLocal) {
                return Ok(address);
            }
            let listener =
                Listener { port: port.id.clone(), address, action, allowed_sources: None };
            let address = forwarder.listen(&listener).map_err(Box::new)?;
            open.push(address);
            Ok(address)
        };
        let mut note = |error: Box<ListenError>| failed = Some(ErrorChain(&*error).to_string());
        let ip: IpAddr = match port.id.family {
            IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
            IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        let reserved = || forwarder.reserved_ports();
        let (address, error) =
            self.ports.listen(&port.id, ip, known, reserved, |at| listen(at, main.action));
        error.into_iter().for_each(&mut note);
        let node_port = find(|at| at == FrontendAddress::NodePort).map(|frontend| {
            let address = SocketAddr::new(address.ip(), frontend.port);
            listen(address, frontend.action).map_err(&mut note).unwrap_or(address)
        });
        let endpoints = match main.action {
            Action::Pool { pool, .. } => port.pool(pool).len(),
            _ => 0,
        };
        let name = &port.id.name;
        let row = Reachable {
            service: name.service.to_string(),
            port: name.port.to_string(),
            protocol: name.protocol.as_str(),
            family: port.id.family.as_str(),
            cluster_ip,
            address,
            node_port,
            endpoints,
        };
        Some(Entry { row, open, failed })
    }

    /// Shows the table if a row has changed.
    fn show(&mut self) {
        let Some(show) = &self.show else { return };
        let mut rows: Vec<Reachable> =
            self.entries.values().map(|entry| entry.row.clone()).collect();
        rows.sort_unstable();
        if self.shown.as_ref() != Some(&rows) {
            (show.0)(&rows);
            self.shown = Some(rows);
        }
    }
}

#[async_trait]
impl Capture for Loopback {
    /// Without privileges nothing can be removed, and nothing that is there disturbs.
    fn profile(&self, of_proxy: Profile) -> Profile {
        let capabilities = of_proxy.capabilities.with_loopback_endpoints();
        Profile { conflicts_with: &[], capabilities, ..of_proxy }
    }

    async fn sync(
        &mut self,
        change: &Transition<'_>,
        forwarder: &Forwarder,
    ) -> Result<SyncReport, ProxierError> {
        self.ports.begin();
        let mut report = SyncReport::default();
        let again = self.entries.iter().filter(|(_, entry)| entry.failed.is_some());
        let again: Vec<ServicePortId> = again.map(|(id, _)| id.clone()).collect();
        let changed: Vec<ServicePortId> = change.ports().map(|port| port.id.clone()).collect();
        // What goes makes room.
        let is_gone = |id: &ServicePortId| !change.after().service_ports.contains_key(id);
        let (gone, stays): (Vec<_>, Vec<_>) = again.into_iter().chain(changed).partition(is_gone);
        for id in gone.iter().chain(&stays) {
            let port = change.after().service_ports.get(id);
            let (opened, closed) = self.set_port(id, port.map(|port| &**port), forwarder);
            report.added += opened;
            report.removed += closed;
        }
        self.show();
        for (id, entry) in &self.entries {
            let Some(reason) = &entry.failed else { continue };
            report.requeue_after = Some(RETRY);
            if change.is_resync() || change.has_port(id) {
                report.degraded.push(DegradedPort { port: id.clone(), reason: reason.clone() });
            }
        }
        Ok(report)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}
