//! The proxy's sockets that rules redirect traffic to.
//!
//! The backend beneath is shown a state in which each pool has one endpoint: a socket of the proxy.
//! So it decides, as for itself, which traffic belongs to a Service, what is refused or dropped,
//! and which of the two pools a client may have; the proxy chooses the endpoint. The rules change
//! only when frontends do, or when a pool becomes empty.
//!
//! The sockets are at addresses of a device of this mode. The node's other addresses come and go;
//! and loopback addresses cannot be reached from other hosts.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use switchyard_core::{
    config::NodeConfig,
    error::ErrorChain,
    model::{IpFamily, LbAlgorithm, PerFamily, Protocol, ServiceName, ServicePortId},
    proxier::{
        DegradedPort, Drift, Monitor, Profile, Proxier, ProxierError, RefusedParts, SyncReport,
    },
    state::{Action, Endpoint, Frontend, Masquerade, Pool, PoolKind, ResolvedServicePort, State},
    transition::{DerivedState, Transition},
};
use switchyard_kernel::{
    conntrack::Reconciler,
    route::{DeviceError, DummyDevice, SharedAddresses},
};

use crate::{
    capture::{Capture, DEVICE, RETRY, addresses, failed, monitor::DeviceMonitor, ports::Ports},
    forwarder::{Forwarder, ListenError, Listener},
};

use super::{
    answers::{self, Answers},
    pause::{self, Pause},
};

/// The address of the sockets for IPv4, of a range that no host takes its address from (RFC 6890,
/// section 2.2.2). A link-local one will not do: SCTP does not answer a client of a private network
/// from there (`sctp_bind_addr_copy` in `net/sctp/bind_addr.c`).
const V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 83);
/// The address of the sockets for IPv6, of a range for private use (RFC 4193).
const V6: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x7769, 0x7463, 0, 0, 0, 0, 1);

/// The sockets of a Service port for each of its pools; the address of a pool that has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PoolSockets {
    cluster: Option<SocketAddr>,
    local: Option<SocketAddr>,
}

/// See the [module's documentation](self).
pub(crate) struct Redirect {
    /// The backend beneath, and what it should hold.
    rules: Box<dyn Proxier>,
    derived: DerivedState,
    device: DummyDevice,
    /// The addresses of the sockets that the device should have.
    bound: SharedAddresses,
    families: PerFamily<bool>,
    sockets: HashMap<ServicePortId, PoolSockets>,
    /// The addresses of all sockets that are open.
    ports: Ports,
    /// Sockets that the rules no longer lead to once they are synced.
    unused: Vec<(Protocol, SocketAddr)>,
    /// Service ports whose sockets could not be opened, and why.
    failed: BTreeMap<ServicePortId, String>,
    /// The rules for answers of endpoints to clients.
    answers: Answers,
    /// The families that have had a Service port whose endpoints may see clients, which need those
    /// rules: connections may outlive their Service.
    shown: PerFamily<bool>,
    pause: Pause,
    /// Ends flows that began before the rules; `None` where the kernel or the privilege is missing.
    flows: Option<Reconciler>,
}

impl Redirect {
    /// Opens the capture mode, which redirects by this backend.
    pub(crate) fn open(
        rules: Box<dyn Proxier>,
        families: PerFamily<bool>,
        answer_mark: u32,
    ) -> Result<Self, ProxierError> {
        let device = addresses::open_device().map_err(failed("cannot reach rtnetlink"))?;
        let flows = Reconciler::start(|_| {}).inspect_err(|error| {
            tracing::warn!(err = %ErrorChain(error), "conntrack unavailable: stale UDP flows will not be removed");
        });
        Ok(Self {
            rules,
            derived: DerivedState::default(),
            device,
            bound: SharedAddresses::default(),
            families,
            sockets: HashMap::new(),
            ports: Ports::default(),
            unused: Vec::new(),
            failed: BTreeMap::new(),
            answers: Answers::new(answer_mark),
            shown: PerFamily::default(),
            pause: Pause::default(),
            flows: flows.ok(),
        })
    }

    /// Gives the node the addresses of the sockets of these families. Returns those that were
    /// missing, and the device's other addresses: those of another program, or of the capture mode
    /// `addresses`.
    ///
    /// # Errors
    /// Names a family whose address is refused, as IPv6's is if it is switched off on the device.
    fn ensure_addresses(
        &mut self,
        families: PerFamily<bool>,
    ) -> Result<[Vec<IpAddr>; 2], ProxierError> {
        let failed = failed("cannot add the addresses of the proxy's sockets");
        let there = self.device.ensure().and_then(|_| self.device.addresses());
        let (own, others): (Vec<IpAddr>, Vec<IpAddr>) = there
            .map_err(&failed)?
            .into_iter()
            .partition(|ip| *ip == own_address(IpFamily::of(ip)));
        let mut bound = BTreeSet::from_iter(own);
        let programmed = || IpFamily::ALL.into_iter().filter(|family| *families.get(*family));
        let missing: Vec<IpAddr> =
            programmed().map(own_address).filter(|ip| !bound.contains(ip)).collect();
        bound.extend(&missing);
        let mut should_be = self.bound.lock();
        let mut parts = RefusedParts::default();
        let mut first = None;
        for error in self.device.change_each(&missing, &[]).map_err(&failed)? {
            if let DeviceError::Address { address, .. } = &error {
                let reason = ErrorChain(&error).to_string();
                *parts.families.get_mut(IpFamily::of(address)) = Some(reason);
                bound.remove(address);
            }
            first.get_or_insert(error);
        }
        *should_be = bound;
        match first {
            None => Ok([missing, others]),
            // If nothing of any family can be served, something else is wrong.
            Some(error) if programmed().all(|f| parts.families.get(f).is_some()) => {
                Err(failed(error))
            }
            Some(error) => Err(failed(error).of_parts(parts)),
        }
    }

    /// Has endpoints see clients in those of these families where some may. The rules for that cost
    /// each packet of the node a little.
    fn show_clients(
        &mut self,
        change: &Transition<'_>,
        families: PerFamily<bool>,
        forwarder: &Forwarder,
    ) {
        let before = self.shown;
        let all = change.is_resync().then(|| change.after().service_ports.values());
        let changed = change.ports().filter_map(|port| port.after);
        for port in all.into_iter().flatten().chain(changed) {
            if !port.local.is_empty() && keeps_clients(port) {
                let family = port.id.family;
                *self.shown.get_mut(family) |= *families.get(family);
            }
        }
        if change.is_resync() || self.shown != before {
            let shown =
                PerFamily::from_fn(|family| *self.shown.get(family) && *families.get(family));
            forwarder.show_clients(self.answers.ensure(shown));
        }
    }

    /// Opens the sockets that a Service port needs, and sets what the rules should know of it.
    /// Sockets that are no longer needed stay open until the rules are synced.
    fn set_port(
        &mut self,
        id: &ServicePortId,
        port: Option<&Arc<ResolvedServicePort>>,
        forwarder: &Forwarder,
    ) {
        let before = self.sockets.remove(id).unwrap_or_default();
        let mut now = PoolSockets::default();
        let mut result = Ok(());
        if let Some(port) = port {
            let mut open = |pool, before: Option<SocketAddr>| -> Result<_, Box<ListenError>> {
                if port.pool(pool).is_empty() {
                    return Ok(None);
                }
                let ip = own_address(id.family);
                let masquerade = match pool == PoolKind::Local && keeps_clients(port) {
                    true => Masquerade::Never,
                    false => Masquerade::Always,
                };
                let action = Action::Pool { pool, masquerade };
                let listen = |address| {
                    let listener =
                        Listener { port: id.clone(), address, action, allowed_sources: None };
                    forwarder.listen(&listener).map_err(Box::new)
                };
                let reserved = || forwarder.reserved_ports();
                let (address, error) = self.ports.listen(id, ip, before, reserved, listen);
                if let Some(error) = error {
                    return Err(error);
                }
                self.ports.take(id.name.protocol, address);
                Ok(Some(address))
            };
            result = open(PoolKind::Cluster, before.cluster).and_then(|cluster| {
                now.cluster = cluster;
                now.local = open(PoolKind::Local, before.local)?;
                Ok(())
            });
        }
        for (before, now) in [(before.cluster, now.cluster), (before.local, now.local)] {
            let unused = before.filter(|_| now.is_none());
            self.unused.extend(unused.map(|address| (id.name.protocol, address)));
        }
        if now != PoolSockets::default() {
            self.sockets.insert(id.clone(), now);
        }
        let is_refused = result.is_err();
        match result {
            Ok(()) => self.failed.remove(id),
            Err(error) => {
                let why = format!("{}; its connections are refused", ErrorChain(&*error));
                self.failed.insert(id.clone(), why)
            }
        };
        let derived = port.map(|port| Arc::new(derive(port, now, is_refused)));
        self.derived.set_port(id, derived);
    }
}

#[async_trait]
impl Capture for Redirect {
    fn profile(&self, of_proxy: Profile) -> Profile {
        let Profile { mode, guards_loopback, .. } = self.rules.profile();
        let capabilities = of_proxy.capabilities.with_rules_of(mode);
        Profile { guards_loopback, capabilities, ..of_proxy }
    }

    fn prepare(&mut self, node: &NodeConfig) -> Result<(), ProxierError> {
        self.rules.prepare(node)
    }

    async fn sync(
        &mut self,
        change: &Transition<'_>,
        forwarder: &Forwarder,
    ) -> Result<SyncReport, ProxierError> {
        let families =
            PerFamily::from_fn(|family| *self.families.get(family) && change.programs(family));
        let known = self.bound.lock().clone();
        let [missing, others] = match change.is_resync() {
            true => self.ensure_addresses(families)?,
            false => Default::default(),
        };
        self.show_clients(change, families, forwarder);
        self.derived.follow_node(change);
        self.ports.begin();
        // A family that is left out has no address to listen at.
        let known_failures = self.failed.keys().filter(|id| *families.get(id.family));
        let known_failures: HashSet<ServicePortId> = known_failures.cloned().collect();
        for port in change.ports() {
            self.set_port(port.id, port.after, forwarder);
        }
        for id in &known_failures {
            let port = change.after().service_ports.get(id);
            self.set_port(id, port, forwarder);
        }
        let mut report = SyncReport::default();
        if self.derived.is_due() {
            report = match self.rules.sync(&self.derived.transition()).await {
                Ok(report) => report,
                Err(error) => {
                    self.flows.iter().for_each(Reconciler::doubt);
                    self.derived.request_resync();
                    return Err(error);
                }
            };
            if let Some(flows) = &self.flows {
                if !report.drift.is_none() {
                    flows.doubt();
                }
                flows.synced(&self.derived.transition());
            }
            self.derived.mark_synced(report.requeue_after);
        }
        report.requeue_after = self.derived.requeue_after();
        if change.is_resync()
            && let Err(error) = self.pause.end_earlier()
        {
            // The pause ends by itself.
            tracing::warn!(err = %ErrorChain(&error), "Failed to let new connections come again");
        }
        self.unused.iter().for_each(|(protocol, address)| self.ports.free(*protocol, *address));
        forwarder.close(self.unused.drain(..));
        report.added += missing.len();
        let lost = missing.iter().filter(|ip| known.contains(ip));
        for ip in lost.chain(others.iter().filter(|_| !known.is_empty())) {
            report.drift.found(|| format!("the address {ip} on {DEVICE} was missing"));
        }
        if !others.is_empty() {
            // The rules are in place, and the report should be heard.
            let left = self.device.change_each(&[], &others).unwrap_or_else(|error| vec![error]);
            report.removed += others.len().saturating_sub(left.len());
            for error in left {
                report.cleanup_failed = true;
                tracing::warn!(err = %ErrorChain(&error), "Failed to remove an address");
            }
        }
        let is_new = |id: &ServicePortId| change.is_resync() || !known_failures.contains(id);
        let of_family = |(id, _): &(&ServicePortId, &String)| *families.get(id.family);
        let failed = || self.failed.iter().filter(of_family);
        let skipped = failed().filter(|(id, _)| is_new(id));
        report.degraded.extend(
            skipped
                .map(|(port, reason)| DegradedPort { port: port.clone(), reason: reason.clone() }),
        );
        if failed().next().is_some() {
            report.requeue_after =
                Some(report.requeue_after.map_or(RETRY, |after| after.min(RETRY)));
        }
        Ok(report)
    }

    fn compare(
        &mut self,
        _state: &State,
        service: &ServiceName,
    ) -> Result<Option<Drift>, ProxierError> {
        let Some(mut drift) = self.rules.compare(self.derived.state(), service)? else {
            return Ok(None);
        };
        let there = self.device.addresses();
        let there = there.map_err(failed("cannot list the addresses of the proxy's sockets"))?;
        for ip in self.bound.lock().difference(&there) {
            drift.found(|| format!("the address {ip} on {DEVICE} was missing"));
        }
        Ok(Some(drift))
    }

    fn pause(&self) -> Box<dyn FnOnce() + Send + Sync> {
        let (families, pause) = (self.families, self.pause.clone());
        Box::new(move || {
            let families = IpFamily::ALL.into_iter().filter(|family| *families.get(*family));
            pause.begin(families.map(own_address));
        })
    }

    fn pauses(&self) -> bool {
        true
    }

    async fn clean_up(&mut self) -> Result<(), ProxierError> {
        self.derived.request_resync();
        self.rules.clean_up().await?;
        self.bound.lock().clear();
        let others = answers::clean_up().and(pause::end());
        addresses::clean_up().and(others)
    }

    fn monitor(&self) -> Option<Box<dyn Monitor>> {
        let monitor = DeviceMonitor::new(self.rules.monitor(), &self.bound);
        Some(Box::new(monitor.with_answers(Box::new(self.answers.monitor()))))
    }
}

pub(super) fn own_address(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => V4.into(),
        IpFamily::V6 => V6.into(),
    }
}

/// Whether the endpoints of the local pool may see clients: those of `externalTrafficPolicy: Local`,
/// none of which would be masqueraded, and no others whom kube-proxy always masquerades.
fn keeps_clients(port: &ResolvedServicePort) -> bool {
    let mut actions = port.frontends.iter().map(|frontend| frontend.action);
    let is_masqueraded = |action| match action {
        Action::Pool { pool, masquerade } => {
            pool == PoolKind::Local && masquerade == Masquerade::Always
        }
        _ => false,
    };
    actions.clone().any(|action| action == Action::ExternalLocal) && !actions.any(is_masqueraded)
}

/// Returns a Service port as the rules should know it: the same frontends, and the sockets for
/// endpoints. If a socket could not be opened, its connections are refused.
fn derive(
    port: &ResolvedServicePort,
    sockets: PoolSockets,
    is_refused: bool,
) -> ResolvedServicePort {
    let pool = |socket: Option<SocketAddr>| -> Pool {
        let endpoint =
            |address| Endpoint { address, is_local: true, may_be_local: false, weight: 1 };
        socket.filter(|_| !is_refused).map(endpoint).into_iter().collect()
    };
    let action = |action| match action {
        Action::Pool { .. } | Action::ExternalLocal if is_refused => Action::Reject,
        // The proxy answers, and endpoints see its address.
        Action::Pool { pool, masquerade: _ } => {
            Action::Pool { pool, masquerade: Masquerade::Never }
        }
        _ => action,
    };
    let frontend =
        |frontend: &Frontend| Frontend { action: action(frontend.action), ..frontend.clone() };
    ResolvedServicePort {
        frontends: port.frontends.iter().map(frontend).collect(),
        cluster: pool(sockets.cluster),
        local: pool(sockets.local),
        draining: Pool::default(),
        affinity: None,
        lb_algorithm: LbAlgorithm::Random,
        proxy_protocol: None,
        id: port.id.clone(),
    }
}
