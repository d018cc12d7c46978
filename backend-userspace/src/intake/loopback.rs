//! Loopback: clients on this machine reach Services at loopback addresses, which a table lists. This
//! needs no privileges.
//!
//! A Service port has the same port number at every start, unless another program or Service port has
//! taken it: a hash of its name chooses.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use serde::Serialize;
use switchyard_core::{
    error::Chain,
    model::{IpFamily, PerFamily, Protocol, ServicePortId},
    proxier::{ProxierError, Skipped, SyncReport},
    state::{FrontendAddress, ResolvedServicePort, Route},
    transition::Transition,
};
use switchyard_forwarder::{Forwarder, ListenError, Listener};

use super::Intake;

/// The first port for Services. The range ends before that of node ports, and before the ports that systems
/// give to clients.
const FIRST: u16 = 20_000;
/// The number of ports for Services.
const PORTS: u16 = 10_000;
/// How many ports are tried, one after the other, before the system chooses.
const TRIES: u16 = 64;

/// How soon an address is tried again that could not be opened.
const RETRY: Duration = Duration::from_secs(5);

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

/// The receiver of the table: called with all rows, sorted, when a row has changed.
#[derive(Clone)]
pub struct ShowTable(Arc<dyn Fn(&[Reachable]) + Send + Sync>);

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
    /// The Service port at each address, open or not.
    taken: BTreeMap<(Protocol, SocketAddr), ServicePortId>,
    show: Option<ShowTable>,
    shown: Option<Vec<Reachable>>,
}

impl Loopback {
    pub(crate) fn new(families: PerFamily<bool>, show: Option<ShowTable>) -> Self {
        Self { families, entries: BTreeMap::new(), taken: BTreeMap::new(), show, shown: None }
    }

    /// Opens, changes or closes the addresses of a Service port. Returns how many were opened and closed.
    fn set_port(
        &mut self,
        id: &ServicePortId,
        port: Option<&ResolvedServicePort>,
        forwarder: &Forwarder,
    ) -> (usize, usize) {
        let protocol = id.name.protocol;
        let before = self.entries.remove(id);
        let known = before.as_ref().map(|entry| entry.row.address);
        let before = before.map_or_else(Vec::new, |entry| entry.open);
        let mut open = Vec::new();
        let found = port.filter(|_| *self.families.get(id.family)).and_then(|port| {
            let is_cluster_ip = |at| matches!(at, FrontendAddress::ClusterIp(_));
            let frontend = port.frontends.iter().find(|frontend| is_cluster_ip(frontend.at))?;
            Some((port, frontend, SocketAddr::new(frontend.at.ip()?, frontend.port)))
        });
        if let Some((port, frontend, cluster_ip)) = found {
            let mut failed = None;
            let mut listen = |address, route| {
                let listener = Listener { port: id.clone(), address, route, allowed_sources: None };
                let opened = forwarder.listen(&listener);
                opened.inspect(|address| open.push(*address))
            };
            let note = |error: ListenError| failed = Some(Chain(&error).to_string());
            let mut note = note;
            let address = self.choose(id, known, |address| match serves(frontend.route) {
                true => listen(address, frontend.route).map(|address| Some(address)),
                false => Ok(None),
            });
            let address = address.unwrap_or_else(|(address, error)| {
                note(error);
                address
            });
            self.taken.insert((protocol, address), id.clone());
            let node_port = port.frontends.iter().find(|f| f.at == FrontendAddress::NodePort);
            let node_port = node_port.map(|frontend| {
                let address = SocketAddr::new(address.ip(), frontend.port);
                if serves(frontend.route) {
                    let _ = listen(address, frontend.route).map_err(&mut note);
                }
                address
            });
            let endpoints = match frontend.route {
                Route::Pool { pool, .. } => port.pool(pool).len(),
                Route::ExternalLocal | Route::Reject | Route::Drop => 0,
            };
            let row = Reachable {
                service: id.name.service.to_string(),
                port: id.name.port.to_string(),
                protocol: protocol.as_str(),
                family: id.family.as_str(),
                cluster_ip,
                address,
                node_port,
                endpoints,
            };
            self.entries.insert(id.clone(), Entry { row, open: open.clone(), failed });
        } else if let Some(address) = known {
            self.taken.remove(&(protocol, address));
        }
        let closed = before.iter().filter(|address| !open.contains(address));
        let closed = closed.filter(|address| forwarder.close(protocol, **address)).count();
        (open.iter().filter(|address| !before.contains(address)).count(), closed)
    }

    /// Chooses the address of a Service port: the known one, else the first that no other has, and that
    /// `listen` can open. `listen` returns `None` if nothing is to be opened.
    fn choose(
        &self,
        id: &ServicePortId,
        known: Option<SocketAddr>,
        mut listen: impl FnMut(SocketAddr) -> Result<Option<SocketAddr>, ListenError>,
    ) -> Result<SocketAddr, (SocketAddr, ListenError)> {
        let ip: IpAddr = match id.family {
            IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
            IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
        };
        let start = preferred(id);
        let offsets = (0..TRIES).map(|offset| FIRST + (start + offset) % PORTS);
        let ports = offsets.map(|port| SocketAddr::new(ip, port));
        let protocol = id.name.protocol;
        let is_free = |address: &SocketAddr| !self.taken.contains_key(&(protocol, *address));
        let mut last = None;
        for address in known.into_iter().chain(ports.filter(is_free)) {
            match listen(address) {
                Ok(opened) => return Ok(opened.unwrap_or(address)),
                Err(error) if error.source.kind() == std::io::ErrorKind::AddrInUse => {
                    last = Some((address, error));
                }
                Err(error) => return Err((address, error)),
            }
        }
        match (listen(SocketAddr::new(ip, 0)), last) {
            (Ok(Some(address)), _) => Ok(address),
            (Ok(None), _) => Ok(SocketAddr::new(ip, FIRST + start)),
            (Err(error), last) => Err(last.unwrap_or((SocketAddr::new(ip, FIRST + start), error))),
        }
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

/// Whether connections at a frontend go to endpoints.
fn serves(route: Route) -> bool {
    matches!(route, Route::Pool { .. } | Route::ExternalLocal)
}

/// The number within the range of ports that a Service port begins with, the same in both families: the
/// hash FNV-1a of its name.
fn preferred(id: &ServicePortId) -> u16 {
    let text = id.name.to_string();
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash % u64::from(PORTS)) as u16
}

#[async_trait]
impl Intake for Loopback {
    async fn sync(
        &mut self,
        change: &Transition<'_>,
        forwarder: &Forwarder,
    ) -> Result<SyncReport, ProxierError> {
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
            report.revisit_after = Some(RETRY);
            if change.compare() || change.has_port(id) {
                report.skipped.push(Skipped { port: id.clone(), reason: reason.clone() });
            }
        }
        Ok(report)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        Ok(())
    }
}
