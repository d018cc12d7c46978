//! The description of a proxy, and its start.

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
};

use jiff::Timestamp;
use rustix::process::{Resource, getrlimit};
use switchyard_core::{
    config::NodeConfig,
    engine::{Engine, EngineError},
    error::ErrorChain,
    model::IpFamily,
    proxier::{self, Backend, Mode, Probed, Profile, ProxierError},
    runner::{NodeCheck, NodePatience, Observer, RunnerConfig},
    track::NodeFacts,
    worker::{Stop, Worker},
};
use switchyard_kernel::{conntrack::Report, route::AddressFollower};
use tokio::sync::{broadcast, watch};

#[cfg(feature = "userspace")]
use crate::ipv6_localhost::{self, SyncedNodePorts};
use crate::{
    bridges,
    engine_observer::Log,
    flows,
    health::{
        HealthCheckUpdates, NotServed, ProxyHealth, ServiceHealthServers,
        http::connections::{Connections, Limits},
    },
    localhost::{self, Node, RouteLocalnet},
    namespace::Namespace,
    proxy::{Handle, Proxy, SendReports},
};

/// The devices that hold addresses of Services or of sockets, which are not the node's: those of
/// ipvs mode and of userspace mode.
const DEVICES: [&str; 2] = ["kube-ipvs0", "switchyard0"];

/// The reports of syncs that are kept for a reader who is late.
const REPORTS: usize = 16;

/// Why a proxy could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is no backend: [`Builder::backend`] was not called.
    #[error("the proxy has no backend")]
    NoBackend,
    /// The node cannot run the backend, or the kernel cannot be reached.
    #[error(transparent)]
    Backend(#[from] ProxierError),
    /// The engine could not be started.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The thread of the servers could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// The settings of a [`Proxy`]. All have defaults, except the node and the backend.
pub struct Builder {
    node: NodeConfig,
    backend: Option<Arc<dyn Backend>>,
    probed: Option<Probed>,
    others: Vec<Arc<dyn Backend>>,
    timing: RunnerConfig,
    node_patience: Option<NodePatience>,
    node_check: Option<NodeCheck>,
    observer: Arc<dyn Observer>,
    log: bool,
    follows_addresses: bool,
    conntrack: bool,
    health_checks: bool,
    localhost: bool,
    descriptors: usize,
    on_reconciled: Box<dyn FnMut(Report) + Send>,
    on_not_served: Box<dyn Fn(NotServed<'_>) + Send>,
    #[cfg(feature = "userspace")]
    on_ipv6_localhost: Box<dyn FnMut(usize, u64) + Send>,
}

impl Builder {
    pub(crate) fn new(node: NodeConfig) -> Self {
        Self {
            node,
            backend: None,
            probed: None,
            others: Vec::new(),
            timing: RunnerConfig::default(),
            node_patience: None,
            node_check: None,
            observer: Arc::new(()),
            log: true,
            follows_addresses: true,
            conntrack: true,
            health_checks: true,
            localhost: true,
            descriptors: descriptors(),
            on_reconciled: Box::new(|_| ()),
            on_not_served: Box::new(|_| ()),
            #[cfg(feature = "userspace")]
            on_ipv6_localhost: Box::new(|_, _| ()),
        }
    }

    /// The backend.
    pub fn backend(self, backend: impl Backend + 'static) -> Self {
        self.shared_backend(Arc::new(backend))
    }

    /// The backend, from a program's table of backends.
    pub fn shared_backend(self, backend: Arc<dyn Backend>) -> Self {
        Self { backend: Some(backend), ..self }
    }

    /// The result of the backend's probe, of a program that has probed already.
    pub fn probed(self, probed: Probed) -> Self {
        Self { probed: Some(probed), ..self }
    }

    /// Backends that may have run on this node. What those whose rules would disturb this one's
    /// left behind is removed once this one serves; a failed removal is repeated every minute.
    pub fn replacing(self, others: Vec<Arc<dyn Backend>>) -> Self {
        Self { others, ..self }
    }

    /// The timing of syncs; kube-proxy's periods by default.
    pub fn timing(self, timing: RunnerConfig) -> Self {
        Self { timing, ..self }
    }

    /// The time that the first sync waits for facts of the Node, if the configuration takes
    /// anything from the Node. By default nothing is waited for once the Nodes are listed.
    pub fn node_patience(self, node_patience: Option<NodePatience>) -> Self {
        Self { node_patience, ..self }
    }

    /// Decides once whether the configuration can work on this node, before the first sync if the
    /// configuration takes anything from the Node; by default it can. After `false`, the proxy
    /// makes no more syncs, and is unhealthy.
    pub fn node_check(self, check: impl Fn(Option<&NodeFacts>) -> bool + Send + 'static) -> Self {
        Self { node_check: Some(Box::new(check)), ..self }
    }

    /// The receiver of everything that the engine reports, on the engine's thread; by default there
    /// is none.
    pub fn observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Arc::new(observer), ..self }
    }

    /// Whether events of the engine are logged ([`Log`]); true by default.
    pub fn log(self, log: bool) -> Self {
        Self { log, ..self }
    }

    /// Whether the proxy follows the addresses of the node's interfaces, on which node ports are
    /// served; true by default. Otherwise, send
    /// [`Input::InterfaceAddresses`](crate::Input::InterfaceAddresses).
    pub fn addresses(self, follows_addresses: bool) -> Self {
        Self { follows_addresses, ..self }
    }

    /// Whether conntrack entries of UDP and SCTP flows that contradict the state are removed after
    /// syncs; true by default. Without that, such a flow stays with an endpoint that is gone.
    pub fn conntrack(self, conntrack: bool) -> Self {
        Self { conntrack, ..self }
    }

    /// Receives a report of each attempt to remove conntrack entries, on a thread of the proxy.
    pub fn on_reconciled(self, report: impl FnMut(Report) + Send + 'static) -> Self {
        Self { on_reconciled: Box::new(report), ..self }
    }

    /// Whether health check node ports are served; true by default.
    pub fn health_checks(self, health_checks: bool) -> Self {
        Self { health_checks, ..self }
    }

    /// Receives the health check node ports that cannot be served, which are logged in any case, on
    /// a thread of the proxy: the function must not block, as [`Proxy::stop`] waits for it.
    pub fn on_not_served(self, report: impl Fn(NotServed<'_>) + Send + 'static) -> Self {
        Self { on_not_served: Box::new(report), ..self }
    }

    /// Whether node ports are served on loopback addresses, if the node's addresses for node ports
    /// include them and the backend can serve them; true by default, but for a proxy beside
    /// another one, whose loopback addresses these are. Takes the place of
    /// [`NodeConfig::localhost_node_ports`]. For IPv4, the kernel's parameter `route_localnet` is
    /// set once the backend's rules keep other hosts out.
    pub fn localhost(self, localhost: bool) -> Self {
        Self { localhost, ..self }
    }

    /// The most file descriptors that the proxy's servers and their connections take, and 128 for
    /// everything else; by default, as many as the process may have when this builder is made. A
    /// backend in user space has a setting for its connections.
    pub fn descriptors(self, descriptors: usize) -> Self {
        Self { descriptors, ..self }
    }

    /// Receives the number of sockets at `[::1]`, and the number of failures to open one since the
    /// last report, on a thread of the proxy: the function must not block, as [`Proxy::stop`] waits
    /// for it. In nftables mode, sockets serve node ports there if an entry of
    /// [`NodeConfig::node_port_addresses`] includes the address, unless
    /// [`localhost`](Self::localhost) is off.
    #[cfg(feature = "userspace")]
    pub fn on_ipv6_localhost(self, report: impl FnMut(usize, u64) + Send + 'static) -> Self {
        Self { on_ipv6_localhost: Box::new(report), ..self }
    }

    /// Starts the proxy, in the network namespace of the calling thread. Blocks while the backend
    /// probes the node.
    ///
    /// # Errors
    /// If the node cannot run the backend, the backend does not fit
    /// [`NodeConfig::service_proxy_name`], or a thread cannot be started.
    pub fn start(self) -> Result<Proxy, StartError> {
        let backend = self.backend.ok_or(StartError::NoBackend)?;
        let probed = self.probed.map_or_else(|| backend.probe(), Ok)?;
        let families: Vec<IpFamily> =
            IpFamily::ALL.into_iter().filter(|family| *probed.families.get(*family)).collect();
        let proxier = probed.open()?;
        let (profile, forwards) = (proxier.profile(), proxier.forwards());
        let mut asked = self.node;
        asked.localhost_node_ports = self.localhost;
        let log = self.log.then(|| Log::new(&asked.node_name));
        let node = watch::Sender::new(Node::new(asked, &profile));
        let used = node.borrow().used.clone();

        let health = Arc::new(ProxyHealth::new(Handle::health_timeout(&self.timing)));
        health.started(&families, Timestamp::now());
        let flows = if self.conntrack { flows::start(&profile, self.on_reconciled) } else { None };
        let (flows, reconciling) = flows.unzip();
        let updates = HealthCheckUpdates::default();
        let checks = updates.receiver();
        let (reports, first_reports) = broadcast::channel(REPORTS);
        let weak_reports = reports.downgrade();
        let descriptors = Descriptors::new(self.descriptors, &profile, &families);
        #[cfg(feature = "userspace")]
        let (ports, sockets) = {
            let ports = (descriptors.sockets > 0).then(|| Arc::new(SyncedNodePorts::default()));
            let serve = |ports: &Arc<_>| {
                let (ports, node) = (Arc::clone(ports), node.subscribe());
                let limit = descriptors.sockets;
                serve(
                    "localhost",
                    ipv6_localhost::serve(ports, limit, node, self.on_ipv6_localhost),
                )
            };
            let sockets = ports.as_ref().map(serve).transpose()?;
            (ports, sockets)
        };
        #[cfg(not(feature = "userspace"))]
        let (ports, sockets) = ((), None);
        let observer = Arc::new((
            // First: what others count is in the log.
            (log, ((Arc::clone(&health), updates), ports)),
            (
                (flows, RouteLocalnet::new(&profile)),
                (self.observer, SendReports(reports, Arc::clone(&health))),
            ),
        ));
        let mut engine = Engine::builder(used)
            .timing(self.timing)
            .node_patience(self.node_patience)
            .observer(observer)
            .conflicting(proxier::conflicting(&self.others, &profile));
        if let Some(check) = self.node_check {
            engine = engine.node_check(check);
        }
        if self.follows_addresses {
            let follower =
                DEVICES.into_iter().fold(AddressFollower::new(), AddressFollower::without);
            engine = engine.addresses(follower);
        }
        let engine = engine.start(proxier)?;
        bridges::check(&profile, &node.borrow().used);

        let connections = Connections::new(Limits::new(descriptors.servers));
        let health_servers = ServiceHealthServers::new(
            Arc::clone(&health),
            families,
            Arc::clone(&connections),
            logged(self.on_not_served),
        );
        let (inputs, has_servers) = (engine.inputs(), self.health_checks);
        let watched_node = node.subscribe();
        let servers = serve("servers", async move {
            tokio::select! {
                never = health_servers.run(checks), if has_servers => never,
                never = localhost::watch(&profile, watched_node, inputs) => never,
            }
        })?;
        let namespace = Namespace::start().map_err(StartError::Thread)?;
        let handle = Handle { inputs: engine.inputs(), profile, health, node, namespace };
        Ok(Proxy {
            servers,
            sockets,
            reconciling,
            engine,
            forwards,
            backend,
            handle,
            connections,
            reports: weak_reports,
            first_reports: Mutex::new(Some(first_reports)),
        })
    }
}

/// Serves on a thread until the worker is dropped.
fn serve(
    name: &str,
    serving: impl Future<Output = Infallible> + Send + 'static,
) -> Result<Worker<()>, StartError> {
    let work = |stop: Stop| async {
        tokio::select! {
            () = stop.requested() => {}
            never = serving => match never {},
        }
    };
    Worker::start(name.to_owned(), work).map_err(StartError::Thread)
}

/// The file descriptors of this process, as far as a proxy has them. With what is reserved, they
/// add up to no more than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptors {
    /// For the servers of health, and those that share [`Proxy::connections`].
    servers: usize,
    /// For the sockets at `[::1]`; 0 if the proxy has none.
    #[cfg_attr(not(feature = "userspace"), allow(dead_code, reason = "no sockets"))]
    sockets: usize,
}

impl Descriptors {
    fn new(all: usize, profile: &Profile, families: &[IpFamily]) -> Self {
        let has_sockets = cfg!(feature = "userspace")
            && profile.mode == Mode::NFTABLES
            && families.contains(&IpFamily::V6);
        if has_sockets {
            let sockets = all / 8;
            return Self { servers: all - sockets, sockets };
        }
        #[cfg(feature = "userspace")]
        if !profile.translates_flows {
            // The forwarder has all but these.
            return Self {
                servers: switchyard_userspace::forwarder::spare_descriptors(all),
                sockets: 0,
            };
        }
        Self { servers: all, sockets: 0 }
    }
}

/// Returns the number of file descriptors that this process may have.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Adds a line of the log to a report.
fn logged(report: Box<dyn Fn(NotServed<'_>) + Send>) -> impl Fn(NotServed<'_>) + Send + 'static {
    move |not_served| {
        let NotServed { service, address, error } = &not_served;
        tracing::error!(%service, %address, err = %ErrorChain(*error), "Failed to start healthcheck");
        report(not_served);
    }
}

#[cfg(all(test, feature = "ipvs", feature = "userspace"))]
mod tests {
    use super::*;
    use crate::health::http::connections::RESERVED_DESCRIPTORS;

    #[test]
    fn the_devices_are_those_of_the_backends() {
        assert_eq!(DEVICES, [switchyard_ipvs::DEVICE, switchyard_userspace::DEVICE]);
    }

    #[test]
    fn all_shares_of_the_descriptors_add_up() {
        let user_space = Profile { translates_flows: false, ..Profile::new(Mode::USERSPACE) };
        for all in [256, 1024, 9508, 1 << 20, 1 << 30] {
            let used = |profile: &Profile, families: &[IpFamily], forwarder: usize| {
                let Descriptors { servers, sockets } = Descriptors::new(all, profile, families);
                let limits = Limits::new(servers);
                let servers = limits.connections + 2 * limits.service_health_servers;
                servers + RESERVED_DESCRIPTORS + sockets + forwarder
            };
            let nft = Profile::new(Mode::NFTABLES);
            assert!(used(&nft, &IpFamily::ALL, 0) <= all, "{all}");
            assert!(used(&nft, &[IpFamily::V4], 0) <= all, "{all}");
            let forwarder = all - switchyard_userspace::forwarder::spare_descriptors(all);
            assert!(used(&user_space, &IpFamily::ALL, forwarder) <= all, "{all}");
        }
    }
}
