//! Owned addresses: the addresses of Services are addresses of this node, and listened on directly.
//!
//! This needs no packet filter. The node answers for every port of such an address, so a port that
//! no Service has is refused, and so is what other modes drop in silence.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(any(target_os = "linux", windows)))]
mod none;
#[cfg(windows)]
mod windows;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use crate::forwarder::{Forwarder, Listener};
use async_trait::async_trait;
use switchyard_core::{
    model::{PerFamily, ServicePortId},
    proxier::{DegradedPort, Monitor, Profile, ProxierError, SyncReport},
    state::{Action, NodePortAddresses, NodeState, ResolvedServicePort},
    transition::Transition,
};

#[cfg(target_os = "linux")]
use self::linux as system;
#[cfg(target_os = "linux")]
pub(super) use self::linux::open_device;
#[cfg(not(any(target_os = "linux", windows)))]
use self::none as system;
#[cfg(windows)]
use self::windows as system;
use super::{Capture, RETRY, SystemError, failed};
use crate::sockets::Sockets;

/// The addresses that this mode has added to the node.
pub(crate) trait OwnedAddresses: Send {
    /// Makes what holds the addresses, if it is missing, and returns the addresses that are there.
    fn ensure(&mut self) -> Result<BTreeSet<IpAddr>, SystemError>;

    /// Returns the node's other addresses.
    fn others(&mut self) -> Result<BTreeSet<IpAddr>, SystemError>;

    /// Adds addresses, then removes addresses, and returns those that the system refuses, with its
    /// reasons. One that is there already, or gone, is done.
    fn change(
        &mut self,
        add: &[IpAddr],
        remove: &[IpAddr],
    ) -> Result<BTreeMap<IpAddr, String>, SystemError>;

    /// Opens a monitor of the addresses that this mode has added, where the system reports changes.
    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        None
    }
}

/// Finds out whether this node can run the capture mode: the privileges, and what holds addresses.
pub(crate) fn probe() -> Result<(), SystemError> {
    system::probe()?;
    system::probe_ports()
}

/// Finds out whether addresses can be added to this node.
#[cfg(target_os = "linux")]
pub(crate) fn probe_device() -> Result<(), SystemError> {
    system::probe()
}

/// Removes the addresses of this mode.
pub(crate) fn clean_up() -> Result<(), ProxierError> {
    system::clean_up().map_err(failed("cannot remove the addresses of Services"))
}

/// See the [module's documentation](self).
pub(crate) struct Addresses {
    system: Box<dyn OwnedAddresses>,
    families: PerFamily<bool>,
    sockets: Sockets,
    /// The addresses that were added.
    owned: BTreeSet<IpAddr>,
    /// The addresses that the system refuses to add, and why.
    refused: BTreeMap<IpAddr, String>,
    /// Why addresses that are not needed any more are still there.
    left: BTreeSet<String>,
}

impl Addresses {
    pub(crate) fn open(families: PerFamily<bool>) -> Result<Self, ProxierError> {
        let system = system::open().map_err(failed("cannot reach the system's addresses"))?;
        Ok(Self {
            system,
            families,
            sockets: Sockets::default(),
            owned: BTreeSet::new(),
            refused: BTreeMap::new(),
            left: BTreeSet::new(),
        })
    }

    /// The listeners of a Service port.
    fn listeners(&self, port: &ResolvedServicePort, node: &NodeState) -> Vec<Listener> {
        if !*self.families.get(port.id.family) {
            return Vec::new();
        }
        let mut listeners = Vec::new();
        for frontend in &port.frontends {
            // A socket that closes every connection would only hide that nothing listens.
            if matches!(frontend.action, Action::Reject | Action::Drop) {
                continue;
            }
            let ips: Vec<IpAddr> = match frontend.at.ip() {
                // A socket there can be opened if net.ipv4.ip_nonlocal_bind is set, and would look
                // served.
                Some(ip) if self.refused.contains_key(&ip) => continue,
                Some(ip) => vec![ip],
                None => match node.node_ports.get(port.id.family) {
                    NodePortAddresses::Only(ips) => ips.iter().copied().collect(),
                    // Never asked for by this mode.
                    NodePortAddresses::AllLocal | NodePortAddresses::AllWithLoopback => Vec::new(),
                },
            };
            listeners.extend(ips.into_iter().map(|ip| Listener {
                port: port.id.clone(),
                address: SocketAddr::new(ip, frontend.port),
                action: frontend.action,
                allowed_sources: frontend.allowed_sources.clone(),
            }));
        }
        listeners
    }

    /// The Service ports with an address that the system refuses to add, and why.
    fn without_address(&self, change: &Transition<'_>) -> BTreeMap<ServicePortId, String> {
        if self.refused.is_empty() {
            return BTreeMap::new();
        }
        let refused = |port: &ResolvedServicePort| {
            let mut ips = port.frontends.iter().filter_map(|frontend| frontend.at.ip());
            ips.find_map(|ip| self.refused.get(&ip).cloned())
        };
        let ports = change.after().service_ports.values();
        ports.filter_map(|port| Some((port.id.clone(), refused(port)?))).collect()
    }

    /// The addresses of all Services, whether or not a Service port has endpoints.
    fn wanted(&self, change: &Transition<'_>) -> BTreeSet<IpAddr> {
        let ports = change.after().service_ports.values();
        let ports = ports.filter(|port| *self.families.get(port.id.family));
        ports
            .flat_map(|port| port.frontends.iter().filter_map(|frontend| frontend.at.ip()))
            .collect()
    }
}

#[async_trait]
impl Capture for Addresses {
    fn profile(&self, of_proxy: Profile) -> Profile {
        let capabilities = of_proxy.capabilities.with_listed_node_ports();
        Profile { capabilities, ..of_proxy }
    }

    async fn sync(
        &mut self,
        change: &Transition<'_>,
        forwarder: &Forwarder,
    ) -> Result<SyncReport, ProxierError> {
        let mut report = SyncReport::default();
        if change.is_resync() {
            let there =
                self.system.ensure().map_err(failed("cannot list the addresses of Services"))?;
            if change.before().is_some() {
                for ip in self.owned.symmetric_difference(&there) {
                    report.drift.found(|| format!("the address {ip} of a Service"));
                }
            }
            self.owned = there;
        }
        let wanted = self.wanted(change);
        let mut add: Vec<IpAddr> = wanted.difference(&self.owned).copied().collect();
        if !add.is_empty() {
            // An address that another device has is the node's already.
            let others =
                self.system.others().map_err(failed("cannot list the node's addresses"))?;
            add.retain(|ip| !others.contains(ip));
        }
        let remove: Vec<IpAddr> = self.owned.difference(&wanted).copied().collect();
        let changed = self.system.change(&add, &[]);
        let refused = changed.map_err(failed("cannot add the addresses of Services"))?;
        add.retain(|ip| !refused.contains_key(ip));
        self.owned.extend(&add);
        let differs = !refused.keys().eq(self.refused.keys());
        self.refused = refused;

        let node = &change.after().node;
        let listeners = |port: &ResolvedServicePort| self.listeners(port, node);
        let ports: Vec<(ServicePortId, Vec<Listener>)> = if change.node_changed()
            || change.is_resync()
            || differs
        {
            let gone =
                self.sockets.ports().filter(|id| !change.after().service_ports.contains_key(*id));
            let gone = gone.map(|id| (id.clone(), Vec::new()));
            let all = change.after().service_ports.values();
            gone.chain(all.map(|port| (port.id.clone(), listeners(port)))).collect()
        } else {
            let of = |change: switchyard_core::transition::PortChange<'_>| {
                (change.id.clone(), change.after.map_or_else(Vec::new, |port| listeners(port)))
            };
            change.ports().map(of).collect()
        };
        let changed = self.sockets.change(forwarder, ports);
        let retried = self.sockets.retry(forwarder);

        let mut remove = remove;
        let left = self.system.change(&[], &remove);
        let left = left.map_err(failed("cannot remove addresses of Services"))?;
        remove.retain(|ip| !left.contains_key(ip));
        report.cleanup_failed = !left.is_empty();
        let left: BTreeSet<String> = left.into_values().collect();
        for reason in left.difference(&self.left) {
            tracing::warn!(err = reason, "Failed to remove an address that no Service uses");
        }
        self.left = left;
        remove.iter().for_each(|ip| {
            self.owned.remove(ip);
        });
        report.added = add.len() + changed.opened + retried.opened;
        report.removed = remove.len() + changed.closed + retried.closed;
        report.degraded = self.sockets.failed().collect();
        let without_address = self.without_address(change);
        report.degraded.retain(|skipped| !without_address.contains_key(&skipped.port));
        let skipped = without_address.into_iter();
        report.degraded.extend(skipped.map(|(port, reason)| DegradedPort { port, reason }));
        let is_done = report.degraded.is_empty() && self.left.is_empty();
        report.requeue_after = (!is_done).then_some(RETRY);
        if !change.is_resync() {
            report.degraded.retain(|skipped| change.has_port(&skipped.port));
        }
        Ok(report)
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        clean_up()?;
        self.owned.clear();
        Ok(())
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        self.system.monitor()
    }
}
